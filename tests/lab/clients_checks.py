# SPDX-License-Identifier: Apache-2.0
"""Programs of others that fetch images or use them as disks: what tests/lab/clients runs in its tree."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.clients_bench import SMALL, Bench, run, table, wait_for
from tests.lab.images import DATA, compared

TABLE = table("clients", "program")

# Downloads, with several connections, and continued

Fetch = Callable[[Bench, str, Path], None]


def _rclone(bench: Bench, url: str, copy: Path) -> None:
    run("rclone", "copyurl", "--ca-cert", bench.cafile, "--config", "/dev/null", url, copy)


def _aria2(bench: Bench, url: str, copy: Path) -> None:
    how = ["-c", "-x", "8", "-s", "8", "-k", "1M", "--allow-overwrite=true", "--auto-file-renaming=false"]
    trust = f"--ca-certificate={bench.cafile}"
    run("aria2c", "--summary-interval=0", "--async-dns=false", *how, trust, "-d", copy.parent, "-o", copy.name, url)


def _lftp(bench: Bench, url: str, copy: Path) -> None:
    how = "get -c" if copy.exists() else "pget -n 8"
    run("lftp", "-c", f"set ssl:ca-file {bench.cafile}; set cmd:fail-exit yes; {how} {url} -o {copy}")


def _wget2(bench: Bench, url: str, copy: Path) -> None:
    trust = ["-q", f"--ca-certificate={bench.cafile}", "--no-hsts"]
    if not copy.exists():
        run("wget2", *trust, "--chunk-size=4M", "--max-threads=8", "-O", copy, url)
        return
    part = copy.with_name(url.rpartition("/")[2])  # with -O it begins anew
    copy.rename(part)
    run("wget2", *trust, "-c", "-P", copy.parent, url)
    part.rename(copy)


def _axel(bench: Bench, url: str, copy: Path) -> None:
    # It knows the names of a certificate's subject only, which is empty here.
    run("axel", "-q", "--insecure", "-n", "8", "-o", copy, url)


def _curl(bench: Bench, url: str, copy: Path) -> None:
    run("curl", "-sSf", "--cacert", bench.cafile, "-C", "-", "-o", copy, url)


FETCHERS: dict[str, Fetch] = {
    "rclone": _rclone,
    "aria2c": _aria2,
    "lftp": _lftp,
    "wget2": _wget2,
    "axel": _axel,
    "curl": _curl,
}


@pytest.mark.parametrize("name", FETCHERS)
def test_image_is_fetched(bench: Bench, name: str) -> None:
    ticket = bench.daemon.add_ticket(bench.source.dense, DATA, ops=["read"])
    copy = bench.directory / f"{name}.copy"
    FETCHERS[name](bench, bench.daemon.url(ticket), copy)
    TABLE.set(name, "read", compared(bench.source.dense, copy))
    copy.unlink()
    bench.daemon.remove(ticket)


@pytest.mark.parametrize("name", ["aria2c", "lftp", "wget2", "curl"])
def test_download_goes_on(bench: Bench, name: str) -> None:
    """With the first half of the image, as after an interruption."""
    ticket = bench.daemon.add_ticket(bench.source.dense, DATA, ops=["read"])
    copy = bench.directory / f"{name}.part"
    with bench.source.dense.open("rb") as file:
        copy.write_bytes(file.read(DATA // 2))
    FETCHERS[name](bench, bench.daemon.url(ticket), copy)
    sent = bench.daemon.status(ticket)["read"]
    assert sent <= DATA * 3 // 4, f"{sent} bytes were read of {DATA}: it began anew"
    TABLE.set(name, "continued", compared(bench.source.dense, copy))
    copy.unlink()
    bench.daemon.remove(ticket)


# NBD clients


def test_fio(bench: Bench) -> None:
    path = bench.new_disk("fio")
    ticket = bench.daemon.add_ticket(path, SMALL, ops=["read", "write"])
    run("fio", "--name=lab", "--ioengine=nbd", f"--uri={bench.nbd_uri(ticket)}", "--rw=randwrite", "--bs=4k-64k",
        f"--size={SMALL}", "--iodepth=16", "--verify=crc32c", "--do_verify=1", "--verify_state_save=0")  # fmt: skip
    TABLE.set("fio (nbd)", "written", "as read, 64 MiB at random")
    bench.daemon.remove(ticket)


def test_nbdfuse(bench: Bench) -> None:
    if not Path("/dev/fuse").exists():
        TABLE.set("nbdfuse", "read", "SKIP: no /dev/fuse")
        pytest.skip("no /dev/fuse")
    path = bench.new_disk("fuse")
    ticket = bench.daemon.add_ticket(path, SMALL, ops=["read", "write"])
    mounted = bench.directory / "mnt"
    mounted.mkdir()
    process = subprocess.Popen(["nbdfuse", str(mounted / "disk"), bench.nbd_uri(ticket)])
    try:
        wait_for(mounted / "disk")
        run("dd", f"if={bench.source.small}", f"of={mounted / 'disk'}", "bs=1M", "conv=notrunc,fsync")
        TABLE.set("nbdfuse", "written", compared(bench.source.small, path))
        TABLE.set("nbdfuse", "read", compared(bench.source.small, mounted / "disk", SMALL))
    finally:
        run("fusermount3", "-u", mounted)
        process.wait(30)
    bench.daemon.remove(ticket)
