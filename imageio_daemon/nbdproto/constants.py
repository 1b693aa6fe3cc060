# SPDX-License-Identifier: Apache-2.0
"""Numbers of the protocol, and the limits that are set to a peer."""

from enum import IntEnum

from ..units import KiB, MiB

PORT = 10809

# Magic numbers

NBDMAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
#: In the place of IHAVEOPT: a server older than options.
OLDSTYLE = 0x00420281861253
OPTION_REPLY = 0x0003E889045565A9
REQUEST = 0x25609513
SIMPLE_REPLY = 0x67446698
CHUNK = 0x668E33EF
EXTENDED_REQUEST = 0x21E41C71
EXTENDED_CHUNK = 0x6E8A278C

# Limits of the protocol

MAX_STRING = 4096
MAX_NAME = 4096
#: The largest READ and WRITE, what all known clients keep to; also what is advertised.
MAX_PAYLOAD = 32 * MiB
#: A longer payload is read and refused up to here; past it the connection ends.
MAX_DRAINED_PAYLOAD = 64 * MiB
#: Always served with the don't-fragment flag.
MIN_DONT_FRAGMENT = 64 * KiB
MIN_BLOCK = 1
#: Extents in one reply: 1 MiB of descriptors with extended headers.
MAX_EXTENTS = 65536
#: What the 32-bit length of a compact extent can say, in whole blocks of any size.
MAX_COMPACT_EXTENT = 2**32 - 64 * KiB

# Limits of the negotiation

#: An option's payload: two strings of the longest kind and 64 queries of 900 bytes.
MAX_OPTION = 64 * KiB
#: A longer one is read and refused up to here; past it the connection ends.
MAX_DRAINED_OPTION = 1 * MiB
#: Options on one connection. Each export that is listed allows 8 more: nbdinfo --list asks two about each.
MAX_OPTIONS = 64
MAX_OPTIONS_LISTED = 8
MAX_QUERIES = 64
#: Text with an error, in bytes. Clients refuse replies of more than about 1000.
MAX_ERROR_TEXT = 256

# Limits that the client sets to a server

#: An option reply's payload: two strings of the longest kind, and a few numbers.
MAX_OPTION_REPLY = 2 * MAX_STRING + 64
#: Replies in one negotiation. A server of 64 bitmaps sends about 150.
MAX_OPTION_REPLIES = 1024
#: Contexts that the client asks for: two of the server's own and its bitmaps.
MAX_CONTEXTS = 64
#: An error chunk: number, length, text and offset.
MAX_ERROR_CHUNK = 4 + 2 + MAX_STRING + 8
#: Extents in one chunk, as the protocol recommends: 8 MiB, or 16 MiB with extended headers.
MAX_STATUS_EXTENTS = 2**20
#: Bytes of all chunks of extents in reply to one request. qemu's have 2 MiB at most, for each of MAX_CONTEXTS contexts.
MAX_STATUS_BYTES = 160 * MiB
#: Pieces apart from each other in which the data of one READ may have come so far. Servers send them in order.
MAX_PIECES = 65536
#: Size of an export, in bytes: what an offset can say.
MAX_SIZE = 2**63 - 1
#: Smallest and largest of the sizes that BLOCK_SIZE may tell.
LARGEST_MINIMUM = 64 * KiB
SMALLEST_PREFERRED = 512
#: "No limit" as the largest payload.
NO_MAXIMUM = 0xFFFFFFFF

BASE_ALLOCATION = "base:allocation"
#: In which layer of a chain the data is: 0 is none, 1 the top one.
ALLOCATION_DEPTH = "qemu:allocation-depth"
#: The beginning of the names of bitmaps; asked for alone, it lists them.
DIRTY_BITMAP = "qemu:dirty-bitmap:"


class HandshakeFlag:
    """Bits of the server's greeting, and of the client's answer."""

    FIXED_NEWSTYLE = 1
    NO_ZEROES = 2


class Option(IntEnum):
    """What a client asks in the negotiation."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    STARTTLS = 5
    INFO = 6
    GO = 7
    STRUCTURED_REPLY = 8
    LIST_META_CONTEXT = 9
    SET_META_CONTEXT = 10
    EXTENDED_HEADERS = 11


class Reply(IntEnum):
    """What an option is answered."""

    ACK = 1
    SERVER = 2
    INFO = 3
    META_CONTEXT = 4
    ERR_UNSUP = 0x80000001
    ERR_POLICY = 0x80000002
    ERR_INVALID = 0x80000003
    ERR_PLATFORM = 0x80000004
    ERR_TLS_REQD = 0x80000005
    ERR_UNKNOWN = 0x80000006
    ERR_SHUTDOWN = 0x80000007
    ERR_BLOCK_SIZE_REQD = 0x80000008
    ERR_TOO_BIG = 0x80000009
    ERR_EXT_HEADER_REQD = 0x8000000A


class Info(IntEnum):
    """Items about an export."""

    EXPORT = 0
    NAME = 1
    DESCRIPTION = 2
    BLOCK_SIZE = 3


class ExportFlag:
    """Transmission flags: what an export can do."""

    HAS_FLAGS = 0x0001
    READ_ONLY = 0x0002
    SEND_FLUSH = 0x0004
    SEND_FUA = 0x0008
    ROTATIONAL = 0x0010
    SEND_TRIM = 0x0020
    SEND_WRITE_ZEROES = 0x0040
    SEND_DF = 0x0080
    CAN_MULTI_CONN = 0x0100
    SEND_RESIZE = 0x0200
    SEND_CACHE = 0x0400
    SEND_FAST_ZERO = 0x0800
    BLOCK_STATUS_PAYLOAD = 0x1000


class Command(IntEnum):
    """What a request asks."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    CACHE = 5
    WRITE_ZEROES = 6
    BLOCK_STATUS = 7


class CommandFlag:
    """Bits of a request."""

    FUA = 0x01
    NO_HOLE = 0x02
    DF = 0x04
    REQ_ONE = 0x08
    FAST_ZERO = 0x10
    PAYLOAD_LEN = 0x20


class Chunk(IntEnum):
    """Types of a reply's chunks."""

    NONE = 0
    OFFSET_DATA = 1
    OFFSET_HOLE = 2
    BLOCK_STATUS = 5
    BLOCK_STATUS_EXT = 6
    ERROR = 0x8001
    ERROR_OFFSET = 0x8002


#: Flag of a reply's last chunk.
DONE = 1


class Status:
    """Bits of an extent in base:allocation."""

    HOLE = 1
    ZERO = 2


#: The bit of an extent in a dirty bitmap.
DIRTY = 1


class ErrorNumber(IntEnum):
    """The only error numbers on the wire, whatever errno is here."""

    EPERM = 1
    EIO = 5
    ENOMEM = 12
    EINVAL = 22
    ENOSPC = 28
    EOVERFLOW = 75
    ENOTSUP = 95
    ESHUTDOWN = 108
