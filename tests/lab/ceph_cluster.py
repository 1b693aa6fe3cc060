# SPDX-License-Identifier: Apache-2.0
"""A Ceph cluster of one host: a monitor, a manager and an OSD, with keys, as processes of ours."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Of the bridge to which the hosts of the checks are connected.
ADDRESS = "10.77.0.1"
POOL = "images"
USER = "imageio"
#: Seconds until a process of the cluster answers, or ends.
PATIENCE = 90.0

CONF = """\
[global]
fsid = {fsid}
mon host = [v2:{address}:3300,v1:{address}:6789]
public addr = {address}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {root}/keyring.$name
run dir = {root}
log file = {root}/$name.log
log to stderr = false
pid file =
admin socket = {root}/$name.$pid.asok
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail crit = 1
mon data = {root}/mon
mgr data = {root}/mgr
mgr initial modules =
osd data = {root}/osd
osd objectstore = bluestore
bluestore block create = true
bluestore block size = {size}
osd memory target = 939524096
mgr stats period = 1
osd mon report interval = 1
"""


class Cluster:
    """The cluster. `conf`: the path of ceph.conf for everybody; keyrings of users are beside it.

    size: bytes of the OSD. osd_environment: variables of the OSD's environment beside those of this process.
    """

    def __init__(self, root: Path, size: int = 8 << 30, osd_environment: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.osd_data = root / "osd" / "block"
        self._osd_environment = {**os.environ, **(osd_environment or {})}
        self.conf = root / "ceph.conf"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        root.mkdir()
        fsid = str(uuid.uuid4())
        self.conf.write_text(CONF.format(fsid=fsid, address=ADDRESS, root=root, size=size))
        for name in ("mon", "mgr", "osd"):
            (root / name).mkdir()
        self._make_keys()
        self._start_monitor(fsid)
        self._start_manager()
        self._make_osd()
        self.start_osd()
        self.admin("osd", "pool", "create", POOL, "8")
        self.rbd("pool", "init", POOL)
        self.key(f"client.{USER}", mon="profile rbd", osd=f"profile rbd pool={POOL}", mgr=f"profile rbd pool={POOL}")

    def admin(self, *words: str, timeout: float = PATIENCE) -> str:
        """Run `ceph`, as the administrator, and return what it prints."""
        return self._run("ceph", *words, timeout=timeout)

    def rbd(self, *words: object, timeout: float = PATIENCE) -> str:
        """Run `rbd`, as the administrator, and return what it prints."""
        return self._run("rbd", *map(str, words), timeout=timeout)

    def asked(self, *words: str) -> Any:
        """Return what `ceph` tells as JSON."""
        return json.loads(self.admin(*words, "--format=json"))

    def key(self, name: str, **caps: str) -> None:
        """Make a user with these capabilities, whose key is where the configuration says."""
        told = [word for kind, cap in caps.items() for word in (kind, cap)]
        self._keyring(name).write_text(self.admin("auth", "get-or-create", name, *told))

    def export(self, image: str) -> bytes:
        """Return the content of an image, as `rbd export` reads it."""
        command = [*self._command("rbd"), "export", "--no-progress", image, "-"]
        return subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout

    def start_osd(self) -> None:
        """Start the OSD and wait until all placement groups are served."""
        self._start("osd", "ceph-osd", "-i", "0", environment=self._osd_environment)

        def served() -> bool:
            states = self.asked("status")["pgmap"].get("pgs_by_state", [])
            return all(state["state_name"] == "active+clean" for state in states)

        eventually(lambda: self.asked("osd", "stat")["num_up_osds"] == 1, "the OSD is up")
        eventually(served, "all placement groups are active")

    def signal_osd(self, number: signal.Signals) -> None:
        """Send a signal to the OSD: SIGSTOP and SIGCONT stop and continue it."""
        self._running["osd"].send_signal(number)

    def kill_osd(self) -> None:
        """End the OSD as a loss of power of its host does."""
        osd = self._running.pop("osd")
        osd.kill()
        osd.wait()

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _make_keys(self) -> None:
        monitor, admin = self._keyring("mon.a"), self._keyring("client.admin")
        run("ceph-authtool", "--create-keyring", monitor, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        everything = [word for kind in ("mon", "osd", "mgr") for word in ("--cap", kind, "allow *")]
        run("ceph-authtool", "--create-keyring", admin, "--gen-key", "-n", "client.admin", *everything)
        run("ceph-authtool", monitor, "--import-keyring", admin)

    def _start_monitor(self, fsid: str) -> None:
        monmap = self.root / "monmap"
        addresses = f"[v2:{ADDRESS}:3300,v1:{ADDRESS}:6789]"
        run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, monmap)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(monmap), "--keyring", str(self._keyring("mon.a")))
        self._start("mon", "ceph-mon", "-i", "a")

    def _start_manager(self) -> None:
        self.key("mgr.x", mon="allow profile mgr", osd="allow *")
        self._start("mgr", "ceph-mgr", "-i", "x")

    def _make_osd(self) -> None:
        osd = str(uuid.uuid4())
        self.admin("osd", "new", osd)
        self.key("osd.0", mon="allow profile osd", mgr="allow profile osd", osd="allow *")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)

    def _keyring(self, name: str) -> Path:
        return self.root / f"keyring.{name}"

    def _command(self, program: str) -> list[str]:
        return [program, f"--conf={self.conf}"]

    def _run(self, program: str, *words: str, timeout: float = PATIENCE) -> str:
        return run(*self._command(program), *words, timeout=timeout)

    def _start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        words = [*self._command(command[0]), *command[1:], "--foreground"]
        with (self.root / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(words, stdout=out, stderr=out, env=environment)


def run(*command: object, timeout: float = PATIENCE) -> str:
    """Run a program and return what it prints; fail with what it says."""
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, timeout=timeout)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout.decode(errors="replace")  # nbdinfo(1) shows what file(1) makes of random data


def eventually(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.2)


def connect_hosts(*names: str) -> None:
    """Make a bridge with the address of the cluster, and network namespaces, as hosts, that are connected to it."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "lab", "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", "lab")
    run("ip", "link", "set", "lab", "up")
    for number, name in enumerate(names, 11):
        run("ip", "netns", "add", name)
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", name, "master", "lab", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", address_of(number), "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")


def address_of(number: int) -> str:
    """Return the address, with its prefix, of a host."""
    return f"{ADDRESS.rpartition('.')[0]}.{number}/24"


if __name__ == "__main__":  # for a look by hand, in a network namespace of its own: until a line is entered
    connect_hosts()
    cluster = Cluster(Path(os.environ["CLUSTER"]))
    print(cluster.conf, flush=True)
    input()
    cluster.stop()
