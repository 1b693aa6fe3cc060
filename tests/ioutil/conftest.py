# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the storage engine's tests: images in memory, on disk, and held up."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.realstorage import shared_memory

from .fake_image import CONTENT, SIZE, FakeImage
from .gate import Gate, installed_gate
from .rival import BIG


@pytest.fixture(scope="module")
def placeholders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("policy") / "placeholder"
    with path.open("wb") as file:
        file.truncate(SIZE)
    found = {"file": path}
    devices = [Path("/dev", node.name) for node in sorted(Path("/sys/class/block").iterdir())]
    if device := next((device for device in devices if device.is_block_device()), None):
        found["block"] = device
    return found


@pytest.fixture(params=["file", "block"])
def kind(request: pytest.FixtureRequest, placeholders: dict[str, Path]) -> str:
    if request.param not in placeholders:
        pytest.skip("no block device node here")
    return str(request.param)


@pytest.fixture
def fake(kind: str, placeholders: dict[str, Path]) -> Iterator[FakeImage]:
    """An image in memory, installed."""
    image = FakeImage(placeholders[kind], CONTENT, is_block=kind == "block")
    with image.installed():
        yield image


@pytest.fixture
def fake_file(placeholders: dict[str, Path]) -> Iterator[FakeImage]:
    image = FakeImage(placeholders["file"], CONTENT, is_block=False)
    with image.installed():
        yield image


@pytest.fixture
def fake_block(placeholders: dict[str, Path]) -> Iterator[FakeImage]:
    if "block" not in placeholders:
        pytest.skip("no block device node here")
    image = FakeImage(placeholders["block"], CONTENT, is_block=True)
    with image.installed():
        yield image


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 64 KiB of zeros."""
    path = tmp_path / "image"
    path.write_bytes(bytes(BIG))
    return path


@pytest.fixture
def other_device_image(image: Path) -> Iterator[Path]:
    """An image on another file system than `image`."""
    path = shared_memory(image) / f"imageio-test-{os.getpid()}"
    path.write_bytes(bytes(SIZE))
    yield path
    path.unlink()


@pytest.fixture
def gate() -> Iterator[Gate]:
    with installed_gate() as gate:
        yield gate
