# SPDX-License-Identifier: Apache-2.0
"""Scanners and slow clients on both TLS doors: what tests/lab/hostile runs in its tree.

The NBD one is reached after STARTTLS, by a bridge. What is found and why it is left is in docs/security.md.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.images import MiB
from tests.lab.starttls import Bridge
from tests.lab.table import Table
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.images import Image
from tests.support.places import Place
from tests.support.pump import Pump

OTHERS = Path(__file__).resolve().parents[2] / ".cache/lab/others-venv/bin"
RESULTS = Path(os.environ["RESULTS"])
#: What testssl.sh tells of a certificate of a private authority, and of hosts without DNS: not of the server.
PRIVATE = re.compile(
    r"cert_(trust|chain_of_trust|expirationStatus|notAfter|validityPeriod|extlifeSpan|caIssuers|crlDistributionPoints|"
    r"ocspURL|revocation)|OCSP_|DNS_CAA|certificate_transparency|cert_subjectAltName|overall_grade|grade_cap"
)
GRAVE = ("LOW", "MEDIUM", "HIGH", "CRITICAL", "FATAL")
#: Of fields of HTTP that keep browsers to TLS, and of pages: images are no pages, and /ui/ has its own.
HTTP_FIELDS = re.compile(r"HSTS|HPKP|banner_|cookie_|security_headers|X-|Strict|Content-Security|HTTP_|ipv4_in_header")
DOORS = ("https", "nbds")
#: All that it can ask of a server, but for its certificate.
SSLYZE = [
    f"--{name}"
    for name in (
        *("sslv2", "sslv3", "tlsv1", "tlsv1_1", "tlsv1_2", "tlsv1_3", "heartbleed", "openssl_ccs", "compression"),
        *("reneg", "resum", "robot", "fallback", "early_data", "elliptic_curves", "ems"),
    )
]
#: Debian 13's, which gives a grade, or Debian 12's.
TESTSSL = Path("/opt/testssl/usr/bin/testssl")


@dataclass(frozen=True)
class Doors:
    """A daemon, and ports on which programs find its TLS."""

    daemon: Daemon
    https: int
    nbds: int
    table: Table
    directory: Path

    def port(self, door: str) -> int:
        return {"https": self.https, "nbds": self.nbds}[door]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    directory = tmp_path_factory.mktemp("doors")
    config: dict[str, Section] = {"nbd": {"enable": True, "port": 0}, "ui": {"enable": True}}
    with Daemon(Certificates.make(directory), config) as daemon:
        match = daemon.log.find(r"listening.*\bservice\W+nbd\b.*\bport\W+(\d+)")
        assert match is not None
        with Bridge(int(match[1])) as bridge:
            table = Table(RESULTS / "hostile.md", "program")
            yield Doors(daemon, daemon.port, bridge.port, table, directory)


def run(*command: object, timeout: float = 1500) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, check=False)
    return done.stdout + done.stderr


def serves(doors: Doors) -> None:
    """Check that a client is served as before."""
    with doors.daemon.connect("tls") as connection:
        assert connection.request("OPTIONS", "/images/*").status == 200


# Scanners


@pytest.mark.parametrize("door", DOORS)
def test_sslscan(doors: Doors, door: str) -> None:
    told = run("sslscan", "--no-colour", f"--targets={_target(doors, door)}")
    (RESULTS / f"sslscan-{door}").write_text(told)
    offered = re.findall(r"^(?:Preferred|Accepted)\s+(\S+)\s+\d+ bits\s+(\S+)", told, re.MULTILINE)
    assert offered, told
    assert {version for version, _ in offered} <= {"TLSv1.2", "TLSv1.3"}, told
    strong = re.compile("TLS_|ECDHE-.*(GCM|POLY1305)")
    assert not [cipher for _, cipher in offered if not strong.match(cipher)], told
    assert "not vulnerable to heartbleed" in told
    assert re.search("Compression disabled|OpenSSL version does not support compression", told), told
    versions = ", ".join(sorted({version for version, _ in offered}))
    doors.table.set("sslscan", door, f"{versions}; {len({cipher for _, cipher in offered})} ciphers, none weak")
    serves(doors)


def _target(doors: Doors, door: str) -> Path:
    path = doors.directory / f"target-{door}"
    path.write_text(f"localhost:{doors.port(door)}\n")
    return path


@pytest.mark.parametrize("door", DOORS)
def test_testssl(doors: Doors, door: str) -> None:
    path = RESULTS / f"testssl-{door}.json"
    program = [TESTSSL if TESTSSL.exists() else "testssl", "--quiet", "--color", "0", "--warnings", "batch"]
    program += ["--ip", "one", "--nodns", "min", "--add-ca", doors.daemon.cafile, "--jsonfile", path]
    told = run(*program, f"localhost:{doors.port(door)}")
    (RESULTS / f"testssl-{door}").write_text(told)
    found = json.loads(path.read_text())
    grave = [each for each in found if each["severity"] in GRAVE and not PRIVATE.search(each["id"])]
    left = [each for each in grave if not HTTP_FIELDS.search(each["id"])]
    grade = next((each["finding"] for each in found if each["id"] == "overall_grade"), "none")
    caps = [each["finding"] for each in found if each["id"].startswith("grade_cap")]
    words = f"grade {grade} ({'; '.join(caps)})" if caps else f"grade {grade}"
    doors.table.set("testssl.sh", door, f"{words}; {len(left)} findings")
    print(json.dumps(grave, indent=1))
    assert not left, left
    serves(doors)


@pytest.mark.parametrize("door", DOORS)
def test_sslyze(doors: Doors, door: str) -> None:
    program = OTHERS / "sslyze"
    if not program.exists():
        doors.table.set("sslyze", door, "SKIP: not installed")
        pytest.skip("sslyze cannot be installed here")
    path = RESULTS / f"sslyze-{door}.json"
    told = run(program, f"--json_out={path}", *SSLYZE, f"localhost:{doors.port(door)}")
    (RESULTS / f"sslyze-{door}").write_text(told)
    (server,) = json.loads(path.read_text())["server_scan_results"]
    assert server["scan_status"] == "COMPLETED", told
    result = {name: found.get("result") or {} for name, found in server["scan_result"].items()}
    for old in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"):
        assert not result[f"{old}_cipher_suites"]["accepted_cipher_suites"], told
    assert not result["heartbleed"]["is_vulnerable_to_heartbleed"]
    assert not result["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"]
    assert not result["tls_compression"]["supports_compression"]
    assert not result["session_renegotiation"]["is_vulnerable_to_client_renegotiation_dos"]
    assert result["session_renegotiation"]["supports_secure_renegotiation"]
    assert result["robot"]["robot_result"].startswith("NOT_VULNERABLE")
    doors.table.set("sslyze", door, "TLS 1.2 and 1.3 only; heartbleed, CCS, ROBOT, renegotiation, compression: no")
    serves(doors)


# Handshakes that are broken


@pytest.mark.parametrize("door", DOORS)
def test_tlslite(doors: Doors, door: str) -> None:
    python = OTHERS / "python"
    if not python.exists():
        doors.table.set("tlslite-ng, broken handshakes", door, "SKIP: not installed")
        pytest.skip("tlslite-ng cannot be installed here")
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name("broken_handshakes.py")), str(doors.port(door))],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    (RESULTS / f"tlslite-{door}").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    doors.table.set("tlslite-ng, broken handshakes", door, f"{len(done.stdout.splitlines())}, all refused")
    serves(doors)


# Slow clients

#: Seconds of each measurement.
LONG = 20.0
#: How it is slow, by what slowhttptest calls it.
SLOW = {
    "heads": ["-H", "-i", "5"],
    "bodies": ["-B", "-i", "5", "-s", "1000000", "-t", "PUT"],
    "reads": ["-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "3"],
}


def upload_rate(doors: Doors, seconds: float) -> float:
    """Return the bytes per second of an upload over TLS."""
    path = doors.directory / "upload.raw"
    path.touch()
    os.truncate(path, 1024 * MiB)
    ticket = doors.daemon.add_ticket(path, 1024 * MiB, sparse=True)
    with Pump(doors.daemon, Image(Place(path), ticket), 64 * MiB, uploads=True, service="tls") as pump:
        pump.until(seconds)
        rate = pump.rate(1, seconds)
    doors.daemon.remove(ticket)
    return rate


@pytest.mark.parametrize("how", SLOW)
def test_slow_clients_keep_no_upload_away(doors: Doors, how: str) -> None:
    before = upload_rate(doors, LONG)
    command = ["slowhttptest", *SLOW[how], "-c", "500", "-r", "100", "-l", str(int(LONG) + 20), "-p", "5"]
    command += ["-u", f"https://localhost:{doors.https}/images/no-such-ticket"]
    attack = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(5)  # until its connections are there
    assert attack.poll() is None
    during = upload_rate(doors, LONG)
    attack.terminate()
    told, _ = attack.communicate(timeout=60)
    (RESULTS / f"slow-{how}").write_text(told)
    word = f"{during / MiB:.0f} MiB/s beside it, {before / MiB:.0f} without"
    doors.table.set(f"slowhttptest, slow {how}", "https", word)
    assert during >= before / 2, word
    serves(doors)
