# SPDX-License-Identifier: Apache-2.0
"""A host in FIPS mode, whose hashlib has neither BLAKE2 nor BLAKE3 nor MD5: tests/support/fips."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.programs import run
from tests.functional.test_checksum import checksum
from tests.support.daemon import PROJECT, STATE, Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, make_image, pattern

CONTENT = pattern(5 * MiB + 77)


@pytest.fixture(autouse=True)
def _refusing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the programs that a test starts find another hashlib."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests/support/fips"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(daemon={"state_dir": STATE})


@pytest.fixture
def new_image(daemon: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(daemon, tmp_path)


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    return new_image(CONTENT)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("name", ["blake2b", "blake2s", "md5"])
@pytest.mark.parametrize("options", ["", "usedforsecurity=False"])
@pytest.mark.parametrize("call", ["hashlib.{}({})", "hashlib.new('{}', {})"])
def test_the_simulated_host_refuses(name: str, options: str, call: str) -> None:
    program = f"import hashlib; {call.format(name, options)}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("ValueError: [digital envelope routines] unsupported\n")


def test_what_is_available_is_told(daemon: Daemon) -> None:
    with daemon.connect("unix") as client:
        names = client.get("/images/x/checksum/algorithms").json()["algorithms"]
    assert {"blake2b", "sha1", "sha256", "sha512", "sha3_256"} <= set(names)
    assert not {"blake2s", "md5", "ripemd160"} & set(names)


def test_each_algorithm_that_is_told_works(daemon: Daemon, image: Image) -> None:
    with daemon.connect("unix") as client:
        for name in client.get(f"{image.url}/checksum/algorithms").json()["algorithms"]:
            answer = client.get(f"{image.url}/checksum?algorithm={name}")
            assert answer.json()["checksum"] == checksum(CONTENT, name)


@pytest.mark.parametrize("name", ["md5", "blake2s"])
def test_another_algorithm_is_refused_with_those_that_are_there(daemon: Daemon, image: Image, name: str) -> None:
    with daemon.connect("unix") as client:
        answers = (
            client.get(f"{image.url}/checksum?algorithm={name}"),
            client.patch(image.url, {"op": "finalize", "checksum": {"algorithm": name, "checksum": "00" * 16}}),
        )
    for answer in answers:
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.text.startswith(f"Unknown algorithm '{name}', known: blake2b, ")


def durable(client: Connection, image: Image) -> list[tuple[int, int]]:
    extents = client.get(f"{image.url}/extents?context=durable").json()
    return [(each["start"], each["length"]) for each in extents if each["durable"]]


def test_a_record_of_what_is_durable_is_kept_over_a_restart(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(size=MiB)
    with daemon.connect("unix") as client:
        assert client.put_at(image.url, 0, CONTENT[:65536]).status == 200
        assert durable(client, image) == [(0, 65536)]
    daemon.stop()
    daemon.restart()
    with daemon.connect("unix") as client:
        assert durable(client, image) == [(0, 65536)]


def test_a_record_of_a_host_without_restrictions_is_found(
    daemon: Daemon, new_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = new_image(size=MiB)
    with daemon.connect("unix") as client:
        assert client.put_at(image.url, 0, CONTENT[:65536]).status == 200
    daemon.stop()
    monkeypatch.delenv("PYTHONPATH")
    daemon.restart()
    with daemon.connect("unix") as client:
        assert durable(client, image) == [(0, 65536)]


@pytest.mark.parametrize("local", [True, False])
def test_the_client_uploads_and_verifies(daemon: Daemon, new_image: MakeImage, source: Path, local: bool) -> None:
    image = new_image(size=len(CONTENT))
    options = [] if local else ["--no-local"]
    done = run("upload", "--cafile", daemon.cafile, *options, "--verify", source, daemon.url(image.ticket))
    assert done.status == 0, done
    assert image.content() == CONTENT
    with daemon.connect("unix") as client:
        assert client.request("OPTIONS", image.url).json()["finalized"]


def test_the_client_downloads_and_verifies(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    done = run("download", "--cafile", daemon.cafile, "--verify", daemon.url(image.ticket), tmp_path / "copy")
    assert done.status == 0, done
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_the_client_computes_the_digests_of_other_hosts(daemon: Daemon, image: Image, source: Path) -> None:
    for where in (source, daemon.url(image.ticket)):
        done = run("checksum", "--cafile", daemon.cafile, where)
        assert (done.status, done.out) == (0, f"{checksum(CONTENT)}\n"), done


@pytest.mark.parametrize("name", ["md5", "blake2s", "nothing"])
def test_the_client_names_the_algorithms_of_this_host(source: Path, name: str) -> None:
    done = run("checksum", "--algorithm", name, source)
    done.failed_with(f"{name} is not an algorithm of this host, which has blake2b, sha1, ", 2)
