# SPDX-License-Identifier: Apache-2.0
"""The power goes off: the record of durable ranges tells only what is on the disk then.

Image and state directory are on one device whose writes are logged. The log is replayed up to each flush and each write
with FUA, whoever made it; what the journal on that disk tells is compared with the image on that disk.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.soak.crash.calls import told_by
from tests.soak.crash.sent import Change, Content, Range, Sent
from tests.soak.lines import HttpLine, Line, NbdLine
from tests.support.http_client import connect_unix

from .kernel_storage import SECTOR, Mapped, MiB, loop_disk, mapped, mounted, run, snapshot
from .logwrites import PROMISE, promises
from .small_daemon import Daemon, running_daemon

#: Of the whole device; xfs wants 300 MiB. The image is at its beginning, or in a file of the file system behind that.
DISK, FIRST = 324 * MiB, 4 * MiB
IMAGE = 2 * MiB
REQUESTS = 40
LENGTHS = (1, 512, 4096, 4097, 65536, 100_001)
TICKET = "record"

#: What the journal on a disk tells, and the image on it.
Look = Callable[[Path], tuple[list[Range], bytes]]


class Place(NamedTuple):
    """The file system of a device, and the image: a file of it, or the device before it."""

    directory: Path
    image: Path

    @property
    def state(self) -> Path:
        return self.directory / "state"


@contextlib.contextmanager
def opened(device: Path, filesystem: str, *, on_device: bool, make: bool = True) -> Iterator[Place]:
    """Use a device: a part for an image, and a file system behind it."""
    first, rest = FIRST // SECTOR, (DISK - FIRST) // SECTOR
    with mapped(f"0 {first} linear {device} 0") as part, mapped(f"0 {rest} linear {device} {first}") as other:
        with mounted(filesystem, other.path, make=make) as directory:
            place = Place(directory, part.path if on_device else directory / "image")
            if make and not on_device:
                with place.image.open("wb") as file:
                    file.truncate(IMAGE)
            yield place


class Story:
    """What is sent, with a mark in the log before each request and after each answer."""

    def __init__(self, device: Mapped, daemon: Daemon, choose: random.Random) -> None:
        self._device = device
        self._daemon = daemon
        self._choose = choose
        self._changed: list[tuple[int, int]] = []
        self.marks: dict[str, tuple[int, int, bytes | Content] | str] = {}

    def tell(self) -> None:
        """Send anything, on connections of both protocols."""
        number = 0
        while number < REQUESTS:
            with contextlib.closing(self._connect()) as line:
                for _ in range(self._choose.randrange(1, 8)):
                    self._request(line, number)
                    number += 1

    def _connect(self) -> Line:
        if self._choose.random() < 0.5:
            return HttpLine(connect_unix(str(self._daemon.local), timeout=120), TICKET, self._choose)
        return NbdLine(connect_unix(str(self._daemon.nbd), timeout=120), TICKET, self._choose)

    def _request(self, line: Line, number: int) -> None:
        what, (start, end) = self._choose.random(), self._range()
        if what < 0.25:
            line.send(line.flush())
            assert line.answer()
            return
        content: bytes | Content = self._choose.randbytes(end - start)
        request = line.trim(start, end - start) if what > 0.9 else None
        if request is not None:
            content = Content.UNKNOWN
        elif what > 0.75:
            content, request = Content.ZEROS, line.zero(start, end - start)
        else:
            assert isinstance(content, bytes)
            request = line.write(start, content)
        self._changed.append((start, end))
        self._mark(f"sent{number}", (start, end, content))
        line.send(request)
        assert line.answer()
        self._mark(f"answered{number}", f"sent{number}")

    def _range(self) -> tuple[int, int]:
        if self._changed and self._choose.random() < 0.4:
            return self._choose.choice(self._changed)
        length = self._choose.choice(LENGTHS)
        start = self._choose.randrange(IMAGE - length)
        return start, start + length

    def _mark(self, name: str, what: tuple[int, int, bytes | Content] | str) -> None:
        self.marks[name] = what
        self._device.mark(name)


class Checked(NamedTuple):
    """How often the record was looked at, and the most bytes that it told."""

    looks: int
    most: int


def check(story: Story, log: Path, target: Path, look: Look) -> Checked:
    """Replay a log, and compare the record with the image at each flush. look: reads both from a disk."""
    sent, changes = Sent(bytes(IMAGE)), dict[str, Change]()
    looks = most = 0
    begun = False
    for mark in promises(log, target):
        match story.marks.get(mark):
            case (start, end, content):
                changes[mark] = sent.send(start, end, content)
                begun = True
            case str(request):
                sent.answer(changes[request])
        if mark == PROMISE and begun:
            told, image = look(target)
            excess = sent.excess(told, image)
            assert not excess, f"after {len(changes)} requests: {excess[:5]}"
            looks, most = looks + 1, max(most, sum(end - start for start, end in told))
    return Checked(looks, most)


@pytest.mark.parametrize("place", ["ext4 file", "xfs file", "ext4 device"])
def test_record_tells_only_what_is_on_the_disk(place: str) -> None:
    filesystem, kind = place.split()
    on_device = kind == "device"
    run("modprobe", filesystem)

    def look(target: Path) -> tuple[list[Range], bytes]:
        # Recovery writes to the disk, and the replay goes on with it.
        with snapshot(target, DISK) as copy, opened(copy, filesystem, on_device=on_device, make=False) as found:
            journals = list((found.state / "durable").glob("[!.]*"))
            told = told_by(journals[0].read_bytes()) if journals else []
            with found.image.open("rb") as file:
                return told, file.read(IMAGE)

    with loop_disk(DISK) as disk, loop_disk(DISK) as log, loop_disk(DISK) as target:
        with mapped(f"0 {DISK // SECTOR} log-writes {disk} {log}") as device:
            with opened(device.path, filesystem, on_device=on_device) as used:
                with running_daemon(state=used.state) as daemon:
                    daemon.add_ticket(TICKET, used.image, IMAGE)
                    story = Story(device, daemon, random.Random(place))
                    story.tell()
                    daemon.kill()
        checked = check(story, log, target, look)
    print(checked)
    assert checked.looks > REQUESTS / 4
    assert checked.most > 0, "the record never told anything"
