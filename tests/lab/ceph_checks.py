# SPDX-License-Identifier: Apache-2.0
"""Images on a real Ceph cluster: what tests/lab/ceph runs in its tree."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .ceph_cluster import PATIENCE, POOL, USER, Cluster, connect_hosts, eventually, run
from .small_daemon import PORT, Daemon, running_daemon

MiB = 1 << 20
#: Of images: some objects of 4 MiB, and the beginning of one.
SIZE = 97 * MiB
HOSTS = ("one", "two")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    connect_hosts(*HOSTS)
    made = Cluster(Path("/cluster"))
    made.rbd("namespace", "create", f"{POOL}/tenant")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def hosts(cluster: Cluster) -> Iterator[tuple[Daemon, Daemon]]:
    with running_on(HOSTS[0], cluster) as one, running_on(HOSTS[1], cluster, PORT + 1) as two:
        yield one, two


@pytest.fixture(scope="module")
def daemon(hosts: tuple[Daemon, Daemon]) -> Daemon:
    return hosts[0]


@pytest.fixture(scope="module")
def left(cluster: Cluster) -> Iterator[list[str]]:
    """Images that a killed client has for 30 s: a test adds them, and they are removed after all tests."""
    images: list[str] = []
    yield images
    for image in images:
        eventually(partial(removed, cluster, image), "the client that was killed is forgotten")


@pytest.fixture
def image(cluster: Cluster, left: list[str], request: pytest.FixtureRequest) -> Iterator[str]:
    """A new image of SIZE; its name without the pool."""
    name = re.sub(r"\W", "-", request.node.name)[:60]
    cluster.rbd("create", f"{POOL}/{name}", "--size", f"{SIZE}B")
    yield name
    if name not in left:
        cluster.rbd("snap", "purge", f"{POOL}/{name}")
        cluster.rbd("rm", f"{POOL}/{name}")


def removed(cluster: Cluster, image: str) -> bool:
    """Remove an image, if nobody has it."""
    try:
        cluster.rbd("rm", f"{POOL}/{image}")
    except AssertionError:
        return False
    return True


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sparse file of SIZE: data at its beginning, in the middle, across objects, and at its end."""
    path = tmp_path / "source"
    with path.open("wb") as file:
        for offset, length in ((0, 5 * MiB), (22 * MiB + 4096, 3 * MiB), (40 * MiB + 512, 512), (SIZE - 4096, 4096)):
            file.seek(offset)
            file.write(random.Random(offset).randbytes(length))
    return path


def running_on(host: str, cluster: Cluster, port: int = PORT, **how: Any) -> Any:
    more = f"[backend_rbd]\nconf = {cluster.conf}\nuser = {USER}\nallowed_pools = {POOL}\n"
    more += "[control]\nremove_timeout = 5\n"
    return running_daemon(port, more=more, command=("ip", "netns", "exec", host), **how)


def url(image: str) -> str:
    return f"rbd:{POOL}/{image}"


def client(daemon: Daemon, *words: object, status: int = 0) -> dict[str, Any]:
    """Run imageio-client by the unix socket of a daemon and return its last event."""
    return finish(start_client(daemon, *words), status)


def start_client(daemon: Daemon, *words: object) -> "subprocess.Popen[str]":
    command, *rest = map(str, words)
    program = [sys.executable, "-m", "imageio_daemon.client.cli", command, "--json"]
    if command != "checksum" and any(word.startswith("http:") for word in rest):
        program.append(f"--unix-socket={daemon.local}")
    return subprocess.Popen([*program, *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]", status: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, err
    events = [json.loads(line) for line in out.splitlines()]
    return events[-1] if events else {}


# Transfers


def test_what_is_uploaded_is_what_rbd_export_reads(
    cluster: Cluster, daemon: Daemon, image: str, source: Path, tmp_path: Path
) -> None:
    daemon.add_ticket("up", url(image), SIZE, ops=["read", "write"])
    client(daemon, "upload", "--verify", source, daemon.url("up"))
    assert cluster.export(f"{POOL}/{image}") == source.read_bytes()
    client(daemon, "download", "--verify", daemon.url("up"), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    told = daemon.get("up", "/extents").json()
    assert [e["length"] % (4 * MiB) for e in told[:-1]] == [0] * (len(told) - 1), told
    assert sum(extent["length"] for extent in told if extent["zero"]) >= 60 * MiB, told
    daemon.remove_ticket("up")
    used = json.loads(cluster.rbd("du", "--format=json", f"{POOL}/{image}"))["images"][0]["used_size"]
    assert used <= 33 * MiB, "zeros took space"


def test_larger_ticket_serves_what_an_image_of_a_namespace_has(cluster: Cluster, daemon: Daemon, source: Path) -> None:
    cluster.rbd("create", f"{POOL}/tenant/disk", "--size", f"{SIZE}B")
    daemon.add_ticket("larger", url("tenant/disk"), 2**40, ops=["read", "write"])
    assert int(daemon.get("larger").headers["Content-Length"]) == SIZE
    client(daemon, "upload", source, daemon.url("larger"))
    daemon.remove_ticket("larger")
    assert cluster.export(f"{POOL}/tenant/disk") == source.read_bytes()
    cluster.rbd("rm", f"{POOL}/tenant/disk")


def test_image_of_parts_of_sectors_is_refused(cluster: Cluster, daemon: Daemon, left: list[str]) -> None:
    """qemu 7.2 ends with an assertion when it is asked for extents at the end of such an image."""
    cluster.rbd("create", f"{POOL}/tenant/odd", "--size", "1000003B")
    left.append("tenant/odd")
    daemon.add_ticket("odd", url("tenant/odd"), SIZE, ops=["read"])
    answer = daemon.get("odd", "/extents", status=None)
    assert answer.headers["X-Error-Code"] == "server_gone"
    eventually(lambda: "Assertion `offset + bytes <= s->image_size' failed" in daemon.log, "the log tells why")
    daemon.remove_ticket("odd")


def test_image_of_parts_of_sectors_is_written(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    size = 10 * MiB + 3
    source = tmp_path / "source"
    source.write_bytes(random.Random(4).randbytes(MiB) + bytes(size - MiB - 3) + b"end")
    cluster.rbd("create", f"{POOL}/tenant/parts", "--size", f"{size}B")
    daemon.add_ticket("parts", url("tenant/parts"), size)
    assert daemon.options("parts")["zero_state"] == "zero"
    client(daemon, "upload", source, daemon.url("parts"))
    daemon.remove_ticket("parts")
    assert cluster.export(f"{POOL}/tenant/parts") == source.read_bytes()
    cluster.rbd("rm", f"{POOL}/tenant/parts")


def test_zeros_need_not_be_sent_to_a_new_image_until_any_host_has_written_to_it(
    cluster: Cluster, hosts: tuple[Daemon, Daemon], image: str, source: Path
) -> None:
    for daemon in hosts:
        daemon.add_ticket("new", url(image), SIZE)
        assert daemon.options("new")["zero_state"] == "zero"
    hosts[1].upload("new", SIZE - 9 * MiB, b"data", flush=False)
    assert [daemon.options("new")["zero_state"] for daemon in hosts] == ["unknown", "unknown"]
    told = client(hosts[0], "upload", source, hosts[0].url("new"))
    assert told["zero"] > 80 * MiB, told
    for daemon in hosts:
        daemon.remove_ticket("new")
    assert cluster.export(f"{POOL}/{image}") == source.read_bytes()


def test_nothing_is_known_of_a_clone_to_which_nobody_has_written(
    cluster: Cluster, daemon: Daemon, image: str, source: Path
) -> None:
    daemon.add_ticket("parent", url(image), SIZE)
    client(daemon, "upload", source, daemon.url("parent"))
    daemon.remove_ticket("parent")
    cluster.rbd("snap", "create", f"{POOL}/{image}@s")
    clone = f"{POOL}/tenant/clone"
    cluster.rbd("clone", "--rbd-default-clone-format", 2, f"{POOL}/{image}@s", clone)
    daemon.add_ticket("clone", url("tenant/clone"), SIZE)
    assert daemon.options("clone")["zero_state"] == "unknown"
    (source.parent / "zeros").touch()
    os.truncate(source.parent / "zeros", SIZE)
    client(daemon, "upload", source.parent / "zeros", daemon.url("clone"))
    daemon.remove_ticket("clone")
    assert cluster.export(clone) == bytes(SIZE)
    cluster.rbd("rm", clone)


def test_upload_that_was_ended_goes_on(cluster: Cluster, image: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(random.Random(2).randbytes(SIZE))
    (tmp_path / "state").mkdir(mode=0o700)
    with running_on(HOSTS[0], cluster, PORT + 2, state=tmp_path / "state") as daemon:
        daemon.add_ticket("resume", url(image), SIZE, rate=16 * MiB)
        address = daemon.url("resume").replace(str(PORT), str(PORT + 2))
        first = start_client(daemon, "upload", tmp_path / "source", address)
        eventually(lambda: daemon.status("resume")["transferred"] > 20 * MiB, "some of it is there")
        first.terminate()
        finish(first, 143)
        daemon.change_ticket("resume", timeout=3600, rate=0)
        second = client(daemon, "upload", tmp_path / "source", address)
        print("second upload:", second)
        assert 0 < second["data"] < SIZE - 16 * MiB
        daemon.remove_ticket("resume")
    assert cluster.export(f"{POOL}/{image}") == (tmp_path / "source").read_bytes()


# Increments


def test_changing_image_is_backed_up_by_increments_and_restored(
    cluster: Cluster, daemon: Daemon, image: str, source: Path, tmp_path: Path
) -> None:
    daemon.add_ticket("disk", url(image), SIZE, ops=["read", "write"])
    client(daemon, "upload", source, daemon.url("disk"))
    copy = tmp_path / "copy"
    cluster.rbd("snap", "create", f"{POOL}/{image}@b0")
    daemon.add_ticket("full", url(f"{image}@b0"), SIZE, ops=["read"])
    client(daemon, "download", daemon.url("full"), copy)
    daemon.remove_ticket("full")
    chosen = random.Random(3)
    with ThreadPoolExecutor(1) as pool:
        for backup in range(1, 4):
            for _ in range(4):
                daemon.upload("disk", chosen.randrange(SIZE // 512 - 99) * 512, chosen.randbytes(4096), flush=True)
            daemon.patch("disk", json.dumps({"op": "zero", "offset": 24 * MiB, "size": backup * 4 * MiB}))
            cluster.rbd("snap", "create", f"{POOL}/{image}@b{backup}")
            expected = cluster.export(f"{POOL}/{image}@b{backup}")
            since, name = f"b{backup - 1}", f"backup{backup}"
            daemon.add_ticket(name, url(f"{image}@b{backup}"), SIZE, ops=["read"], dirty=True, since=since)
            # The image changes meanwhile; its snapshot does not.
            late = pool.submit(daemon.upload, "disk", (50 + backup) * MiB, chosen.randbytes(MiB), flush=True)
            told = client(daemon, "download", "--dirty", daemon.url(name), copy)
            late.result()
            assert 0 < told["data"] <= 40 * MiB, told
            assert copy.read_bytes() == expected
            daemon.remove_ticket(name)
    daemon.add_ticket("now", url(image), SIZE, ops=["read"], dirty=True, since="b3")
    dirty = [extent for extent in daemon.get("now", "/extents?context=dirty").json() if extent["dirty"]]
    assert dirty == [{"start": 52 * MiB, "length": 4 * MiB, "dirty": True, "zero": False}], dirty
    daemon.remove_ticket("now")
    daemon.remove_ticket("disk")
    cluster.rbd("create", f"{POOL}/restored", "--size", f"{SIZE}B")
    daemon.add_ticket("restored", url("restored"), SIZE)
    client(daemon, "upload", copy, daemon.url("restored"))
    daemon.remove_ticket("restored")
    assert cluster.export(f"{POOL}/restored") == expected
    cluster.rbd("rm", f"{POOL}/restored")


def test_snapshot_that_is_not_there_tells_no_changes(daemon: Daemon, image: str) -> None:
    daemon.add_ticket("none", url(image), SIZE, ops=["read"], dirty=True, since="never")
    assert daemon.get("none", "/extents?context=dirty", status=404).headers["X-Error-Code"] == "not_found"
    daemon.remove_ticket("none")


# NBD


def test_nbd_clients_read_write_zero_trim_and_see_holes(
    cluster: Cluster, daemon: Daemon, image: str, source: Path, tmp_path: Path
) -> None:
    daemon.add_ticket("nbd", url(image), SIZE, ops=["read", "write"])
    uri = daemon.nbd_uri("nbd")
    run("nbdcopy", "--flush", source, uri)
    assert cluster.export(f"{POOL}/{image}") == source.read_bytes()
    print(run("nbdinfo", uri))
    print(run("nbdinfo", "--map", uri))
    run("nbdcopy", uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    run("qemu-io", "-f", "raw", "-c", "write -z -u -n 0 8M", "-c", "read -P 0 0 8M", uri)  # fast, may be freed
    run("qemu-io", "-f", "raw", "-c", "write -z -u -n 22M 700k", "-c", "read -P 0 22M 700k", uri)
    fast_and_allocated = ["qemu-io", "-f", "raw", "-c", "write -z -n 12M 4M", uri]
    assert b"not supported" in subprocess.run(fast_and_allocated, check=False, capture_output=True).stdout
    run("qemu-io", "-f", "raw", "-c", "write -z 12M 4M", "-c", "read -P 0 12M 4M", uri)  # stays allocated
    run(
        "qemu-io",
        "-f",
        "raw",
        "-c",
        "write -z -u -n 30M 512",
        "-c",
        "write -P 7 -f 16M 64k",
        "-c",
        "discard 16M 4M",
        uri,
    )
    daemon.remove_ticket("nbd")
    content = cluster.export(f"{POOL}/{image}")
    assert not any(content[: 8 * MiB])
    assert content[-4096:] == source.read_bytes()[-4096:]


# Faults


def test_stopped_osd_holds_up_its_requests_and_nobody_else(
    cluster: Cluster, daemon: Daemon, image: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(MiB))
    daemon.add_ticket("waits", url(image), SIZE)
    daemon.add_ticket("other", other, MiB)
    daemon.upload("waits", 0, b"a" * MiB, flush=True)
    data = random.Random(4).randbytes(8 * MiB)
    with ThreadPoolExecutor(1) as pool:
        cluster.signal_osd(signal.SIGSTOP)
        try:
            answer = pool.submit(daemon.upload, "waits", 0, data, flush=True)
            eventually(lambda: (daemon.status("waits")["storage_wait"] or 0) > 3, "storage_wait tells that it waits")
            began = time.monotonic()
            daemon.upload("other", 0, b"b" * MiB, flush=True)
            assert time.monotonic() - began < 5, "another ticket waited, too"
            assert not answer.done()
        finally:
            cluster.signal_osd(signal.SIGCONT)
        answer.result(timeout=120)
    daemon.remove_ticket("waits")
    daemon.remove_ticket("other")
    assert cluster.export(f"{POOL}/{image}")[: len(data)] == data


def test_log_names_an_image_whose_storage_hangs(cluster: Cluster, daemon: Daemon, image: str) -> None:
    daemon.add_ticket("hangs", url(image), SIZE)
    daemon.upload("hangs", 0, b"a" * MiB, flush=True)
    with ThreadPoolExecutor(1) as pool:
        cluster.signal_osd(signal.SIGSTOP)
        try:
            answer = pool.submit(daemon.upload, "hangs", 0, b"b" * MiB, flush=True)
            eventually(lambda: re.search(f"storage hangs: .*{url(image)}", daemon.log), "the log tells")
        finally:
            cluster.signal_osd(signal.SIGCONT)
        answer.result(timeout=120)
    daemon.remove_ticket("hangs")


def test_removal_while_the_osd_is_stopped_is_409_and_nothing_comes_later(
    cluster: Cluster, hosts: tuple[Daemon, Daemon], image: str
) -> None:
    """What was sent before a ticket was removed does not take effect over what the next ticket has written."""
    one, two = hosts
    one.add_ticket("removed", url(image), SIZE)
    one.upload("removed", 0, b"a" * MiB, flush=True)
    with ThreadPoolExecutor(1) as pool:
        cluster.signal_osd(signal.SIGSTOP)
        try:
            answer = pool.submit(_try_upload, one, "removed", b"b" * (8 * MiB))
            eventually(lambda: (one.status("removed")["storage_wait"] or 0) > 1, "it waits")
            one.remove_ticket("removed", status=409)
        finally:
            cluster.signal_osd(signal.SIGCONT)
        print("the upload got:", answer.result(timeout=120))
    one.remove_ticket("removed")
    two.add_ticket("next", url(image), SIZE)
    two.upload("next", 0, b"c" * (8 * MiB), flush=True)
    two.remove_ticket("next")
    assert set(cluster.export(f"{POOL}/{image}")[: 8 * MiB]) == set(b"c")


def _try_upload(daemon: Daemon, name: str, data: bytes) -> object:
    try:
        daemon.upload(name, 0, data, flush=True)
    except Exception as e:  # noqa: BLE001 - any end is right, but it comes
        return repr(e)
    return 200


def test_nbd_client_is_told_that_the_image_cannot_be_opened(cluster: Cluster, daemon: Daemon, image: str) -> None:
    """The time-out of the negotiation, 10 s, is for what the client takes."""
    daemon.add_ticket("silent", url(image), SIZE, ops=["read"])
    cluster.signal_osd(signal.SIGSTOP)
    try:
        command = ["qemu-img", "info", daemon.nbd_uri("silent")]
        asked = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE)
    finally:
        cluster.signal_osd(signal.SIGCONT)
    assert b"the image cannot be opened" in asked.stderr, asked
    daemon.remove_ticket("silent")


def test_what_a_daemon_leaves_that_is_killed_while_it_opens_is_in_nobodys_way(cluster: Cluster, image: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        try:
            with running_on(HOSTS[0], cluster, PORT + 4) as killed:  # its directory is removed, as by the next daemon
                killed.add_ticket("killed", url(image), SIZE)
                cluster.signal_osd(signal.SIGSTOP)
                answer = pool.submit(_try_upload, killed, "killed", b"a" * MiB)
                eventually(lambda: servers_of(image), "it opens the image")
                killed.kill()
                print("the upload got:", answer.result(timeout=60))
            assert servers_of(image), "nothing is left"
            with running_on(HOSTS[0], cluster, PORT + 5) as daemon:
                daemon.add_ticket("next", url(image), SIZE)
                late = pool.submit(_try_upload, daemon, "next", b"b" * MiB)
                cluster.signal_osd(signal.SIGCONT)
                assert late.result(timeout=60) == 200
                daemon.remove_ticket("next")
        finally:
            cluster.signal_osd(signal.SIGCONT)
    eventually(lambda: not servers_of(image), "it ends")
    assert set(cluster.export(f"{POOL}/{image}")[:MiB]) == set(b"b")


def servers_of(image: str) -> list[str]:
    """Return the processes of qemu-nbd that have an image, or are about to."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if words.startswith(b"qemu-nbd\0") and image.encode() in words:
            found.append(process.name)
    return found


def test_upload_goes_on_after_the_osd_was_killed(cluster: Cluster, daemon: Daemon, image: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(random.Random(5).randbytes(SIZE))
    daemon.add_ticket("killed", url(image), SIZE, rate=32 * MiB)
    upload = start_client(daemon, "upload", tmp_path / "source", daemon.url("killed"))
    eventually(lambda: daemon.status("killed")["transferred"] > 20 * MiB, "some of it is there")
    cluster.kill_osd()
    time.sleep(3)
    assert upload.poll() is None, "it did not wait"
    cluster.start_osd()
    finish(upload)
    daemon.remove_ticket("killed")
    assert cluster.export(f"{POOL}/{image}") == (tmp_path / "source").read_bytes()


def interrupted_download(daemon: Daemon, source: Path, image: str) -> "subprocess.Popen[str]":
    """Return a client that writes the source to an image, and has done a part of it."""
    daemon.add_ticket("read", source, SIZE, ops=["read"], rate=16 * MiB)
    download = start_client(daemon, "download", daemon.url("read"), url(image))
    eventually(lambda: daemon.status("read")["transferred"] > 20 * MiB, "some of it is there")
    return download


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    (tmp_path / "dense").write_bytes(random.Random(6).randbytes(SIZE))
    return tmp_path / "dense"


def test_interrupted_client_gives_the_image_to_the_next_one_at_once(
    cluster: Cluster, daemon: Daemon, image: str, dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPH_CONF", str(cluster.conf))
    monkeypatch.setenv("CEPH_ARGS", f"--id {USER}")
    download = interrupted_download(daemon, dense, image)
    began = time.monotonic()
    download.send_signal(signal.SIGINT)
    finish(download, 130)
    ended = time.monotonic()
    daemon.change_ticket("read", timeout=3600, rate=0)
    client(daemon, "download", daemon.url("read"), url(image))
    print(f"end after {ended - began:.1f} s, next download {time.monotonic() - ended:.1f} s")
    assert time.monotonic() - ended < 15, "it waited for the lock of the first one"
    daemon.remove_ticket("read")
    assert cluster.export(f"{POOL}/{image}") == dense.read_bytes()


def test_interrupted_client_does_not_wait_for_the_osd(
    cluster: Cluster, daemon: Daemon, image: str, dense: Path, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left.append(image)
    monkeypatch.setenv("CEPH_CONF", str(cluster.conf))
    monkeypatch.setenv("CEPH_ARGS", f"--id {USER}")
    download = interrupted_download(daemon, dense, image)
    cluster.signal_osd(signal.SIGSTOP)
    try:
        began = time.monotonic()
        download.send_signal(signal.SIGINT)
        finish(download, 130)
        assert time.monotonic() - began < 15
    finally:
        cluster.signal_osd(signal.SIGCONT)
    daemon.remove_ticket("read")


#: How to make the pool full, and to have room again. The ratios have to be in order.
QUOTA = ("osd pool set-quota images max_bytes 16777216",), ("osd pool set-quota images max_bytes 0",)
RATIOS = (
    tuple(
        f"osd set-{kind}-ratio {ratio}"
        for kind, ratio in (("nearfull", 0.001), ("backfillfull", 0.002), ("full", 0.003))
    ),
    tuple(
        f"osd set-{kind}-ratio {ratio}" for kind, ratio in (("full", 0.95), ("backfillfull", 0.90), ("nearfull", 0.85))
    ),
)


@pytest.mark.parametrize(("fill", "make_room"), [QUOTA, RATIOS], ids=["quota", "ratio"])
def test_upload_to_a_full_pool_waits_for_room(
    cluster: Cluster, daemon: Daemon, image: str, tmp_path: Path, fill: Sequence[str], make_room: Sequence[str]
) -> None:
    (tmp_path / "source").write_bytes(random.Random(6).randbytes(SIZE))
    daemon.add_ticket("full", url(image), SIZE)
    daemon.upload("full", 0, b"a" * (32 * MiB), flush=True)
    for line in fill:
        cluster.admin(*line.split())
    try:
        eventually(lambda: is_full(cluster), "the cluster says that it is full")
        print(cluster.admin("health", "detail"))
        upload = start_client(daemon, "upload", "--no-state", tmp_path / "source", daemon.url("full"))
        eventually(lambda: upload.poll() is not None or (daemon.status("full")["storage_wait"] or 0) > 5, "it waits")
        assert upload.poll() is None, upload.communicate()
    finally:
        for line in make_room:
            cluster.admin(*line.split())
        eventually(lambda: not is_full(cluster), "there is room")
    finish(upload)
    daemon.remove_ticket("full")
    assert cluster.export(f"{POOL}/{image}") == (tmp_path / "source").read_bytes()


def test_image_of_a_full_pool_cannot_be_opened_until_there_is_room(
    cluster: Cluster, daemon: Daemon, image: str
) -> None:
    """librbd writes to the header of what it opens, for tickets that only read, too."""
    cluster.rbd("bench", "--io-type=write", "--io-size=4M", "--io-total=32M", f"{POOL}/{image}")
    for line in QUOTA[0]:
        cluster.admin(*line.split())
    try:
        eventually(lambda: is_full(cluster), "the cluster says that it is full")
        daemon.add_ticket("writes", url(image), SIZE)
        daemon.add_ticket("reads", url(image), SIZE, ops=["read"])
        daemon.upload("writes", 0, b"a" * MiB, flush=True, status=500)
        daemon.get("reads", status=500)
        assert "does its storage answer, and has it room?" in daemon.log
    finally:
        for line in QUOTA[1]:
            cluster.admin(*line.split())
        eventually(lambda: not is_full(cluster), "there is room")
    daemon.upload("writes", 0, b"a" * MiB, flush=True)
    assert len(daemon.get("reads").body) == SIZE
    for name in ("writes", "reads"):
        daemon.remove_ticket(name)
    assert cluster.export(f"{POOL}/{image}")[:MiB] == b"a" * MiB


def is_full(cluster: Cluster) -> bool:
    return re.search("POOL_FULL|OSD_FULL", cluster.admin("health", "detail")) is not None


# Two hosts


def test_two_hosts_serve_an_image_in_turn(cluster: Cluster, hosts: tuple[Daemon, Daemon], image: str) -> None:
    content = bytearray(SIZE)
    chosen = random.Random(7)
    for turn in range(10):
        daemon = hosts[turn % 2]
        daemon.add_ticket("turn", url(image), SIZE, ops=["read", "write"])
        assert daemon.get("turn").body == content
        offset, data = chosen.randrange(SIZE - MiB), chosen.randbytes(MiB)
        daemon.upload("turn", offset, data, flush=True)
        content[offset : offset + MiB] = data
        daemon.remove_ticket("turn")
    assert cluster.export(f"{POOL}/{image}") == content


def test_two_hosts_write_to_an_image_at_the_same_time(
    cluster: Cluster, hosts: tuple[Daemon, Daemon], image: str
) -> None:
    """Each hands the lock of the image over to the other, for each request if need be."""
    for daemon in hosts:
        daemon.add_ticket("both", url(image), SIZE)
    with ThreadPoolExecutor(2) as pool:
        for n in range(5):
            answers = [
                pool.submit(daemon.upload, "both", (2 * n + k) * MiB, bytes([2 * n + k + 1]) * MiB, flush=True)
                for k, daemon in enumerate(hosts)
            ]
            for answer in answers:
                answer.result(timeout=60)
    for daemon in hosts:
        daemon.remove_ticket("both")
    content = cluster.export(f"{POOL}/{image}")
    assert [content[n * MiB : (n + 1) * MiB] == bytes([n + 1]) * MiB for n in range(10)] == [True] * 10


# Mistakes


@pytest.mark.parametrize(
    ("place", "code", "log"),
    [
        (f"rbd:{POOL}/never", "storage_gone", "error reading header from never: No such file or directory"),
        (f"rbd:{POOL}/never@snapshot", "storage_gone", "error reading header"),
        (f"rbd:{POOL}/nowhere/never", "storage_gone", "namespace 'nowhere' does not exist"),
        ("rbd:other/never", "storage_permission", "(other is not in [backend_rbd] allowed_pools)"),
    ],
)
def test_what_is_not_there_is_told(daemon: Daemon, place: str, code: str, log: str) -> None:
    began = time.monotonic()
    daemon.add_ticket("wrong", place, SIZE, ops=["read"])
    assert daemon.get("wrong", status=500).headers["X-Error-Code"] == code
    daemon.remove_ticket("wrong")
    assert log in daemon.log
    assert time.monotonic() - began < 5


def silent(cluster: Cluster, directory: Path) -> Path:
    """Return a configuration whose monitor does not answer."""
    path = directory / "silent.conf"
    path.write_text(re.sub(r"mon host = .*", "mon host = 10.77.0.99", cluster.conf.read_text()))
    return path


@pytest.mark.parametrize(
    ("option", "log"),
    [
        (f"allowed_pools = {POOL}, never", "error opening pool never: No such file or directory"),
        ("user = nobody", "error connecting: No such file or directory"),
        ("conf = /never", "error reading conf file /never: No such file or directory"),
    ],
)
def test_mistake_of_the_operator_is_told(cluster: Cluster, tmp_path: Path, option: str, log: str) -> None:
    told = {"conf": str(cluster.conf), "user": USER, "allowed_pools": POOL}
    key, _, value = option.partition(" = ")
    told[key] = value
    more = "[backend_rbd]\n" + "".join(f"{key} = {value}\n" for key, value in told.items())
    pool = "never" if "never" in told["allowed_pools"] else POOL
    with running_daemon(PORT + 3, more=more) as daemon:
        daemon.add_ticket("wrong", f"rbd:{pool}/never", SIZE, ops=["read"])
        began = time.monotonic()
        answer = daemon.get("wrong", status=500)
        assert time.monotonic() - began < 10
        daemon.remove_ticket("wrong")
        assert answer.headers["X-Error-Code"] == "storage_gone"
        assert log in daemon.log
    checked = run_check(tmp_path, more)
    print(checked)
    assert "failed" in checked


def test_monitors_that_do_not_answer_are_waited_for_once(cluster: Cluster, tmp_path: Path) -> None:
    more = f"[backend_rbd]\nconf = {silent(cluster, tmp_path)}\nallowed_pools = {POOL}\n"
    with running_daemon(PORT + 3, more=more) as daemon:
        daemon.add_ticket("silent", url("disk"), SIZE, ops=["read"])
        began = time.monotonic()
        answer = daemon.get("silent", status=500)
        took = time.monotonic() - began
        print(f"{answer.headers['X-Error-Code']} after {took:.1f} s")
        daemon.remove_ticket("silent")
        assert answer.headers["X-Error-Code"] == "storage_io"
        assert 20 <= took < 40
        assert "Connection timed out" in daemon.log


def run_check(directory: Path, more: str, *paths: str) -> str:
    """Return what imageioctl check prints of Ceph."""
    conf = directory / "conf.d"
    conf.mkdir(exist_ok=True)
    (conf / "lab.conf").write_text(f"[tls]\nenable = false\n[daemon]\ndrop_privileges = false\n{more}")
    command = [sys.executable, "-m", "imageio_daemon.checks", directory, *paths]
    found = [json.loads(line) for line in run(*command).splitlines()]
    return "\n".join(f"{f['verdict']} {f['text']}" for f in found if f["check"] in ("ceph", "image"))


def test_check_finds_pools_and_images(cluster: Cluster, daemon: Daemon, image: str, tmp_path: Path) -> None:
    more = f"[backend_rbd]\nconf = {cluster.conf}\nuser = {USER}\nallowed_pools = {POOL}\n"
    checked = run_check(tmp_path, more, url(image), url("never"), "rbd:other/disk", "rbd:")
    print(checked)
    assert [line.split()[0] for line in checked.splitlines()] == ["ok", "ok", "failed", "failed", "failed"]


def test_check_tells_what_a_key_of_one_namespace_is_for(cluster: Cluster, image: str, tmp_path: Path) -> None:
    cluster.key("client.tenant", mon="profile rbd", osd=f"profile rbd pool={POOL} namespace=tenant")

    def checked(place: str) -> list[str]:
        more = f"[backend_rbd]\nconf = {cluster.conf}\nuser = tenant\nallowed_pools = {place}\n"
        found = run_check(tmp_path, more)
        print(found)
        return found.splitlines()

    (failed,) = checked(POOL)
    assert failed.startswith("failed")
    assert f"then: {POOL}/NAMESPACE)" in failed
    (reached,) = checked(f"{POOL}/tenant")
    assert reached.startswith("ok")
    (refused,) = checked(f"{POOL}/other")
    assert refused.startswith("failed")


def test_check_waits_once_for_monitors_that_do_not_answer(cluster: Cluster, tmp_path: Path) -> None:
    more = f"[backend_rbd]\nconf = {silent(cluster, tmp_path)}\nallowed_pools = {POOL}, one, two, three\n"
    began = time.monotonic()
    checked = run_check(tmp_path, more, url("disk")).splitlines()
    assert time.monotonic() - began < 25
    assert [line.startswith("failed") and "does not answer" in line for line in checked] == [True] * 5


# The client's own side


def test_client_reads_and_writes_images_itself(
    cluster: Cluster, daemon: Daemon, image: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPH_CONF", str(cluster.conf))
    monkeypatch.setenv("CEPH_ARGS", f"--id {USER}")
    daemon.add_ticket("file", source, SIZE, ops=["read"])
    client(daemon, "download", "--verify", daemon.url("file"), url(image))
    assert cluster.export(f"{POOL}/{image}") == source.read_bytes()
    cluster.rbd("snap", "create", f"{POOL}/{image}@kept")
    (tmp_path / "copy").touch()
    os.truncate(tmp_path / "copy", SIZE)
    daemon.add_ticket("copy", tmp_path / "copy", SIZE)
    client(daemon, "upload", "--verify", url(f"{image}@kept"), daemon.url("copy"))
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert client(daemon, "checksum", url(image)) == client(daemon, "checksum", source)
    assert client(daemon, "info", url(image))["size"] == SIZE
    for name in ("file", "copy"):
        daemon.remove_ticket(name)


def test_client_tells_what_is_wrong(cluster: Cluster, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPH_CONF", str(cluster.conf))
    monkeypatch.setenv("CEPH_ARGS", f"--id {USER}")
    upload = start_client(daemon, "info", url("never"))
    _, err = upload.communicate(timeout=60)
    assert "error reading header from never: No such file or directory" in err
    assert upload.returncode not in (0, 1, -6), err
