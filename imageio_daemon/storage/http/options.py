# SPDX-License-Identifier: Apache-2.0
"""OPTIONS of an image on another server of the images API (docs/images-api.md)."""

import json
from typing import NamedTuple

import aiohttp

from ...units import KiB
from ..backend import Operation
from .client import HttpClient, unexpected

#: Bytes of the largest answer.
MAX_OPTIONS = 64 * KiB
#: Characters of the longest name of a server's process. The name of this daemon's process has 16.
MAX_INSTANCE = 256

#: The limit of bytes that a server has available: 2^64.
MAX_AVAILABLE = 2**64


class Options(NamedTuple):
    """The features of an image.

    max_readers, max_writers: connections, at least 1. instance: the name of the server's process. available: bytes of
    data that the image may have. None: not known.
    """

    features: frozenset[str]
    max_readers: int
    max_writers: int
    instance: str | None
    available: int | None


async def ask(client: HttpClient, op: Operation, max_connections: int) -> Options:
    """Return the answer of the server to OPTIONS for the image.

    max_connections: the upper limit of max_readers and max_writers, and their value if the answer has none. Raises
    StorageError with EPROTO if the answer is malformed or larger than MAX_OPTIONS, and what HttpClient.request()
    raises. Cancelling the operation ends the request.
    """
    what = f"OPTIONS {client.address}"
    async with client.request(op, "OPTIONS") as response:
        told = _decode(await _read_all(response.content, what), what)
    features = told.get("features", [])
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise unexpected(what, "invalid features")
    instance = told.get("instance")
    if instance is not None and (not isinstance(instance, str) or len(instance) > MAX_INSTANCE):
        raise unexpected(what, "an invalid instance")
    available = told.get("available")
    if available is not None and (type(available) is not int or not 0 <= available < MAX_AVAILABLE):
        raise unexpected(what, "an invalid size")
    return Options(
        frozenset(features),
        _limit(told.get("max_readers", max_connections), max_connections, what),
        _limit(told.get("max_writers", max_connections), max_connections, what),
        instance,
        available,
    )


async def _read_all(content: aiohttp.StreamReader, what: str) -> bytes:
    text = bytearray()
    async for data, _ in content.iter_chunks():
        text += data
        if len(text) > MAX_OPTIONS:
            raise unexpected(what, f"more than {MAX_OPTIONS} bytes")
    return bytes(text)


def _decode(text: bytes, what: str) -> dict[str, object]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise unexpected(what, "no JSON object")
    return told


def _limit(value: object, most: int, what: str) -> int:
    if type(value) is not int or value < 1:
        raise unexpected(what, "invalid limits")
    return min(value, most)
