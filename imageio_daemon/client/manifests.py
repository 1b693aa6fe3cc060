# SPDX-License-Identifier: Apache-2.0
"""The library's function verify(), which compares an image with a manifest that download() has written."""

import contextlib
import os
from pathlib import Path

from .local.in_use import locked
from .local.opening import How, open_source
from .server.address import is_url
from .server.session import DEFAULTS, ClientSession, Settings, securing
from .transfer import workers
from .transfer.manifest import ManifestComparison
from .transfer.progress import Counter


def verify(
    manifest: str | os.PathLike[str],
    image: str | os.PathLike[str],
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002 - as in upload()
    shared: bool = False,
) -> list[tuple[int, int]]:
    """Return offset and length of the ranges, in whole blocks, in which an image differs from the manifest.

    `image` is local, or the URL of an image, whose server computes the digests. A server without `checksum_blocks` does
    not tell where they differ; then the range is the whole image. With `shared`, other programs may write to a local
    image at the same time, see upload(). Raises ClientError.
    """
    if is_url(os.fspath(image)):
        with ClientSession(os.fspath(image), settings) as session:

            def ask() -> list[tuple[int, int]]:
                opened = session.open()
                return ManifestComparison(Path(manifest), opened.size(), Counter()).there(session, opened)

            (found,) = workers.run([ask], session.stop)
    else:
        with (
            locked(image, writes=False, shared=shared),
            contextlib.closing(open_source(image, How(format, shared=shared, secure=securing(settings)))) as source,
        ):
            found = ManifestComparison(Path(manifest), source.size, Counter()).here(source)
    return [(start, end - start) for start, end in found]
