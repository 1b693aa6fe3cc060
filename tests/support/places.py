# SPDX-License-Identifier: Apache-2.0
"""Places of images. Tests of the images API do not depend on the place, and run with every kind of ticket.

Each kind of place is made of a raw file with the content. It has the fields of tickets for it, and returns the content
without the daemon under test. A test that needs a trait that only some kinds have declares it, as in
@needs(Trait.GROWS).
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from tests.support.daemon import Daemon
from tests.support.nbdservers import NbdServer, nbdkit, qemu_nbd
from tests.support.polling import eventually
from tests.support.processes import open_files

SECTOR = 512

#: The value of the option [backend_file] qcow2 in all tests that do not set it themselves.
QCOW2 = os.environ.get("IMAGEIO_TEST_QCOW2", "native")

needs = pytest.mark.needs


class Trait(Enum):
    """A property that only some kinds of storage have."""

    EXACT = "its size is that of the content, not the next multiple of 512"
    GROWS = "a write past its end makes it larger"
    ZEROS = "it tells which parts read as zeros"
    HOLES = "what was never written is told as zeros, and not as a hole of a chain or as data"
    FINE_HOLES = "blocks of 4 KiB can be holes"
    QUICK_ZERO = "zeroing 8 TiB writes no metadata of their size"
    RAW_FILE = "a file that the test can change behind the server's back"
    NAMED = "it is opened by its name, which the test can take away"
    OWN = "the daemon under test reads and writes it itself, and nobody else does it for it"
    SPACE = "a file whose space is taken and given back as the ticket wants it"
    HERE = "the daemon under test has it open: it is in a lane, decodes, and records what is durable"
    TAGGED = "all changes are seen, so that it has an entity tag"
    PATH = "it can be a file or device that the test has made"


@dataclass(frozen=True)
class Setting:
    """The surroundings of a new place. `cleanup` ends after the ticket was removed."""

    daemon: Daemon
    other_daemon: Callable[[], Daemon]
    cleanup: ExitStack


class Place:
    """A file, or something else with a path. `size` is the size of the content, if it is not that of the file."""

    kind: ClassVar[str] = "file"
    traits: ClassVar[frozenset[Trait]] = frozenset(Trait)

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._size = size

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        """Make a place of a raw file. `fields` are those of its ticket."""
        return cls(raw)

    @property
    def where(self) -> dict[str, str]:
        """The fields of tickets for this place."""
        return {"url": f"file://{self.path}"}

    def content(self) -> bytes:
        """Return the whole content."""
        content = self._look()
        assert not any(content[self._size :] if self._size is not None else b""), "written past the end"
        return content[: self._size]

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of the content."""
        return self.content()[offset : offset + length]

    def _look(self) -> bytes:
        return self.path.read_bytes()

    def is_open(self, daemon: Daemon) -> bool:
        """Return whether the daemon has the image open."""
        return daemon.has_open(self.path)

    def check_closed(self, daemon: Daemon) -> None:
        """Fail if the daemon has the image open, or if the image's server does not soon notice that it was closed."""
        assert not self.is_open(daemon)


class Device(Place):
    """A loop device."""

    kind = "block"
    traits = frozenset({Trait.OWN, Trait.HERE, Trait.TAGGED, Trait.QUICK_ZERO})

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        # Not at the top, because pytest has to load it as a plugin first.
        from tests.support.realstorage import loop_device, missing

        if reason := missing("ext4"):
            pytest.skip(reason)
        size = _pad(raw)
        return cls(setting.cleanup.enter_context(loop_device(raw)), size)


class Served(Place):
    """An image of an NBD server. nbdcopy reads its content."""

    def __init__(self, path: Path, size: int, server: NbdServer) -> None:
        super().__init__(path, size)
        self._server = server

    @property
    def where(self) -> dict[str, str]:
        return {"url": self._server.url}

    def _look(self) -> bytes:
        return _output_of("nbdcopy", self._server.uri, "-")

    def is_open(self, daemon: Daemon) -> bool:
        return self._server.connections() > 0

    def check_closed(self, daemon: Daemon) -> None:
        eventually(lambda: not self.is_open(daemon), "the connections to the server are closed")


class RawServed(Served):
    """A raw file that qemu-nbd serves."""

    kind = "qemu-nbd-raw"
    traits = frozenset({Trait.ZEROS, Trait.HOLES, Trait.FINE_HOLES, Trait.HERE, Trait.PATH, Trait.QUICK_ZERO})

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        size = _pad(raw)
        return cls(raw, size, setting.cleanup.enter_context(qemu_nbd(raw, "raw")))


class Qcow2Served(Served):
    """A qcow2 image that qemu-nbd serves."""

    kind = "qemu-nbd-qcow2"
    traits = frozenset({Trait.ZEROS, Trait.HOLES, Trait.HERE})

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        size = _pad(raw)
        image = _to_qcow2(raw, setting.cleanup)
        server = setting.cleanup.enter_context(qemu_nbd(image, "qcow2"))
        setting.cleanup.callback(server.stop)
        return cls(image, size, server)


class MemoryServed(Served):
    """Memory that nbdkit serves."""

    kind = "nbdkit-memory"
    traits = frozenset({Trait.EXACT, Trait.ZEROS, Trait.HOLES, Trait.HERE, Trait.QUICK_ZERO})

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        size = raw.stat().st_size
        server = setting.cleanup.enter_context(nbdkit("memory", str(size)))
        if raw.stat().st_blocks:
            _output_of("nbdcopy", "--destination-is-zero", raw, server.uri)
        return cls(raw, size, server)


class Managed(Place):
    """A qcow2 image, which the daemon opens itself or by a qemu-nbd. qemu-img reads its content."""

    kind = "managed-qcow2"
    traits = frozenset({Trait.ZEROS, Trait.HERE, Trait.NAMED})

    def __init__(self, path: Path, size: int, daemon: Daemon) -> None:
        super().__init__(path, size)
        self._daemon = daemon

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        size = _pad(raw)
        return cls(_to_qcow2(raw, setting.cleanup), size, setting.daemon)

    @property
    def where(self) -> dict[str, str]:
        return {**super().where, "format": "qcow2"}

    def _look(self) -> bytes:
        self._flush()
        raw = self.path.with_suffix(".seen")
        _output_of("qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw", self.path, raw)
        content = raw.read_bytes()
        raw.unlink()
        return content

    def _flush(self) -> None:
        """Have the server write metadata that it has only in memory."""
        for status in self._daemon.control("GET", "/tickets/").json():
            if status["url"] == self.where["url"] and "write" in status["ops"]:
                with self._daemon.connect("unix") as connection:
                    answer = connection.patch(f"/images/{status['uuid']}", {"op": "flush"})
                assert answer.status in (200, 403), answer  # 403: expired

    def is_open(self, daemon: Daemon) -> bool:
        return _is_open(self.path)


#: Keys that are not copied from the ticket on the daemon under test to the ticket on the other daemon.
NOT_BEHIND = ("uuid", "url", "size", "timeout", "rate")


class Proxied(Place):
    """A file that another daemon serves."""

    kind = "proxy"
    traits = frozenset(Trait) - {Trait.OWN, Trait.HERE}

    def __init__(self, path: Path, other: Daemon, ticket_id: str) -> None:
        super().__init__(path)
        self._other = other
        self._ticket_id = ticket_id

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        other = setting.other_daemon()
        its_own = {name: value for name, value in fields.items() if name not in NOT_BEHIND}
        ticket_id = other.add_ticket(raw, fields["size"], **its_own, timeout=3600)
        setting.daemon.hide(ticket_id)
        setting.cleanup.callback(other.control, "DELETE", f"/tickets/{ticket_id}")
        return cls(raw, other, ticket_id)

    @property
    def where(self) -> dict[str, str]:
        return {"url": self._other.url(self._ticket_id)}

    def is_open(self, daemon: Daemon) -> bool:
        return bool(self._other.status(self._ticket_id)["connections"])

    def check_closed(self, daemon: Daemon) -> None:
        eventually(lambda: not self.is_open(daemon), "the connections to the other daemon are closed")


#: All kinds of places, the simplest first.
KINDS: tuple[type[Place], ...] = (Place, Device, RawServed, Qcow2Served, MemoryServed, Managed, Proxied)


def _pad(raw: Path) -> int:
    """Extend a file to whole sectors. Return its earlier size."""
    if not raw.is_file():
        with raw.open("rb") as device:
            return device.seek(0, os.SEEK_END)
    size = raw.stat().st_size
    os.truncate(raw, -(-size // SECTOR) * SECTOR)
    return size


def _to_qcow2(raw: Path, cleanup: ExitStack) -> Path:
    """Return a qcow2 image of a raw one. At the end of the test, qemu-img must find no error in it."""
    image = raw.with_suffix(".qcow2")
    if raw.stat().st_blocks:
        _output_of("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image)
    else:
        _output_of("qemu-img", "create", "-f", "qcow2", image, raw.stat().st_size)
    raw.unlink()
    cleanup.callback(_check_qcow2, image)
    return image


def _check_qcow2(image: Path) -> None:
    if image.exists():  # a test may have removed it
        _output_of("qemu-img", "check", "-q", "-f", "qcow2", image)


def _is_open(path: Path) -> bool:
    """Return whether any process has a file open."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or may not be inspected
            if str(path) in open_files(int(entry.name)).values():
                return True
    return False


def _output_of(*command: object) -> bytes:
    result = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stderr.decode()}"
    return result.stdout
