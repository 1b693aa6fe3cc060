# SPDX-License-Identifier: Apache-2.0
"""Images that qemu-nbd reads and writes: those in formats other than raw, and what else qemu knows to open."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...image.extents import Extent
from ...units import MiB
from ..errors import LocalError
from ..stopping import Stop
from .archive import Member
from .nbd_image import NbdImage
from .part_file import PartFile
from .source import changed, identity_of

#: Most connections to one qemu-nbd: one for each thread.
SHARED = 64
START_TIMEOUT = 30.0
#: Seconds between checks whether it does. It takes some 15 ms.
POLL = 0.002
#: Seconds that qemu-nbd may take to close an image after its last client has left.
STOP_TIMEOUT = 600.0
#: The same after stop(): what is under way may end, such that the lock of an image on Ceph is released. If qemu-nbd is
#: killed, the next program waits 30 s for it, in place of 0.5 s (tests/lab/ceph).
STOPPED_TIMEOUT = 5.0


class QemuNbd:
    """A qemu-nbd process that serves one image on a private socket until its last client leaves. Raises LocalError.

    name: of the image in messages. image: arguments that tell what it is.
    """

    def __init__(self, name: str, image: Sequence[str], *, writable: bool = False) -> None:
        self._name = name
        self._stop = Stop()
        self._closed = False
        self._directory = tempfile.mkdtemp(prefix="imageio-client-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._pid_file = f"{self._directory}/pid"
        socket = f"{self._directory}/nbd"
        command = ["qemu-nbd", f"--socket={socket}", f"--pid-file={self._pid_file}", f"--shared={SHARED}"]
        command += ["--discard=unmap"] if writable else ["--read-only"]
        command += image
        try:
            # A process group of its own, so that Ctrl-C does not kill it.
            self._process = subprocess.Popen(  # noqa: S603 - no shell
                command, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors, process_group=0
            )
        except OSError as e:
            self._clean()
            raise LocalError(f"can't run qemu-nbd, which {name} needs: {e.strerror}") from e
        try:
            self._wait()
            self.image = NbdImage(name, socket, self._stop)
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._clean()
            raise

    def stop(self) -> None:
        """Disconnect. Requests that wait for storage raise Stopped, and those that follow."""
        self._stop.stop()

    @contextlib.contextmanager
    def serving(self) -> Iterator[NbdImage]:
        """Return the image for the block. Raises Stopped after stop()."""
        self._stop.check()
        try:
            yield self.image
        except LocalError:
            self._stop.check()
            raise

    def finish(self) -> None:
        """Flush, and end qemu-nbd. Raises LocalError, and Stopped if stop() came before the end."""
        with self.serving() as image:
            image.flush()
        self.close()
        self._stop.check()  # close() has not told then whether qemu-nbd failed

    def close(self) -> None:
        """Disconnect, and wait until qemu-nbd has closed the image. Raises LocalError if it fails.

        After stop() it is no failure, and not waited for longer than STOPPED_TIMEOUT. Later calls do nothing.
        """
        if self._closed:
            return
        self._closed = True
        self.image.close()
        try:
            status, reason = self._wait_for_end(), self._said()
        finally:
            self._clean()
        if status != 0 and not self._stop.is_set:
            raise LocalError(f"qemu-nbd failed with {self._name}: {reason}")

    def _wait(self) -> None:
        """Wait until it accepts connections, when it writes its pid file. Its socket exists before that."""
        deadline = time.monotonic() + START_TIMEOUT
        while not os.path.exists(self._pid_file):
            if self._process.poll() is not None:
                raise LocalError(f"can't open {self._name}: {self._said()}")
            if time.monotonic() > deadline:
                raise LocalError(
                    f"can't open {self._name}: not open after {START_TIMEOUT:.0f} seconds: does its storage answer?"
                )
            time.sleep(POLL)

    def _wait_for_end(self) -> int:
        """Return its status. It is killed if it does not end in time."""
        try:
            return self._process.wait(STOPPED_TIMEOUT if self._stop.is_set else STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _said(self) -> str:
        self._errors.seek(0)
        text = self._errors.read(2000).decode(errors="replace")
        return " ".join(text.split()) or "it does not tell why"

    def _clean(self) -> None:
        self._errors.close()
        for name in ("nbd", "pid"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{name}")
        os.rmdir(self._directory)


class ServedSource:
    """A source that a qemu-nbd serves, which ends with it. Methods raise LocalError."""

    is_stream = False
    portion = 32 * MiB

    def __init__(self, server: QemuNbd) -> None:
        self._server = server
        self.size = server.image.size

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps."""
        with self._server.serving() as image:
            yield from image.extents()

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        with self._server.serving() as image:
            image.read(offset, buffer)

    def stop(self) -> None:
        """Make reads that wait raise Stopped, and those that follow."""
        self._server.stop()

    def close(self) -> None:
        """End qemu-nbd."""
        self._server.close()


class ServedTarget:
    """A target that a qemu-nbd serves, which ends with it. Methods raise LocalError."""

    portion = 32 * MiB
    block = 1
    _server: QemuNbd | None = None

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""
        with self._started.serving() as image:
            image.write(offset, data)

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""
        with self._started.serving() as image:
            image.zero(offset, length)

    def finish(self) -> None:
        """Flush, and end qemu-nbd."""
        self._started.finish()

    def abandon(self) -> None:
        """End qemu-nbd. What was written stays."""
        if self._server is not None:
            self._server.close()

    def stop(self) -> None:
        """Make writes that wait raise Stopped, and those that follow."""
        if self._server is not None:
            self._server.stop()

    @property
    def _started(self) -> QemuNbd:
        if self._server is None:
            raise RuntimeError("not started")
        return self._server


class QemuSource(ServedSource):
    """A source in a format other than raw."""

    def __init__(self, path: Path, format_name: str, member: Member | None = None, *, shared: bool = False) -> None:
        self._files = {file: identity_of(file) for file in ([path] if member else _chain(path, format_name))}
        self.identity: Mapping[str, object] | None = None
        if None not in self._files.values():
            self.identity = {
                "format": format_name,
                "member": list(member) if member else None,
                "files": list(self._files.values()),
            }
        self._shared = shared
        super().__init__(QemuNbd(str(path), _image(path, format_name, member, shared=shared)))

    def check(self) -> None:
        """Raise LocalError if size or mtime of a file of the backing chain has changed."""
        for file, opened in self._files.items():
            if not self._shared and identity_of(file) != opened:
                raise changed(file)


class QemuTarget(ServedTarget):
    """A new image in a format other than raw, called NAME.part until it is complete. Methods raise LocalError."""

    reads_zero = True
    options: tuple[str, ...] = ()
    compress = False

    def __init__(self, path: Path, format_name: str) -> None:
        self._part = PartFile(path)
        self._format = format_name

    def start(self, size: int) -> None:
        """Create the image, and serve it by qemu-nbd."""
        run_qemu_img(
            "create", "-q", "-f", self._format, *self.options, "--", str(self._part.path.absolute()), str(size)
        )
        image = _image(self._part.path, self._format, compress=self.compress)
        self._server = QemuNbd(str(self._part.path), image, writable=True)

    def finish(self) -> None:
        """Flush the image, end qemu-nbd, and rename the file."""
        super().finish()
        self._closed()
        self._part.publish()

    def _closed(self) -> None:
        """Do what is left when qemu-nbd has closed the complete image."""

    def abandon(self) -> None:
        """Remove the image."""
        try:
            super().abandon()
        finally:
            self._part.remove()


def run_qemu_img(*arguments: str) -> str:
    """Run qemu-img and return its standard output. Raises LocalError."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            ["qemu-img", *arguments],  # noqa: S607
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError as e:
        raise LocalError(f"can't run qemu-img, which other formats than raw need: {e.strerror}") from e
    if done.returncode != 0:
        raise LocalError(f"qemu-img {arguments[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def _chain(path: Path, format_name: str) -> list[Path]:
    """Return the files of an image and its backing chain. Raises LocalError."""
    told = run_qemu_img(
        "info", "--force-share", "--backing-chain", "--output=json", "-f", format_name, "--", str(path.absolute())
    )
    return [Path(layer["filename"]) for layer in json.loads(told)]


def _image(
    path: Path, format_name: str, member: Member | None = None, *, compress: bool = False, shared: bool = False
) -> list[str]:
    # An absolute path: qemu may take a relative one for a URL.
    name = str(path.absolute())
    if member is None and not compress and not shared:
        return [f"--format={format_name}", "--", name]
    file: dict[str, object] = {"driver": "host_device" if path.is_block_device() else "file", "filename": name}
    if member is not None:
        file = {"driver": "raw", "offset": member.offset, "size": member.size, "file": file}
    image: dict[str, object] = {"driver": format_name, "file": file}
    if shared:
        image |= {"read-only": True, "force-share": True}
    return ["--", "json:" + json.dumps({"driver": "compress", "file": image} if compress else image)]
