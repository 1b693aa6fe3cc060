# SPDX-License-Identifier: Apache-2.0
"""virt-v2v and the examples of oVirt's SDK, with a small engine: what tests/lab/clients runs in its tree."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.clients_bench import ROOT, Bench, have, run, table
from tests.lab.fake_engine import CLUSTER, HARDWARE_ID, PASSWORD, STORAGE, USER, Engine, running_engine
from tests.lab.images import DATA, PATIENCE, compared
from tests.lab.phony_guest import check_imported, make_guest

LAB = ROOT / ".cache/lab"
EXAMPLES = LAB / "ovirt_sdk/examples"
PYTHON = LAB / "others-venv/bin/python"
TABLE = table("ovirt", "program")
IMPORTS = 10
#: What makes the server tell that it is a host of the engine's.
VDSM_ID = Path("/etc/vdsm/vdsm.id")
#: Without KVM, which a stock kernel does not survive on all hosts; virt-v2v takes 14/5 of the memory.
APPLIANCE = Path("/opt/appliance")
GUESTFS = {
    "LIBGUESTFS_BACKEND": "direct",
    "LIBGUESTFS_BACKEND_SETTINGS": "force_tcg",
    "LIBGUESTFS_PATH": str(APPLIANCE),
    "LIBGUESTFS_MEMSIZE": "300",
}


@pytest.fixture(scope="module")
def engine(bench: Bench) -> Iterator[Engine]:
    directory = bench.directory / "engine"
    directory.mkdir()
    (bench.directory / "password").write_text(PASSWORD)
    config = Path.home() / ".config"
    config.mkdir(exist_ok=True)
    with running_engine(bench.daemon, bench.daemon.certificates, directory) as engine:
        (config / "ovirt.conf").write_text(
            f"[lab]\nengine_url = {engine.url.removesuffix('/ovirt-engine/api')}\nusername = {USER}\n"
            f"password = {PASSWORD}\ncafile = {bench.cafile}\n"
        )
        yield engine
        assert engine.unknown == []


@pytest.fixture(scope="module")
def guest(bench: Bench) -> Iterator[Path]:
    have(TABLE, "virt-v2v", APPLIANCE / "root")
    disk = bench.directory / "guest.raw"
    make_guest(disk, DATA)
    yield disk
    disk.unlink()


@contextlib.contextmanager
def host_of_engine() -> Iterator[None]:
    """Let this be a host of the engine: clients use the unix socket then."""
    VDSM_ID.parent.mkdir()
    VDSM_ID.write_text(f"{HARDWARE_ID}\n")
    try:
        yield
    finally:
        VDSM_ID.unlink()
        VDSM_ID.parent.rmdir()


# virt-v2v


def virt_v2v(bench: Bench, engine: Engine, guest: Path, name: str) -> subprocess.Popen[str]:
    """Start an import; its output goes to a file of this name."""
    site = next((LAB / "others-venv/lib").glob("python3*/site-packages"))
    command = ["virt-v2v", "-i", "disk", guest, "-o", "rhv-upload", "-oc", engine.url, "-os", STORAGE]
    command += ["-op", bench.directory / "password", "-of", "raw", "-on", name, "-oo", f"rhv-cafile={bench.cafile}"]
    command += ["-oo", f"rhv-cluster={CLUSTER}", "-oo", "rhv-verifypeer=true"]
    with (bench.directory / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **GUESTFS, "PYTHONPATH": str(site), "TMPDIR": "/var/tmp"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
        )  # fmt: skip


def imported(bench: Bench, engine: Engine, guest: Path, names: list[str]) -> float:
    """Import the guest under all names at once, and compare the images. Return the seconds of the imports."""
    before = set(engine.disks)
    start = time.monotonic()
    programs = {name: virt_v2v(bench, engine, guest, name) for name in names}
    try:
        for name, program in programs.items():
            status = program.wait(600 + len(names) * PATIENCE)
            assert status == 0, (bench.directory / f"{name}.log").read_text()[-6000:]
    finally:
        for program in programs.values():
            program.kill()
    seconds = time.monotonic() - start
    made = [disk for id_, disk in engine.disks.items() if id_ not in before]
    assert len(made) == len(names)
    assert set(names) <= set(engine.machines)
    for disk in made:
        check_imported(guest, disk.path, bench.directory / "system")
        disk.path.unlink()
    assert {transfer.phase for transfer in engine.transfers.values()} == {"finished_success"}
    return seconds


def test_virt_v2v(bench: Bench, engine: Engine, guest: Path) -> None:
    seconds = imported(bench, engine, guest, ["one"])
    TABLE.set("virt-v2v", "over TLS", f"identical, {seconds:.0f} s")


def test_virt_v2v_on_a_host_of_the_engine(bench: Bench, engine: Engine, guest: Path) -> None:
    with host_of_engine():
        before = bench.daemon.served("local", "lane")["received"]
        seconds = imported(bench, engine, guest, ["local"])
        assert bench.daemon.served("local", "lane")["received"] - before >= DATA * 9 // 10
    TABLE.set("virt-v2v", "over the unix socket", f"identical, {seconds:.0f} s")


def test_imports_at_once(bench: Bench, engine: Engine, guest: Path) -> None:
    seconds = imported(bench, engine, guest, [f"at-once-{number}" for number in range(IMPORTS)])
    TABLE.set(f"virt-v2v, {IMPORTS} at once", "over TLS", f"identical, {seconds:.0f} s")


# The examples of the SDK


def example(bench: Bench, name: str, *arguments: object) -> None:
    """Run an example, with its helpers beside it."""
    have(TABLE, f"{name} of the SDK", EXAMPLES / name)
    run(PYTHON, EXAMPLES / name, "-c", "lab", "--logfile", bench.directory / "example.log", *arguments)


def uploaded(engine: Engine, before: set[str]) -> Path:
    (disk,) = [disk for id_, disk in engine.disks.items() if id_ not in before]
    return disk.path


@pytest.mark.parametrize("kind", ["raw", "qcow2"])
def test_upload_disk(bench: Bench, engine: Engine, kind: str) -> None:
    before = set(engine.disks)
    example(bench, "upload_disk.py", "--sd-name", STORAGE, "--disk-format", kind, "--disk-sparse", bench.source.path)
    copy = uploaded(engine, before)
    run("qemu-img", "compare", "-f", "raw", "-F", kind, bench.source.path, copy)
    TABLE.set("upload_disk.py of the SDK", f"a {kind} disk", "identical")


@pytest.mark.parametrize("kind", ["raw", "qcow2"])
def test_download_disk(bench: Bench, engine: Engine, kind: str) -> None:
    before = set(engine.disks)
    example(bench, "upload_disk.py", "--sd-name", STORAGE, "--disk-format", kind, "--disk-sparse", bench.source.path)
    (id_,) = set(engine.disks) - before
    copy = bench.directory / "download.raw"
    example(bench, "download_disk.py", "--format", "raw", id_, copy)
    TABLE.set("download_disk.py of the SDK", f"a {kind} disk", compared(bench.source.path, copy))
    copy.unlink()
    engine.disks.pop(id_).path.unlink()
