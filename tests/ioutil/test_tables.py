# SPDX-License-Identifier: Apache-2.0
"""What C and Python both have to know is the same in both: numbers of NBD, limits."""

import dataclasses
from enum import IntEnum

import pytest

from imageio_daemon.config.backends import BackendFile
from imageio_daemon.config.options import describe
from imageio_daemon.nbdproto import constants
from imageio_daemon.nbdproto.constants import Chunk, Command, CommandFlag, ErrorNumber
from ioutil_ext import lib
from tests.support.nbdoracle.limits import ENDED, FAILED, NO_MEMORY, NOT_FAST, OUTSIDE, TOO_LONG


def numbers(prefix: str) -> dict[str, int]:
    """Return the constants of C whose names begin so."""
    return {name.removeprefix(prefix): getattr(lib, name) for name in dir(lib) if name.startswith(prefix)}


def named(numbers: type[IntEnum]) -> dict[str, int]:
    return {number.name: number.value for number in numbers}


def test_commands_of_nbd() -> None:
    assert numbers("CMD_") == named(Command)
    assert len(Command) == lib.COMMANDS


def test_flags_of_nbds_commands() -> None:
    assert numbers("FLAG_") == {name: bit for name, bit in vars(CommandFlag).items() if name.isupper()}


def test_errors_of_nbd() -> None:
    errors = numbers("NBD_E")
    assert errors
    assert {f"E{name}": number for name, number in errors.items()}.items() <= named(ErrorNumber).items()


def test_numbers_with_which_messages_of_nbd_begin() -> None:
    names = "REQUEST", "SIMPLE_REPLY", "CHUNK", "EXTENDED_REQUEST", "EXTENDED_CHUNK"
    assert numbers("MAGIC_") == {name: getattr(constants, name) for name in names}


def test_chunks_of_nbds_replies() -> None:
    assert numbers("CHUNK_") == {
        "NONE": Chunk.NONE,
        "DATA": Chunk.OFFSET_DATA,
        "HOLE": Chunk.OFFSET_HOLE,
        "STATUS": Chunk.BLOCK_STATUS,
        "STATUS_EXT": Chunk.BLOCK_STATUS_EXT,
        "ERROR": Chunk.ERROR,
    }


@pytest.mark.parametrize(
    ("limit", "same"),
    [
        (lib.MAX_PAYLOAD, constants.MAX_PAYLOAD),
        (lib.MAX_ERROR_TEXT, constants.MAX_ERROR_TEXT),
    ],
    ids=["payload", "text"],
)
def test_limits_of_nbd(limit: int, same: int) -> None:
    assert limit == same


def test_there_are_as_many_threads_as_c_can_have() -> None:
    (parse,) = [describe(field).parse for field in dataclasses.fields(BackendFile) if field.name == "io_threads"]
    assert parse(str(lib.IOU_MAX_THREADS)) == lib.IOU_MAX_THREADS
    with pytest.raises(ValueError, match="1025"):
        parse(str(lib.IOU_MAX_THREADS + 1))


def test_texts_of_nbds_errors_differ_and_are_short_enough() -> None:
    texts = {FAILED, ENDED, NOT_FAST, OUTSIDE, TOO_LONG, NO_MEMORY}
    assert len(texts) == 6
    assert all(0 < len(text) <= constants.MAX_ERROR_TEXT for text in texts)
    assert not lib.iou_nbd_text(6)
