# SPDX-License-Identifier: Apache-2.0
"""The life of two images below a daemon that is killed again and again, until they are whole.

The seed decides what is sent, where it is stored and which system call is the last one. It does not decide when what
happens: several clients send at the same time.
"""

import contextlib
import hashlib
import itertools
import math
import os
import random
import secrets
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from imageio_daemon.image import lasting
from ioutil_ext import ffi, lib
from tests.client import programs
from tests.soak.crash.calls import PowerCuts, without
from tests.soak.crash.clients import Client, Tally, Upload
from tests.soak.crash.sent import Range, Sent
from tests.soak.crash.storage import KINDS
from tests.soak.lines import Line, Lost
from tests.support.daemon import Daemon, ticket
from tests.support.http_client import DisconnectedError
from tests.support.killedcalls import NEVER, Death, begin
from tests.support.polling import eventually
from tests.support.realstorage import Mounts

SIZE = 3 * 1024**2
#: Clients of each image.
CLIENTS = 3
#: Kinds of calls at which a daemon dies, and how many of them there may be before.
DEATHS = {"w": 150, "f": 60, "j": 80, "s": 60, "n": 150, "wfjsn": 300}
#: How often a daemon gets a signal at any time instead, which it may have, and after how many seconds at most.
SIGNALLED, SIGNALS, SIGNAL_AFTER = 0.15, (signal.SIGKILL, signal.SIGTERM), 0.4
#: How often another ticket writes the same image.
RIVALS = 0.1
#: Bytes of a request that sends what is not durable.
PIECE = 700_001


def journal_name(image: Path) -> str:
    """Return the name of an image's journal."""
    with image.open("rb") as file:
        info = os.fstat(file.fileno())
        if stat.S_ISBLK(info.st_mode):
            identity = lasting.of_device(info.st_rdev, file.seek(0, os.SEEK_END))
        else:
            birth = ffi.new("iou_birth *")
            lib.iou_file_birth(file.fileno(), birth)
            identity = lasting.of_file(info.st_dev, info.st_ino, birth)
    assert identity is not None
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


class Life:
    """Two images and a daemon. directory: for images, state and trace, removed by the caller."""

    def __init__(
        self, make: Callable[[Path], Daemon], library: Path, directory: Path, mounts: Mounts, seed: int, tally: Tally
    ) -> None:
        self._choose = random.Random(seed)
        self._library = library
        self._directory = directory
        self._mounts = mounts
        self._state = directory / "state"
        self._trace = directory / "trace"
        self._seen = 0  # of the trace
        self._daemon = make(self._state)
        self._uploads: list[Upload] = []
        self._failures: list[BaseException] = []
        self._tally = tally

    def run(self, kinds: list[str], deaths: int) -> None:
        """Live and die. Raises AssertionError with what was found wrong."""
        with ExitStack() as cleanup:
            cleanup.callback(self._daemon.kill)
            for kind in kinds:
                self._uploads.append(self._make(kind, cleanup))
            for _ in range(deaths):
                self._live_until(self._death())
            self._complete()

    def _make(self, kind: str, cleanup: ExitStack) -> Upload:
        image = KINDS[kind](self._mounts, self._directory, SIZE, cleanup)
        fields = ticket(image.path, SIZE, **image.where, sparse=self._choose.random() < 0.5)
        upload = Upload(image, SIZE, fields, Sent(bytes(SIZE)))
        if image.traced:
            path = self._state / "durable" / journal_name(image.path)
            upload.cuts = PowerCuts(str(image.path), SIZE, str(path))
        return upload

    def _death(self) -> Death:
        kinds = self._choose.choice(list(DEATHS))
        number = int(math.exp(self._choose.uniform(0, math.log(DEATHS[kinds]))))
        return Death(kinds, self._choose.choice("bma"), number)

    # Until a death

    def _live_until(self, death: Death) -> None:
        contents = [upload.image.content() for upload in self._uploads]
        sent = None
        if self._choose.random() < SIGNALLED:
            death, sent = NEVER, self._choose.choice(SIGNALS)
        if self._start(death):
            with contextlib.suppress(Lost), self._asking(), self._signalled(sent):
                self._install()
                self._look(contents)
                self._send()
        by = "between calls" if self._daemon.running else sent.name if sent else f"{death.kinds} {death.when}"
        self._daemon.kill()
        self._daemon.check_log()
        self._look_at_calls()
        self._tally.deaths[by] += 1

    def _start(self, death: Death) -> bool:
        """Start the daemon; return if it lives to serve."""
        paths = [upload.image.path for upload in self._uploads if upload.cuts]
        with begin(self._library, self._trace, self._state, paths, death):
            try:
                self._daemon.restart()
            except AssertionError as e:
                if "ended with status -9" not in str(e):
                    raise
                return False
        return True

    @contextlib.contextmanager
    def _signalled(self, number: signal.Signals | None) -> Iterator[None]:
        """Send a signal to the daemon at any time of the block, if one is given."""
        if number is None:
            yield
            return
        timer = threading.Timer(self._choose.uniform(0, SIGNAL_AFTER), self._daemon.send_signal, (number,))
        timer.start()
        try:
            yield
        finally:
            timer.join()
            self._daemon.wait()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise Lost if the daemon dies in the block; an answer that is missing while it lives is a failure."""
        try:
            yield
        except (DisconnectedError, OSError, Lost) as e:
            eventually(lambda: not self._daemon.running, f"the daemon is dead after {e!r}")
            raise Lost from e

    def _install(self) -> None:
        """Install the tickets; some managers rely on those that the daemon has kept."""
        for upload in self._uploads:
            if not upload.kept or self._choose.random() < 0.5:
                self._daemon.put_ticket(upload.fields)
                upload.kept = True

    def _look(self, contents: list[bytes]) -> None:
        """Compare what the record tells with the images."""
        for upload, content in zip(self._uploads, contents, strict=True):
            told = self._told(upload)
            excess = upload.sent.excess(told, content)
            assert not excess, f"{upload.image.path.name}: {excess[:5]}"
            upload.sent = Sent(content, told)
            self._tally.counts["bytes told after a death"] += sum(end - start for start, end in told)

    def _told(self, upload: Upload) -> list[Range]:
        """Return the ranges that the record tells."""
        with self._daemon.connect("unix") as connection:
            answer = connection.get(f"{upload.url}/extents?context=durable")
        assert answer.status == 200, answer
        extents = answer.json()
        assert sum(extent["length"] for extent in extents) == upload.size
        assert all(a["start"] + a["length"] == b["start"] for a, b in itertools.pairwise(extents))
        return [(each["start"], each["start"] + each["length"]) for each in extents if each["durable"]]

    def _look_at_calls(self) -> None:
        """Look at what the power would have left at each call since the last death."""
        with self._trace.open() as file:
            file.seek(self._seen)
            lines = file.read().splitlines()
            self._seen = file.tell()
        for upload in self._uploads:
            if upload.cuts:
                upload.cuts.follow(lines)
                assert not upload.cuts.found, "\n".join(upload.cuts.found[:5])
        self._tally.counts["calls"] += len(lines)

    def _send(self) -> None:
        """Have clients send until the daemon is dead, or for a while."""
        clients = [
            Client(self._daemon, upload, random.Random(self._choose.randrange(2**32)), self._tally)
            for upload in self._uploads
            for _ in range(CLIENTS)
        ]
        clients += [self._rival(upload) for upload in self._uploads if upload.cuts and self._choose.random() < RIVALS]
        threads = [threading.Thread(target=self._guarded, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _rival(self, upload: Upload) -> Client:
        """Return a client of the same image with another ticket."""
        ticket_id = secrets.token_hex(16)
        self._daemon.put_ticket({**upload.fields, "uuid": ticket_id})
        return Client(self._daemon, upload, random.Random(self._choose.randrange(2**32)), self._tally, ticket_id)

    def _guarded(self, client: Client) -> None:
        try:
            client.run(self._asking())
        except BaseException as e:  # noqa: BLE001 - raised again in _send()
            self._failures.append(e)

    # The end

    def _complete(self) -> None:
        """Send what is not durable. After that all is, and the image is what was durable and what was sent now."""
        contents = [upload.image.content() for upload in self._uploads]
        assert self._start(NEVER)
        self._install()
        self._look(contents)
        wanted = [self._resume(upload) for upload in self._uploads]
        self._check_whole()
        self._daemon.stop()
        self._look_at_calls()
        for upload, content in zip(self._uploads, wanted, strict=True):
            assert upload.image.content() == content, f"{upload.image.path.name} is not what was sent"
        assert self._start(NEVER)
        self._check_whole()
        for upload in self._uploads:
            self._daemon.remove(upload.ticket)
        self._daemon.stop()

    def _resume(self, upload: Upload) -> bytes:
        """Send new content for all that is not durable, and return that of the image."""
        wanted = bytearray(self._choose.randbytes(upload.size))
        rest = [(0, upload.size)]
        for start, end in upload.sent.told:
            wanted[start:end] = upload.sent.content[start:end]
            rest = without(rest, (start, end))
        self._tally.counts["bytes durable at the end"] += upload.size - sum(end - start for start, end in rest)
        if self._choose.random() < 0.5:
            self._resume_by_program(upload, bytes(wanted))
            return bytes(wanted)
        line = Client(self._daemon, upload, self._choose, self._tally).connect()
        with contextlib.closing(line):
            for start, end in rest:
                for place in range(start, end, PIECE):
                    _good(line, line.write(place, bytes(wanted[place : min(end, place + PIECE)])))
            _good(line, line.flush())
        return bytes(wanted)

    def _resume_by_program(self, upload: Upload, wanted: bytes) -> None:
        """Have imageio-client do it: it asks what is durable, and compares that."""
        source = self._directory / "source"
        source.write_bytes(wanted)
        url, ca = self._daemon.url(upload.ticket), str(self._daemon.cafile)
        result = programs.run("upload", "--no-state", "--compare-all", "--verify", "--cafile", ca, str(source), url)
        assert result.status == 0, result
        self._tally.counts["resumed by imageio-client"] += 1

    def _check_whole(self) -> None:
        for upload in self._uploads:
            told = self._told(upload)
            assert told == [(0, upload.size)], f"{upload.image.path.name}: {told[:5]}, and all of it is durable"


def _good(line: Line, request: bytes) -> None:
    line.send(request)
    assert line.answer(), "a request failed"
