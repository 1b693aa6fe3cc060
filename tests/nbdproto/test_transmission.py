# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.nbdproto.agreement import Export, Transmission
from imageio_daemon.nbdproto.constants import MAX_PAYLOAD, Command, CommandFlag, ErrorNumber, ExportFlag
from imageio_daemon.nbdproto.messages import BadMagic, RequestHeader
from tests.support.nbdoracle.limits import MAX_DRAINED_PAYLOAD
from tests.support.nbdoracle.requests import Request, Requests

GIB = 1 << 30
SIZE = 8 * GIB
DATA_COMMANDS = [c for c in Command if c not in (Command.DISC, Command.FLUSH)]
LENGTHS = [0, 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 2**31, 2**32 - 1]


def transmission(
    *,
    extended: bool = False,
    structured: bool = True,
    read_only: bool = False,
    can_flush: bool = True,
    contexts: tuple[int, ...] = (1,),
) -> Requests:
    export = Export("disk", SIZE, read_only=read_only, can_flush=can_flush)
    return Requests(Transmission(export, structured=structured, extended=extended, contexts=contexts))


@pytest.fixture(params=[False, True], ids=["compact", "extended"])
def extended(request: pytest.FixtureRequest) -> bool:
    form: bool = request.param
    return form


@pytest.fixture
def serve(extended: bool) -> Requests:
    """A writable export of 8 GiB with everything negotiated, in both forms of headers."""
    return transmission(extended=extended)


def parse(serve: Requests, command: int, offset: int = 0, length: int = 0, flags: int = 0, cookie: int = 7) -> Request:
    if serve.extended and command == Command.WRITE:
        flags |= CommandFlag.PAYLOAD_LEN
    header = RequestHeader(command, flags, cookie, offset, length).pack(extended=serve.extended)
    return serve.parse(b"before" + header + b"after", 6)


@pytest.mark.parametrize("cookie", [0, 1, 2**64 - 1])
def test_request_is_parsed_wherever_it_lies(serve: Requests, cookie: int) -> None:
    request = parse(serve, Command.READ, 4096, 512, cookie=cookie)
    assert (request.command, request.offset, request.length, request.cookie) == (Command.READ, 4096, 512, cookie)
    assert request.error is None
    assert request.payload == 0


MAGICS = [0x12560953, 0x96744668, 0x25609514, 0x67446698, 0x668E33EF, 0, 0xFFFFFFFF]


@pytest.mark.parametrize("magic", MAGICS)
def test_wrong_magic_ends_the_connection(serve: Requests, magic: int) -> None:
    with pytest.raises(BadMagic):
        serve.parse(magic.to_bytes(4) + bytes(28))


def test_magic_of_the_other_form_ends_the_connection(serve: Requests) -> None:
    other = RequestHeader(Command.READ, 0, 0, 0, 1).pack(extended=not serve.extended)
    with pytest.raises(BadMagic):
        serve.parse(other + bytes(4))


@pytest.mark.parametrize("command", [8, 9, 77, 65535])
def test_unknown_command_is_invalid_and_has_no_payload(serve: Requests, command: int) -> None:
    request = parse(serve, command, 0, 512)
    assert request.error == ErrorNumber.EINVAL
    assert request.payload == 0


def test_payload_of_a_command_that_takes_none_is_consumed_and_refused() -> None:
    serve = transmission(extended=True)
    for command in (Command.READ, Command.FLUSH, Command.TRIM, Command.BLOCK_STATUS, 77):
        request = parse(serve, command, 0, 512, CommandFlag.PAYLOAD_LEN)
        assert request.error == ErrorNumber.EINVAL
        assert request.payload == 512


@pytest.mark.parametrize("bit", range(16))
@pytest.mark.parametrize("command", Command)
def test_flags_that_a_command_does_not_take_are_invalid(serve: Requests, command: Command, bit: int) -> None:
    taken = {
        Command.READ: 0x05,
        Command.WRITE: 0x21 if serve.extended else 0x01,
        Command.WRITE_ZEROES: 0x13,
        Command.BLOCK_STATUS: 0x09,
    }.get(command, 0x01)
    request = parse(serve, command, 0, 512, 1 << bit)
    assert (request.error is None) == bool(taken >> bit & 1)
    if command == Command.WRITE:
        assert request.payload == 512


@pytest.mark.parametrize("read_only", [False, True])
def test_an_export_that_cannot_flush_offers_neither_flush_nor_fua(read_only: bool) -> None:
    flushes = ExportFlag.SEND_FLUSH | ExportFlag.SEND_FUA
    other = Export("disk", SIZE, read_only=read_only).flags(chunks=True)
    assert other & flushes == flushes
    assert Export("disk", SIZE, read_only=read_only, can_flush=False).flags(chunks=True) == other & ~flushes


def test_flush_and_fua_are_invalid_where_they_are_not_offered(extended: bool) -> None:
    serve = transmission(extended=extended, can_flush=False)
    assert parse(serve, Command.FLUSH).error == ErrorNumber.EINVAL
    for command in DATA_COMMANDS:
        assert parse(serve, command, 0, 512, CommandFlag.FUA).error == ErrorNumber.EINVAL
        assert parse(serve, command, 0, 512).error is None
    assert parse(serve, Command.DISC).error is None


def test_dont_fragment_needs_chunks() -> None:
    simple = transmission(structured=False)
    assert parse(simple, Command.READ, 0, 512, CommandFlag.DF).error == ErrorNumber.EINVAL


@pytest.mark.parametrize("command", Command)
def test_fua_goes_with_every_command(serve: Requests, command: Command) -> None:
    request = parse(serve, command, 0, 512, CommandFlag.FUA)
    assert request.error is None
    assert request.fua


@pytest.mark.parametrize("command", DATA_COMMANDS)
@pytest.mark.parametrize(("offset", "length"), [(SIZE, 1), (SIZE - 1, 2), (2**64 - 1, 1), (2**64 - 512, 512)])
def test_range_past_the_end_is_refused(serve: Requests, command: Command, offset: int, length: int) -> None:
    wanted = ErrorNumber.ENOSPC if command in (Command.WRITE, Command.WRITE_ZEROES) else ErrorNumber.EINVAL
    assert parse(serve, command, offset, length).error == wanted


@pytest.mark.parametrize("command", DATA_COMMANDS)
def test_the_last_byte_is_served(serve: Requests, command: Command) -> None:
    assert parse(serve, command, SIZE - 1, 1).error is None


@pytest.mark.parametrize("command", [Command.READ, Command.WRITE, Command.TRIM, Command.WRITE_ZEROES, Command.CACHE])
@pytest.mark.parametrize("offset", [0, SIZE])
def test_empty_range_is_served(serve: Requests, command: Command, offset: int) -> None:
    assert parse(serve, command, offset, 0).error is None


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (Command.WRITE, 0),
        (Command.WRITE, CommandFlag.FUA),
        (Command.TRIM, 0),
        (Command.WRITE_ZEROES, 0),
        (Command.WRITE_ZEROES, CommandFlag.FAST_ZERO),
    ],
)
@pytest.mark.parametrize("offset", [0, SIZE])
def test_writing_to_a_read_only_export_is_not_permitted(
    extended: bool, command: Command, flags: int, offset: int
) -> None:
    serve = transmission(extended=extended, read_only=True)
    request = parse(serve, command, offset, 512, flags)
    assert request.error == ErrorNumber.EPERM
    assert request.payload == (512 if command == Command.WRITE else 0)


def test_fast_zero_past_the_end_has_no_space(serve: Requests) -> None:
    request = parse(serve, Command.WRITE_ZEROES, SIZE, 512, CommandFlag.FAST_ZERO)
    assert request.error == ErrorNumber.ENOSPC


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("command", DATA_COMMANDS)
def test_every_length_is_served_or_refused_by_its_rule(serve: Requests, command: Command, length: int) -> None:
    request = parse(serve, command, 0, length)
    wanted = None
    if length > MAX_PAYLOAD and command == Command.READ:
        wanted = ErrorNumber.EOVERFLOW
    elif (length > MAX_PAYLOAD and command == Command.WRITE) or (not length and command == Command.BLOCK_STATUS):
        wanted = ErrorNumber.EINVAL
    assert request.error == wanted
    assert request.payload == (length if command == Command.WRITE else 0)


def test_payload_to_be_drained_has_a_limit(serve: Requests) -> None:
    assert not parse(serve, Command.WRITE, 0, MAX_DRAINED_PAYLOAD).must_end
    assert parse(serve, Command.WRITE, 0, MAX_DRAINED_PAYLOAD + 1).must_end


def test_64_bit_lengths_zero_and_ask_a_whole_image() -> None:
    serve = transmission(extended=True)
    for command in (Command.WRITE_ZEROES, Command.TRIM, Command.BLOCK_STATUS, Command.CACHE):
        assert parse(serve, command, 0, SIZE).error is None
        assert parse(serve, command, 1, SIZE).error is not None
    assert parse(serve, Command.WRITE, 0, 2**64 - 1).must_end


def test_write_without_payload_flag_has_its_payload_with_extended_headers() -> None:
    serve = transmission(extended=True)
    request = serve.parse(RequestHeader(Command.WRITE, 0, 0, 0, 512).pack(extended=True))
    assert (request.error, request.payload) == (None, 512)


def test_status_that_was_not_negotiated_is_invalid(extended: bool) -> None:
    serve = transmission(extended=extended, contexts=())
    assert parse(serve, Command.BLOCK_STATUS, 0, 512).error == ErrorNumber.EINVAL


@pytest.mark.parametrize(("offset", "length"), [(0, 2**32 - 1), (0, 2**32 - 512), (1, 2**32 - 1), (512, 2**32 - 1)])
def test_status_of_the_longest_range_is_served(serve: Requests, offset: int, length: int) -> None:
    assert parse(serve, Command.BLOCK_STATUS, offset, length).error is None


@pytest.mark.parametrize("command", [Command.FLUSH, Command.DISC])
def test_reserved_fields_are_ignored(serve: Requests, command: Command) -> None:
    assert parse(serve, command, 512, 512).error is None


def test_request_shows_no_data() -> None:
    assert repr(Request(1, 2, 3, 4, 5)) == "<Request 1 4+5 flags=0x2>"
