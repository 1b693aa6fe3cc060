# SPDX-License-Identifier: Apache-2.0
"""What fuzzing of the C code has found goes through it again, under the sanitizers; `make fuzz` looks for more."""

import subprocess
from pathlib import Path

import pytest

from .seeds import seeds

HERE = Path(__file__).parent
TARGETS = [
    "http_head",
    "http_chunks",
    "http_patch",
    "nbd_wire",
    "http_lane",
    "http_instruction",
    "nbd_lane",
    "nbd_client",
    "tls",
    "zstd",
    "qcow2",
]

# The targets are compiled first.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def programs() -> Path:
    """Return the directory of the targets' programs."""
    built = subprocess.run([HERE / "build", "replay"], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip())


@pytest.fixture(scope="module")
def seed_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seeds")
    for name, data in seeds():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return directory


def replay(program: Path, files: list[Path]) -> None:
    """Run a target on each file; the last one that it names is what it could not stand."""
    ended = subprocess.run([program, *files], check=False, capture_output=True, text=True, errors="replace")
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert f"{len(files)} inputs" in ended.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_real_requests_are_understood(programs: Path, seed_directory: Path, target: str) -> None:
    replay(programs / target, sorted((seed_directory / target).iterdir()))


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_found_is_withstood(programs: Path, target: str) -> None:
    replay(programs / target, sorted((HERE / "corpus" / target).iterdir()))


def test_every_corpus_has_its_target() -> None:
    assert sorted(path.name for path in (HERE / "corpus").iterdir()) == sorted(TARGETS)
