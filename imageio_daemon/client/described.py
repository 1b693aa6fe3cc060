# SPDX-License-Identifier: Apache-2.0
"""Descriptions of transfers: from where, to where, and how. Both the library and the command make and run them."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from .errors import Usage
from .local.choosing import Chosen, Making, choose_target
from .local.in_use import END, END_OR_SHARE, locked
from .local.opening import How, Origin, open_source, reading, require_content
from .local.source import MarkedSource, Source
from .local.stream import Watch, unwatched
from .server.address import is_url
from .server.session import ClientSession, Settings, securing
from .server.web import fetched, shown
from .transfer import workers
from .transfer.download import Download, Downloaded
from .transfer.progress import Counter, Opening, Report
from .transfer.remote_source import RemoteSource
from .transfer.transfer_options import DownloadOptions, SendOptions, Uploaded, UploadOptions
from .transfer.upload import Upload

if TYPE_CHECKING:
    from .transfer.preview import Preview

#: The path or URL of a local image, or a stream.
Local: TypeAlias = str | os.PathLike[str] | BinaryIO


@dataclass(frozen=True)
class Uploading:
    """An upload of a local image. Methods raise ClientError."""

    source: Local
    url: str
    settings: Settings
    options: UploadOptions

    def run(self, report: Report | None = None) -> Uploaded:
        """Upload the image. Call `report` every 0.1 s."""
        counter = Counter()
        with self._opened(self.options, Opening(counter, report)) as (session, source, _):
            return Upload(source, session, self.options, report, counter).run()

    def preview(self) -> "Preview":
        """Return what run() would do. Changes nothing on the server, and keeps no file on this host."""
        from .transfer import preview  # noqa: PLC0415 - other transfers start 1 ms earlier without it

        how = replace(self.options, expect=None)  # checking that would take long
        with self._opened(how) as (session, source, given):
            session.stop.call(source.stop)
            names = {"name": _name(self.source, "standard input"), "format_name": reading(given, how)}
            tell = partial(preview.preview_upload, source, session, self.options, **names)
            (told,) = workers.run([tell], session.stop)
            return told

    @contextlib.contextmanager
    def _opened(self, how: How, watch: Watch = unwatched) -> Iterator[tuple[ClientSession, Source, Origin]]:
        """Open the source for the block, with a session that has not connected yet, and what was opened."""
        if isinstance(self.source, str) and is_url(self.source) and not is_url(self.url):
            raise Usage("the image comes first, then the URL")
        how = replace(how, secure=securing(self.settings))
        with (
            locked(self.source, writes=False, shared=how.shared),
            ClientSession(self.url, self.settings) as session,  # an invalid address fails before much is read
            fetched(self.source, self.settings) as given,
            contextlib.closing(open_source(given, how, watch)) as opened,
        ):
            require_content(opened, given, how.member)
            if self.options.update and opened.is_stream:
                raise Usage("an update reads the image twice: decompress or copy it to a file first")
            if self.options.bitmap is not None and not isinstance(opened, MarkedSource):
                raise Usage("only a qcow2 image in a file or an export of an NBD server has a bitmap")
            yield session, opened, given


@dataclass(frozen=True)
class Downloading:
    """A download to a local target. Methods raise ClientError."""

    url: str
    target: Local
    settings: Settings
    options: DownloadOptions

    def run(self, report: Report | None = None) -> Downloaded:
        """Download the image. Call `report` every 0.1 s."""
        chosen = self.chosen
        with self._locked(shared=self.options.shared or chosen.locks) as session:
            return Download(session, chosen.make(), self.options, report).run()

    def preview(self) -> "Preview":
        """Return what run() would do. Makes no file, and writes to no image."""
        from .transfer import preview  # noqa: PLC0415 - as above

        chosen = self.chosen
        with self._locked(shared=self.options.shared and not chosen.locks) as session:  # nothing else locks it
            name = _name(self.target, "standard output")
            tell = partial(preview.preview_download, session, chosen, self.options, name=name)
            (told,) = workers.run([tell], session.stop)
            return told

    @cached_property
    def chosen(self) -> Chosen:
        """Return the target, which is not opened yet."""
        if isinstance(self.target, str | os.PathLike) and is_url(os.fspath(self.target)):
            twice = ": the command copy is for two servers" if is_url(self.url) else ""
            raise Usage(f"the URL comes first, then the image{twice}")
        options = self.options
        making = Making(
            format=options.format,
            compress=options.compress,
            dirty=options.dirty,
            continues=options.continues,
            update=options.update,
            secure=securing(self.settings),
        )
        return choose_target(self.target, making)

    @contextlib.contextmanager
    def _locked(self, *, shared: bool) -> Iterator[ClientSession]:
        """Lock the target for the block, with a session that has not connected yet."""
        remedy = END if self.chosen.locks else END_OR_SHARE
        with (
            locked(self.target, writes=True, shared=shared, remedy=remedy),
            ClientSession(self.url, self.settings) as session,
        ):
            yield session


@dataclass(frozen=True)
class Copying:
    """A copy from one server to another: an upload whose source is an image of a server. Methods raise ClientError."""

    source: str
    target: str
    settings: Settings
    source_settings: Settings
    options: SendOptions

    def run(self, report: Report | None = None) -> Uploaded:
        """Copy the image. Call `report` every 0.1 s."""
        if not (is_url(self.source) and is_url(self.target)):
            raise Usage("a copy is from one server to another: upload takes an image of this host, download makes one")
        with (
            ClientSession(self.target, self.settings) as session,
            ClientSession(self.source, self.source_settings) as origin,
        ):
            # Open it in a thread, so that Ctrl-C ends the wait.
            (opened,) = workers.run([lambda: RemoteSource(origin)], origin.stop)
            counter = Counter()
            counter.retries.append(origin.retries)
            with contextlib.closing(opened):
                return Upload(opened, session, self.options, report, counter).run()


def _name(image: Local, otherwise: str) -> str:
    if isinstance(image, str) and is_url(image):
        return shown(image)
    return str(Path(image)) if isinstance(image, os.PathLike) else image if isinstance(image, str) else otherwise
