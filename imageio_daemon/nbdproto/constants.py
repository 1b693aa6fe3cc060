# SPDX-License-Identifier: Apache-2.0
"""Numbers of the protocol (proto.md, "Values"), and the limits on what a peer may send. Sizes are in bytes."""

from enum import IntEnum

from ..units import KiB, MiB

PORT = 10809

# Magic numbers

NBDMAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
#: A server sends it in place of IHAVEOPT for a negotiation without options (proto.md, "Oldstyle negotiation").
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
#: The largest READ and WRITE, as advertised (proto.md, "Block size constraints"). All known clients respect it.
MAX_PAYLOAD = 32 * MiB
MIN_BLOCK = 1

# Limits of the negotiation

#: The longest payload of an option: about two strings of MAX_STRING and 64 queries of 900 bytes.
MAX_OPTION = 64 * KiB
#: Options with a longer payload, up to this size, are read and refused. Still longer ones end the connection.
MAX_DRAINED_OPTION = 1 * MiB
#: Most options on one connection. Each listed export allows 8 more: nbdinfo --list sends two for each.
MAX_OPTIONS = 64
MAX_OPTIONS_LISTED = 8
MAX_QUERIES = 64
#: The longest text of an error. Clients reject replies of more than about 1000 bytes.
MAX_ERROR_TEXT = 256

# Limits of the client on what a server may send

#: The longest payload of an option reply: two strings of MAX_STRING, and a few numbers.
MAX_OPTION_REPLY = 2 * MAX_STRING + 64
#: Most replies in one negotiation. A server of 64 bitmaps sends about 150.
MAX_OPTION_REPLIES = 1024
#: Most metadata contexts that the client selects: base:allocation, qemu:allocation-depth and the dirty bitmaps.
MAX_CONTEXTS = 64
#: The longest error chunk: number, length, text and offset.
MAX_ERROR_CHUNK = 4 + 2 + MAX_STRING + 8
#: Most extents in one chunk, 2^20 as proto.md recommends. They take 8 MiB, or 16 MiB with extended headers.
MAX_STATUS_EXTENTS = 2**20
#: The most that all chunks of extents in a reply take. qemu sends at most 2 MiB for each of MAX_CONTEXTS contexts.
MAX_STATUS_BYTES = 160 * MiB
#: Most disjoint ranges that have arrived of the data of one READ. Known servers send data in order.
MAX_PIECES = 65536
#: The largest size of an export. It is the largest signed 64-bit number, as for offsets of files.
MAX_SIZE = 2**63 - 1
#: The largest minimum block size and the smallest preferred one in NBD_INFO_BLOCK_SIZE.
LARGEST_MINIMUM = 64 * KiB
SMALLEST_PREFERRED = 512
#: The maximum block size that means "no limit".
NO_MAXIMUM = 0xFFFFFFFF

BASE_ALLOCATION = "base:allocation"
#: The layer of a backing chain that has the data: 1 for the top layer, 0 for none (qemu, docs/interop/nbd.rst).
ALLOCATION_DEPTH = "qemu:allocation-depth"
#: The prefix of the names of dirty bitmaps. A query of the prefix alone lists them (qemu, docs/interop/nbd.rst).
DIRTY_BITMAP = "qemu:dirty-bitmap:"


class HandshakeFlag:
    """Handshake flags of the server. Those of the client have the same values."""

    FIXED_NEWSTYLE = 1
    NO_ZEROES = 2


class OptionType(IntEnum):
    """Options of the client in the negotiation (proto.md, "Option types")."""

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
    """Types of option replies (proto.md, "Option reply types")."""

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


class InfoType(IntEnum):
    """Types of information in a reply NBD_REP_INFO."""

    EXPORT = 0
    NAME = 1
    DESCRIPTION = 2
    BLOCK_SIZE = 3


class ExportFlag:
    """Transmission flags of an export (proto.md, "Transmission flags")."""

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
    """Request types (proto.md, "Request types")."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    CACHE = 5
    WRITE_ZEROES = 6
    BLOCK_STATUS = 7


class CommandFlag:
    """Flags of a request (proto.md, "Command flags")."""

    FUA = 0x01
    NO_HOLE = 0x02
    DF = 0x04
    REQ_ONE = 0x08
    FAST_ZERO = 0x10
    PAYLOAD_LEN = 0x20


class Chunk(IntEnum):
    """Types of a structured reply's chunks (proto.md, "Structured reply types")."""

    NONE = 0
    OFFSET_DATA = 1
    OFFSET_HOLE = 2
    BLOCK_STATUS = 5
    BLOCK_STATUS_EXT = 6
    ERROR = 0x8001
    ERROR_OFFSET = 0x8002


#: NBD_REPLY_FLAG_DONE, the flag of a reply's last chunk.
DONE = 1


class Status:
    """Status bits of an extent in base:allocation (proto.md, '"base:allocation" metadata context')."""

    HOLE = 1
    ZERO = 2


#: The status bit of an extent in a dirty bitmap.
DIRTY = 1


class ErrorNumber(IntEnum):
    """The error numbers of the protocol (proto.md, "Error values"), which do not depend on the platform's errno."""

    EPERM = 1
    EIO = 5
    ENOMEM = 12
    EINVAL = 22
    ENOSPC = 28
    EOVERFLOW = 75
    ENOTSUP = 95
    ESHUTDOWN = 108
