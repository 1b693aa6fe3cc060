# SPDX-License-Identifier: Apache-2.0
"""The comparison at the end of an upload: of what was read here with what the server reads back."""

from collections.abc import Iterator
from typing import Any

from ..errors import ChecksumMismatch, ClientError, OtherFinalized, Refused, ServerFailed
from ..server.failures import unflushed
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from ..stopping import Stop
from .digest import Digest
from .progress import Counter, Phase

#: Seconds between two questions about the server's progress.
POLL = 1.0
#: Most verifications that are begun. A restart of the server ends one, and the next begins anew.
TRIES = 10
#: Most blocks whose digests are sent, so that the server can tell which differ: 1 MiB of JSON, for 58 GiB.
MAX_BLOCKS = 15_000
#: Most ranges that a message names.
MAX_NAMED = 4
#: The status of a finalize with another checksum than before.
CONFLICT = 409


def await_verification(image: RemoteImage, session: ClientSession, counter: Counter) -> None:
    """Wait for a verification that an earlier upload has begun, and ask for the abilities after it.

    Raises Stopped, and as RemoteImage does.
    """
    if is_finalized(session):
        wait(image, image.finalize_state(), counter, session.stop)
        session.ask_again(image)


def is_finalized(session: ClientSession) -> bool:
    """Return whether an earlier upload was complete, and only its answer was lost. Its ticket then writes no more."""
    return "finalize" in session.abilities.features and "zero" not in session.abilities.features


def not_writable(session: ClientSession, *, verify: bool) -> Iterator[ClientError]:
    """Yield why nothing can be written, now or ever, or put on stable storage.

    With `verify`, an image that is finalized is compared, and needs no writes.
    """
    features = session.abilities.features
    if failure := unflushed(features):
        yield failure
    if "zero" not in features and "finalize" not in features:
        yield Refused("the ticket does not allow writing: ask for one that does", 403)
    if is_finalized(session) and not verify:
        yield Refused("the image is finalized, and its ticket does not allow writing any more: ask for a new one", 403)


def no_checksum(session: ClientSession, *features: str) -> Iterator[ChecksumMismatch]:
    """Yield an error if the server has none of these features, with which it could compare at the end."""
    if not session.abilities.features.intersection(features):
        yield ChecksumMismatch(f"can't verify: {session.peer} computes no checksums. Nothing was transferred")


def prove(
    image: RemoteImage, digest: Digest, part: tuple[int, int] | None, session: ClientSession, counter: Counter
) -> str | None:
    """Have the server finalize if it can, and return what finalize() returns. Otherwise compare with its checksum.

    `part` is offset and length of the part to compare, in bytes, or None for the whole image. Raises ChecksumMismatch,
    OtherFinalized, and as finalize() does.
    """
    counter.begin(Phase.VERIFYING)
    features = session.abilities.features
    if part is None and "finalize" in features:
        try:
            return finalize(image, digest, counter, session.stop)
        except Refused as e:
            if e.http_status == CONFLICT and "zero" not in features:
                told = "the ticket was finalized with another image, and does not allow writing any more"
                raise OtherFinalized(f"{told}: ask for a new one", CONFLICT) from e
            raise
    theirs = image.checksum(digest.algorithm, digest.block_size, part)["checksum"]
    if theirs != digest.hexdigest():
        raise _mismatch(theirs, digest, [])
    return None


def finalize(image: RemoteImage, digest: Digest, counter: Counter, stop: Stop) -> str:
    """Have the server flush, compare and make the ticket read-only. Return what it has compared, `read` or `received`.

    Raises ChecksumMismatch, ServerFailed, Stopped, and as RemoteImage does.
    """
    for _ in range(TRIES):
        report = wait(image, image.finalize(_expected(digest)), counter, stop)
        if isinstance(blocks := report.get("mismatch"), list):
            raise _mismatch(report.get("checksum"), digest, [block for block in blocks if type(block) is int])
        if report.get("checksum") == digest.hexdigest() and isinstance(verified := report.get("verified"), str):
            return verified
        if report.get("state") == "failed":
            raise ServerFailed(f"the server could not verify the image: {report.get('reason')}")
        if report.get("state") != "open":  # "open" if the server was restarted
            raise ServerFailed("the server sent a malformed report of the verification")
        stop.sleep(POLL)
    raise ServerFailed(f"the server has ended {TRIES} verifications before they were complete: see its log")


def wait(image: RemoteImage, report: dict[str, Any], counter: Counter, stop: Stop) -> dict[str, Any]:
    """Wait for the end of a verification, and return its report. Raises Stopped, and as RemoteImage does."""
    while report.get("state") == "verifying":
        done, size = report.get("done"), report.get("size")
        if type(done) is int and type(size) is int:
            counter.begin(Phase.VERIFYING, size)
            counter.check(min(done, size))
        stop.sleep(POLL)
        report = image.finalize_state()
    return report


def _expected(digest: Digest) -> dict[str, object]:
    expected: dict[str, object] = {
        "algorithm": digest.algorithm,
        "block_size": digest.block_size,
        "checksum": digest.hexdigest(),
    }
    if (blocks := digest.blocks(MAX_BLOCKS)) is not None:
        expected["blocks"] = blocks
    return expected


def _mismatch(theirs: object, digest: Digest, blocks: list[int]) -> ChecksumMismatch:
    size = digest.block_size
    named = ", ".join(f"{block * size} to {(block + 1) * size}" for block in blocks[:MAX_NAMED])
    more = f" and {len(blocks) - MAX_NAMED} more places" if len(blocks) > MAX_NAMED else ""
    where = f" (they differ in the bytes from {named}{more})" if blocks else ""
    return ChecksumMismatch(
        f"the target reads as {theirs}, the source as {digest.hexdigest()}{where}: someone else writes to it, or its "
        "storage does not keep what it confirms; mend that, then send all with --restart, or what differs with --update"
    )
