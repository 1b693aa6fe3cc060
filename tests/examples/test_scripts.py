# SPDX-License-Identifier: Apache-2.0
"""make demo and make run, as far as they are not shown by being run."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.programs import PROJECT, TIMEOUT, environment
from tests.support.images import MiB, pattern

SCRIPTS = PROJECT / "scripts"


@pytest.fixture
def work() -> Iterator[Path]:
    """Where the scripts make their directories; they must leave nothing there. Its path is short, for sockets."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def demo(work: Path, image: Path, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """Run the demo with an image of ours."""
    env = environment() | {"TMPDIR": str(work), "IMAGE": str(image)}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "demo")],
        check=False,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def test_demo_takes_any_image(work: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(pattern(MiB + 512) + bytes(MiB))
    result = demo(work, image)
    assert result.returncode == 0, result
    assert result.stdout.count("qemu-img finds no difference") == 2
    assert list(work.iterdir()) == []


def test_demo_without_the_image_fails(work: Path) -> None:
    result = demo(work, Path("/no/such/image"))
    assert (result.returncode, result.stderr) == (1, "demo: FAILED: /no/such/image is not a file\n")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit('a reason')", "the daemon did not start"),
        (
            "import sys; print('listening service=remote port=1', file=sys.stderr)",
            "the control service does not answer",
        ),
    ],
)
def test_demo_keeps_the_log_of_a_broken_daemon(work: Path, tmp_path: Path, program: str, reason: str) -> None:
    package = tmp_path / "imageio_daemon"
    package.mkdir()
    (package / "__main__.py").write_text(program)
    image = tmp_path / "image"
    image.write_bytes(bytes(MiB))
    result = demo(work, image, cwd=tmp_path)
    assert result.returncode == 1
    assert re.fullmatch(f"demo: FAILED: .*{reason}.*\n", result.stderr), result
    kept = re.search(r"kept in (.*)$", result.stdout, re.MULTILINE)
    assert kept, result
    assert Path(kept[1]).read_text()
    assert list(work.iterdir()) == []


@pytest.fixture
def lines_to_try(work: Path) -> Iterator[list[str]]:
    """What make run offers, while it runs."""
    env = environment() | {"TMPDIR": str(work)}
    with subprocess.Popen(
        [sys.executable, str(SCRIPTS / "run")],
        cwd=PROJECT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        yield [line for line in lines if line.startswith(("curl ", "/"))]
        process.terminate()
        process.wait(TIMEOUT)
    assert list(work.iterdir()) == []


def test_lines_of_make_run_work(lines_to_try: list[str]) -> None:
    assert len(lines_to_try) == 11
    for line in lines_to_try:
        # What curl is told to do must succeed, too: without --fail it is content with any answer.
        command = line.replace("curl ", "curl --silent --show-error --fail ")
        done = subprocess.run(
            command, shell=True, check=False, capture_output=True, text=True, timeout=TIMEOUT, env=os.environ
        )
        assert done.returncode == 0, (line, done)
