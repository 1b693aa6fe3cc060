# SPDX-License-Identifier: Apache-2.0
"""Where images of tests are: the tests of the images API know nothing of it, and run with every kind of ticket.

Each kind of place is made of a raw file with the content. It tells what tickets have to say to lead there, and shows
the content on a way that does not lead through the daemon under test. A test that wants what not every kind has says
so: @needs(Trait.GROWS).
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

#: Who opens images in the format qcow2: the option of the daemon, in all tests that have no other.
QCOW2 = os.environ.get("IMAGEIO_TEST_QCOW2", "native")

needs = pytest.mark.needs


class Trait(Enum):
    """What not every kind of storage has."""

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
    """What is there when a place is made. `cleanup` ends after the ticket was removed."""

    daemon: Daemon
    other_daemon: Callable[[], Daemon]
    cleanup: ExitStack


class Place:
    """A file, or what else has a path. size: where the test sees the end of the content, if not where the file ends."""

    kind: ClassVar[str] = "file"
    traits: ClassVar[frozenset[Trait]] = frozenset(Trait)

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._size = size

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        """Make a place of a raw file. fields: of its ticket."""
        return cls(raw)

    @property
    def where(self) -> dict[str, str]:
        """What tickets say of it."""
        return {"url": f"file://{self.path}"}

    def content(self) -> bytes:
        """Return all of it."""
        content = self._look()
        assert not any(content[self._size :] if self._size is not None else b""), "written past the end"
        return content[: self._size]

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of it."""
        return self.content()[offset : offset + length]

    def _look(self) -> bytes:
        return self.path.read_bytes()

    def is_open(self, daemon: Daemon) -> bool:
        """Tell whether the daemon uses it."""
        return daemon.has_open(self.path)

    def check_closed(self, daemon: Daemon) -> None:
        """Fail if the daemon uses it, or a server that is out of its reach does not notice the end soon."""
        assert not self.is_open(daemon)


class Device(Place):
    """A loop device."""

    kind = "block"
    traits = frozenset({Trait.OWN, Trait.HERE, Trait.TAGGED, Trait.QUICK_ZERO})

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        # Not above: pytest loads it as a plugin first.
        from tests.support.realstorage import loop_device, missing

        if reason := missing("ext4"):
            pytest.skip(reason)
        size = _pad(raw)
        return cls(setting.cleanup.enter_context(loop_device(raw)), size)


class Served(Place):
    """What an NBD server has. nbdcopy looks at it."""

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
    """A raw file that qemu-nbd has."""

    kind = "qemu-nbd-raw"
    traits = frozenset({Trait.ZEROS, Trait.HOLES, Trait.FINE_HOLES, Trait.HERE, Trait.PATH, Trait.QUICK_ZERO})

    @classmethod
    def make(cls, raw: Path, fields: Mapping[str, Any], setting: Setting) -> Self:
        size = _pad(raw)
        return cls(raw, size, setting.cleanup.enter_context(qemu_nbd(raw, "raw")))


class Qcow2Served(Served):
    """A qcow2 image that qemu-nbd has."""

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
    """Memory of nbdkit."""

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
    """A qcow2 image, which the daemon opens itself or starts a qemu-nbd for. qemu-img looks at it."""

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
        """Have the server write metadata that it still holds."""
        for status in self._daemon.control("GET", "/tickets/").json():
            if status["url"] == self.where["url"] and "write" in status["ops"]:
                with self._daemon.connect("unix") as connection:
                    answer = connection.patch(f"/images/{status['uuid']}", {"op": "flush"})
                assert answer.status in (200, 403), answer  # 403: expired

    def is_open(self, daemon: Daemon) -> bool:
        return _is_open(self.path)


#: Keys of tickets that the ticket on the other daemon does not have from that on the one under test.
NOT_BEHIND = ("uuid", "url", "size", "timeout", "rate")


class Proxied(Place):
    """A file that another daemon has."""

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


#: All of them, the simplest first.
KINDS: tuple[type[Place], ...] = (Place, Device, RawServed, Qcow2Served, MemoryServed, Managed, Proxied)


def _pad(raw: Path) -> int:
    """Make a file as long as whole sectors are; return what it was."""
    if not raw.is_file():
        with raw.open("rb") as device:
            return device.seek(0, os.SEEK_END)
    size = raw.stat().st_size
    os.truncate(raw, -(-size // SECTOR) * SECTOR)
    return size


def _to_qcow2(raw: Path, cleanup: ExitStack) -> Path:
    """Return a qcow2 image of a raw one; at the end, nothing must be wrong with it."""
    image = raw.with_suffix(".qcow2")
    if raw.stat().st_blocks:
        _output_of("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image)
    else:
        _output_of("qemu-img", "create", "-f", "qcow2", image, raw.stat().st_size)
    raw.unlink()
    cleanup.callback(_check_qcow2, image)
    return image


def _check_qcow2(image: Path) -> None:
    if image.exists():  # a test may have taken it away
        _output_of("qemu-img", "check", "-q", "-f", "qcow2", image)


def _is_open(path: Path) -> bool:
    """Tell whether any process has a file open."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours to look at
            if str(path) in open_files(int(entry.name)).values():
                return True
    return False


def _output_of(*command: object) -> bytes:
    result = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stderr.decode()}"
    return result.stdout
