# SPDX-License-Identifier: Apache-2.0
"""Programs that others wrote, against a running daemon: over its unix socket and over TLS."""

import json
import os
import shutil
import subprocess
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemon import Certificates, Daemon, Section
from tests.support.images import pattern
from tests.support.polling import eventually
from tests.support.realstorage import Storage

KiB = 1024
MiB = 1024 * KiB
SIZE = 32 * MiB

Run = Callable[..., str]


@pytest.fixture(scope="module")
def nbd_daemon(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    socket = Path("/tmp") / f"nbd-{uuid.uuid4().hex[:8]}"
    nbd = {"enable": True, "host": "localhost", "port": 0, "socket": socket, "list": True}
    config: dict[str, Section] = {"nbd": nbd}
    with Daemon(certificates, config) as daemon:
        yield daemon


@dataclass(frozen=True)
class Export:
    """A ticket's image, and how clients name it."""

    path: Path
    ticket: str
    uri: str
    qemu: str  # --image-opts


@pytest.fixture(params=["unix", "tls"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def export(nbd_daemon: Daemon, way: str, tmp_path: Path, certificates: Certificates) -> Export:
    """A sparse image: 8 MiB of a pattern, a hole, 1 MiB of a pattern at the end."""
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.write(pattern(8 * MiB))
        file.seek(SIZE - MiB)
        file.write(pattern(MiB, 1))
    return make_export(nbd_daemon, path, way, tmp_path, certificates)


def make_export(
    daemon: Daemon, path: Path, way: str, directory: Path, certificates: Certificates, **fields: object
) -> Export:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)  # of a device, too
    ticket = daemon.add_ticket(path, size, **{"sparse": True, **fields})
    if way == "unix":
        match = daemon.log.find(r"service=nbd-local address=(\S+)")
        assert match is not None
        return Export(
            path,
            ticket,
            f"nbd+unix:///{ticket}?socket={match[1]}",
            f"driver=nbd,export={ticket},server.type=unix,server.path={match[1]}",
        )
    match = daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert match is not None
    credentials = directory / "pki"
    credentials.mkdir(exist_ok=True)
    shutil.copy(certificates.cafile, credentials / "ca-cert.pem")
    uri = f"nbds://localhost:{match[1]}/{ticket}?tls-certificates={credentials}"
    options = f"driver=nbd,export={ticket},server.type=inet,server.host=localhost,server.port={match[1]},tls-creds=tls0"
    return Export(path, ticket, uri, options)


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(*arguments: object, fails: bool = False) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(
        [str(argument) for argument in arguments], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode != 0) == fails, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def qemu(export: Export, program: str, command: str, *arguments: object) -> str:
    """Run a qemu program on the export; `IMAGE` among the arguments stands for it."""
    words: list[object] = [program]
    secret: tuple[str, ...] = ()
    if "tls-creds" in export.qemu:
        directory = export.uri.rpartition("=")[2]
        secret = ("--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={directory}")
    words += [command] if command else []
    words += [*secret, "--image-opts"]
    words += [export.qemu if argument == "IMAGE" else argument for argument in arguments]
    return run(*words)


def nbdkit_options(export: Export) -> list[str]:
    """Return what tells nbdkit's nbd plugin the export; it takes no file names in a URI."""
    parts = urllib.parse.urlsplit(export.uri)
    if parts.scheme == "nbd+unix":
        return [f"uri={export.uri}"]
    directory = urllib.parse.parse_qs(parts.query)["tls-certificates"][0]
    address = [f"hostname={parts.hostname}", f"port={parts.port}", f"export={export.ticket}"]
    return [*address, "tls=require", f"tls-certificates={directory}"]


# libnbd


def test_nbdinfo_tells_the_export(export: Export) -> None:
    need("nbdinfo")
    told = json.loads(run("nbdinfo", "--json", export.uri))
    (info,) = told["exports"]
    assert info["export-size"] == SIZE
    assert info["contexts"] == ["base:allocation"]
    assert told["TLS"] == export.uri.startswith("nbds")
    for what in ("can_fast_zero", "can_multi_conn", "can_cache", "can_df", "can_fua", "can_trim", "can_zero"):
        assert info[what], what
    assert run("nbdinfo", "--size", export.uri).strip() == str(SIZE)
    run("nbdinfo", "--can", "fast-zero", export.uri)


def test_nbdinfo_maps_data_and_holes(export: Export) -> None:
    need("nbdinfo")
    found = json.loads(run("nbdinfo", "--map", "--json", export.uri))
    assert [(e["offset"], e["length"], e["type"]) for e in found] == [
        (0, 8 * MiB, 0),
        (8 * MiB, 23 * MiB, 3),
        (31 * MiB, MiB, 0),
    ]


def test_nbdinfo_lists_exports_on_the_unix_socket_only(nbd_daemon: Daemon, export: Export, way: str) -> None:
    need("nbdinfo")
    uri = export.uri.replace(export.ticket, "")
    listed = run("nbdinfo", "--list", uri, fails=way == "tls")
    assert (f'export="{export.ticket}"' in listed) == (way == "unix")


@pytest.mark.parametrize("connections", [1, 4])
def test_nbdcopy_reads_the_image(export: Export, tmp_path: Path, connections: int) -> None:
    need("nbdcopy")
    copy = tmp_path / "copy"
    run("nbdcopy", f"--connections={connections}", export.uri, copy)
    assert copy.read_bytes() == export.path.read_bytes()
    assert copy.stat().st_blocks * 512 < 12 * MiB


@pytest.mark.parametrize("options", [["--connections=1"], ["--connections=4"], ["--destination-is-zero"]])
def test_nbdcopy_writes_the_image(export: Export, tmp_path: Path, options: list[str]) -> None:
    need("nbdcopy")
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.seek(4 * MiB)
        file.write(pattern(16 * MiB, 2))
        file.truncate(SIZE)
    if "--destination-is-zero" in options:
        os.truncate(export.path, 0)
        os.truncate(export.path, SIZE)
    run("nbdcopy", "--flush", *options, source, export.uri)
    assert export.path.read_bytes() == source.read_bytes()
    assert export.path.stat().st_blocks * 512 <= 17 * MiB


def test_nbdcopy_copies_from_export_to_export(
    nbd_daemon: Daemon, export: Export, way: str, tmp_path: Path, certificates: Certificates
) -> None:
    need("nbdcopy")
    path = tmp_path / "other"
    path.write_bytes(b"x" * SIZE)
    other = make_export(nbd_daemon, path, way, tmp_path, certificates)
    run("nbdcopy", "--flush", export.uri, other.uri)
    assert path.read_bytes() == export.path.read_bytes()


def test_nbdsh_uses_every_command(export: Export) -> None:
    need("nbdsh")
    script = """
h.add_meta_context("base:allocation")
h.set_uri_allow_local_file(True)
h.connect_uri(URI)
buf = bytearray(b"shell" * 1000)
h.pwrite(buf, 5, nbd.CMD_FLAG_FUA)
assert h.pread(5000, 5) == buf
assert h.pread_structured(5000, 5, lambda *a: 0, nbd.CMD_FLAG_DF) == buf
h.zero(100, 105, nbd.CMD_FLAG_FAST_ZERO)
h.zero(100, 205, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(200, 105) == bytes(200)
h.trim(1 << 20, 0)
h.cache(1 << 20, 0)
h.flush()
found = []
h.block_status(h.get_size(), 0, lambda context, offset, entries, error: found.extend(entries) or 0)
assert sum(found[::2]) >= h.get_size()
try:
    h.set_strict_mode(0)
    h.pwrite(b"x", h.get_size())
    raise SystemExit("a write past the end")
except nbd.Error as e:
    assert e.errno == "ENOSPC", e.errno
h.shutdown()
"""
    python = "/usr/bin/python3"  # whose module comes with nbdsh, whatever python3 is first in PATH
    run(python, "-m", "nbd", "-c", script.replace("URI", repr(export.uri)))


def test_nbdfuse_mounts_a_file_system_on_the_export(export: Export, tmp_path: Path) -> None:
    need("nbdfuse", "mkfs.ext4")
    if export.uri.startswith("nbds"):
        pytest.skip("nbdfuse takes no certificates of its own")
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no FUSE here")
    point = tmp_path / "mnt"
    point.mkdir()
    process = subprocess.Popen(["nbdfuse", point, export.uri])
    try:
        disk = point / "nbd"
        eventually(disk.exists, "nbdfuse serves")
        assert disk.stat().st_size == SIZE
        run("mkfs.ext4", "-q", "-F", disk)
        run("e2fsck", "-f", "-n", disk)
    finally:
        process.terminate()  # it unmounts
        process.wait(20)
    run("e2fsck", "-f", "-n", export.path)


def test_nbdkit_passes_the_export_on(export: Export, tmp_path: Path) -> None:
    need("nbdkit", "nbdcopy")
    copy = tmp_path / "copy"
    server = ["nbdkit", "-U", "-", "nbd", *nbdkit_options(export)]
    run(*server, "--run", f'nbdcopy "$uri" {copy}')
    assert copy.read_bytes() == export.path.read_bytes()
    source = tmp_path / "source"
    source.write_bytes(pattern(SIZE // 2, 5) + bytes(SIZE // 2))
    run(*server, "--run", f'nbdcopy --flush {source} "$uri"')
    assert export.path.read_bytes() == source.read_bytes()


# qemu


def test_qemu_img_info_and_map(export: Export) -> None:
    need("qemu-img")
    info = json.loads(qemu(export, "qemu-img", "info", "--output=json", "IMAGE"))
    assert info["virtual-size"] == SIZE
    found = json.loads(qemu(export, "qemu-img", "map", "--output=json", "IMAGE"))
    assert [(e["start"], e["length"], e["zero"]) for e in found] == [
        (0, 8 * MiB, False),
        (8 * MiB, 23 * MiB, True),
        (31 * MiB, MiB, False),
    ]


def test_qemu_img_converts_both_ways_and_compares(export: Export, tmp_path: Path) -> None:
    need("qemu-img")
    copy = tmp_path / "copy.qcow2"
    qemu(export, "qemu-img", "convert", "-O", "qcow2", "IMAGE", copy)
    qemu(export, "qemu-img", "compare", "IMAGE", f"driver=qcow2,file.driver=file,file.filename={copy}")
    export.path.write_bytes(b"x" * SIZE)
    qemu(
        export,
        "qemu-img",
        "convert",
        "-n",
        "-W",
        "--target-image-opts",
        f"driver=qcow2,file.driver=file,file.filename={copy}",
        "IMAGE",
    )
    assert export.path.read_bytes()[: 8 * MiB] == pattern(8 * MiB)
    assert export.path.read_bytes()[8 * MiB : 31 * MiB] == bytes(23 * MiB)


def test_qemu_img_bench_runs(export: Export, way: str) -> None:
    need("qemu-img")
    if way == "tls":
        pytest.skip("qemu-img bench cannot be told credentials")
    qemu(export, "qemu-img", "bench", "-c", 500, "-d", 16, "-s", 4096, "IMAGE")
    qemu(export, "qemu-img", "bench", "-w", "-c", 500, "-d", 16, "-s", 4096, "--pattern=7", "IMAGE")
    assert export.path.read_bytes()[: 2000 * KiB] == b"\7" * 2000 * KiB


def test_qemu_io_writes_zeros_and_discards(export: Export) -> None:
    need("qemu-io")
    commands = [
        "write -P 5 100 70000",
        "read -P 5 100 70000",
        "write -f -P 6 0 4k",
        "write -z 8k 4k",
        "write -z -n 0 64k",
    ]
    commands += ["write -z -u 64k 3k", "discard 1M 1M", "read -P 0 0 64k", "flush"]
    words: list[object] = []
    for command in commands:
        words += ["-c", command]
    assert "failed" not in qemu(export, "qemu-io", "", *words, "IMAGE")


def test_qcow2_is_created_filled_and_checked_on_the_export(export: Export, tmp_path: Path) -> None:
    need("qemu-img", "qemu-io")
    os.truncate(export.path, 0)
    os.truncate(export.path, SIZE)
    local = tmp_path / "empty.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", local, "24M")
    with export.path.open("r+b") as file:
        file.write(local.read_bytes())
    inner = Export(export.path, export.ticket, export.uri, f"driver=qcow2,file.{export.qemu.replace(',', ',file.')}")
    qemu(inner, "qemu-io", "", "-c", "write -P 9 1000 3M", "-c", "write -P 8 10M 4k", "-c", "flush", "IMAGE")
    qemu(inner, "qemu-io", "", "-c", "read -P 9 1000 3M", "-c", "read -P 8 10M 4k", "-c", "read -P 0 12M 4M", "IMAGE")
    assert "No errors" in qemu(inner, "qemu-img", "check", "IMAGE")


# Every storage


def test_copies_are_identical_on_every_storage(
    nbd_daemon: Daemon, storage: Storage, tmp_path: Path, certificates: Certificates
) -> None:
    need("nbdcopy", "nbdinfo", "qemu-img", "qemu-io")
    size = 12 * MiB
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.write(pattern(5 * MiB, 4))
        file.truncate(size - 3 * MiB)
        file.seek(size - 3 * MiB)
        file.write(pattern(3 * MiB, 5))
    export = make_export(nbd_daemon, storage.make(size), "unix", tmp_path, certificates)
    for connections in (1, 4):
        run("nbdcopy", "--flush", f"--connections={connections}", source, export.uri)
        copy = tmp_path / f"copy-{connections}"
        run("nbdcopy", f"--connections={connections}", export.uri, copy)
        assert copy.read_bytes() == source.read_bytes()
    qemu(export, "qemu-img", "compare", "IMAGE", f"driver=raw,file.driver=file,file.filename={source}")
    qemu(export, "qemu-io", "", "-c", "write -z 1M 2M", "-c", "write -z -u 100 70000", "-c", "discard 4M 1M", "IMAGE")
    qemu(export, "qemu-io", "", "-c", "read -P 0 1M 2M", "-c", "read -P 0 100 70000", "IMAGE")
    qemu(export, "qemu-img", "bench", "-w", "-c", 200, "-d", 16, "-s", 4096, "--pattern=7", "IMAGE")
    qemu(export, "qemu-io", "", "-c", f"read -P 7 0 {800 * KiB}", "IMAGE")
    mapped = json.loads(run("nbdinfo", "--map", "--json", export.uri))
    assert sum(extent["length"] for extent in mapped) == size
    nbd_daemon.remove(export.ticket)


# The daemon around it


def test_http_and_nbd_serve_one_image_at_once(nbd_daemon: Daemon, export: Export) -> None:
    need("nbdcopy")
    with nbd_daemon.connect("unix") as connection:
        answer = connection.request("PUT", f"/images/{export.ticket}", {"Content-Range": "bytes 0-4/*"}, b"HTTP!")
        assert answer.status == 200
        assert nbd_daemon.status(export.ticket)["connections"] == 1
        assert run("nbdcopy", export.uri, export.path.with_name("copy")) == ""
    assert export.path.with_name("copy").read_bytes()[:6] == b"HTTP!" + pattern(6)[5:]
    assert nbd_daemon.status(export.ticket)["transferred"] >= 5


def test_removed_ticket_is_served_no_more(nbd_daemon: Daemon, export: Export) -> None:
    need("nbdinfo")
    nbd_daemon.remove(export.ticket)
    assert "No such file" in run("nbdinfo", export.uri, fails=True)


def test_clear_text_over_tcp_is_refused(nbd_daemon: Daemon, export: Export, way: str) -> None:
    need("nbdinfo")
    if way == "unix":
        pytest.skip("the unix socket has no TLS")
    run("nbdinfo", export.uri.replace("nbds:", "nbd:"), fails=True)


def test_wrong_certificate_is_refused_by_the_client(
    nbd_daemon: Daemon, export: Export, tmp_path: Path, way: str
) -> None:
    need("nbdinfo")
    if way == "unix":
        pytest.skip("the unix socket has no TLS")
    other = Certificates.make(tmp_path)
    shutil.copy(other.cafile, tmp_path / "pki" / "ca-cert.pem")
    run("nbdinfo", export.uri, fails=True)
