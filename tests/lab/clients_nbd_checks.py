# SPDX-License-Identifier: Apache-2.0
"""NBD clients that are libraries, and qemu's own tests: what tests/lab/clients runs in its tree."""

import json
import os
import re
import subprocess
from pathlib import Path

from tests.lab.clients_bench import NBD_SOCKET, RESULTS, ROOT, SMALL, Bench, have, run, table
from tests.lab.images import compared
from tests.support.daemon import Certificates, Daemon

HERE = Path(__file__).parent
LAB = ROOT / ".cache/lab"
TABLE = table("nbd", "NBD client")

#: Those of qemu's iotests that go with raw images on NBD, and whose server is the one under test. 143, 145 and 181 want
#: a qemu with the accelerator qtest, which Debian leaves out; 005 files of 5 TB.
IOTESTS = [
    "001",
    "002",
    "003",
    "004",
    "008",
    "009",
    "010",
    "011",
    "021",
    "032",
    "033",
    "077",
    "104",
    "123",
    "197",
    "215",
    "259",
]


def test_crate_nbd_of_rust(bench: Bench) -> None:
    program = LAB / "nbd_crate/bin/nbd_crate"
    have(TABLE, "Rust's nbd 0.3.1", program)
    disk, copy = bench.new_disk("crate"), bench.directory / "crate.copy"
    ticket = bench.daemon.add_ticket(disk, SMALL, ops=["read", "write"])
    run(program, "write", NBD_SOCKET, ticket, bench.source.small)
    TABLE.set("Rust's nbd 0.3.1", "written", compared(bench.source.small, disk))
    run(program, "read", NBD_SOCKET, ticket, copy)
    TABLE.set("Rust's nbd 0.3.1", "read", compared(bench.source.small, copy))
    bench.daemon.remove(ticket)


def read_by_vates(bench: Bench, port: int, ticket: str, *certificate: Path) -> str:
    copy = bench.directory / "vates.copy"
    told = run("node", HERE / "vates_nbd.mjs", LAB / "npm/node_modules", port, ticket, copy, *certificate)
    TABLE.set("@vates/nbd-client 3.6.0, 8 connections", "read", compared(bench.source.small, copy))
    copy.unlink()
    return told


def test_client_of_xen_orchestra(bench: Bench) -> None:
    have(TABLE, "@vates/nbd-client 3.6.0, 8 connections", LAB / "npm/node_modules/@vates/nbd-client")
    ticket = bench.daemon.add_ticket(bench.source.small, SMALL, ops=["read"])
    read_by_vates(bench, bench.nbd_port, ticket, bench.cafile)
    bench.daemon.remove(ticket)


def test_client_of_xen_orchestra_maps(bench: Bench) -> None:
    """It asks nbdinfo for the map, and in the clear."""
    have(TABLE, "@vates/nbd-client 3.6.0, 8 connections", LAB / "npm/node_modules/@vates/nbd-client")
    disk = bench.new_disk("map")
    with disk.open("r+b") as file:
        file.seek(SMALL // 2)
        file.write(b"x" * (1 << 20))
    config = {"enable": True, "port": 0, "host": "127.0.0.1", "tls": "off"}
    with Daemon(Certificates.make(bench.directory), {"nbd": config}) as daemon:
        match = daemon.log.find(r"listening.*\bservice\W+nbd\b.*\bport\W+(\d+)")
        assert match is not None
        ticket = daemon.add_ticket(disk, SMALL, ops=["read"])
        copy = bench.directory / "map.copy"
        told = run("node", HERE / "vates_nbd.mjs", LAB / "npm/node_modules", match[1], ticket, copy)
        assert compared(disk, copy)
        found = [(each["offset"], each["length"], each["type"]) for each in json.loads(told)]
        assert (SMALL // 2, 1 << 20, 0) in found, found
        TABLE.set("@vates/nbd-client 3.6.0, 8 connections", "map", "as it is")
        daemon.remove(ticket)


def test_iotests_of_qemu(bench: Bench) -> None:
    source = LAB / "qemu_iotests/tests/qemu-iotests"
    have(TABLE, "qemu's iotests, raw on NBD", source)
    programs = {
        "QEMU_PROG": "/bin/true",  # asked for its machines
        "QEMU_IMG_PROG": "/usr/bin/qemu-img",
        "QEMU_IO_PROG": "/usr/bin/qemu-io",
        "QSD_PROG": "/usr/bin/qemu-storage-daemon",
        "QEMU_NBD_PROG": str(HERE / "qemu_nbd_as_ticket"),
        "CONTROL": bench.daemon.control_socket,
        "NBD": NBD_SOCKET,
        "TEST_DIR": str(bench.directory / "iotests"),
        "SOCK_DIR": "/run/iotests",
    }
    done = subprocess.run(
        ["./check", "-nbd", "-raw", *IOTESTS], cwd=source, env={**os.environ, **programs}, capture_output=True,
        text=True, timeout=1500, check=False,
    )  # fmt: skip
    (RESULTS / "iotests").write_text(done.stdout + done.stderr)
    skipped = re.search(r"^Not run: (.*)", done.stdout, re.MULTILINE)
    failed = re.search(r"^Failures: (.*)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert failed is None, done.stdout[-6000:]
    ran = re.search(r"Passed all (\d+) ", done.stdout)
    assert ran is not None, done.stdout
    word = f"{ran[1]} passed" + (f", not run: {skipped[1]}" if skipped else "")
    TABLE.set("qemu's iotests, raw on NBD", "read", word)
