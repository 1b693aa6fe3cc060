# SPDX-License-Identifier: Apache-2.0
"""Data is compressed on the wire where that is faster, and arrives as it is."""

import os
from pathlib import Path

import pytest

from imageio_daemon.client import Settings, Usage, upload
from imageio_daemon.client.local.compressed import zstd
from imageio_daemon.client.server.data import Encoded, Piece
from imageio_daemon.client.server.sending import Scaled
from imageio_daemon.client.transfer.wire_compression import (
    FIRST_TRY,
    MOST_SKIPPED,
    REFUSED_FOR,
    TRIED,
    TRIED_LENGTH,
    TRY_EACH,
    UNLIMITED,
    Choice,
    Compression,
    Compressor,
)
from tests.client.conftest import SIZE
from tests.examples.programs import ScriptedServer, answer
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB
from tests.support.polling import eventually

#: Zeros would not be sent.
TEXT = b"what is said again and again. " * (4 * MiB // 30)


def received(daemon: Daemon) -> int:
    """Return the bytes that the remote service has received. It is not told of before it has served anything."""
    served = daemon.control("GET", "/status").json()["served"].get("remote", {})
    return sum(by["received"] for by in served.values())


def sent(daemon: Daemon, source: Path, target: str, settings: Settings, mode: str) -> int:
    """Upload, and return how many bytes came over the wire."""
    before = received(daemon)
    done = upload(source, daemon.url(target), settings=settings, wire_compression=mode, verify=True)
    assert done.progress.data == len(TEXT)
    eventually(lambda: received(daemon) > before, "the connections have ended")
    return received(daemon) - before


def test_compressed_data_arrives_as_it_is(
    daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage
) -> None:
    target = new_image(b"\xff" * (SIZE + 1))
    upload(source, daemon.url(target.ticket), settings=settings, wire_compression="always", verify=True)
    assert target.content() == source.read_bytes()


def test_always_compresses_and_never_does_not(
    daemon: Daemon, tls: Settings, tmp_path: Path, new_image: MakeImage
) -> None:
    source = tmp_path / "source"
    source.write_bytes(TEXT)
    size = len(TEXT)
    assert sent(daemon, source, new_image(size=size).ticket, tls, "always") < size // 20
    assert sent(daemon, source, new_image(size=size).ticket, tls, "never") > size


def test_a_server_without_memory_to_decode_gets_it_as_it_is(tmp_path: Path) -> None:
    """At once: no time is given for retries."""
    source = tmp_path / "source"
    source.write_bytes(TEXT[:MiB])
    ok, busy = answer("200 OK"), answer("503 Busy", "", "X-Error-Code: too_many_decoders", "Connection: close")
    able = answer("200 OK", {"features": ["flush", "zero"], "encodings": ["zstd"], "instance": "a"})
    with ScriptedServer(able, ok, busy, able, ok, ok, able) as server:
        settings = Settings(connections=1, retry_for=0)
        upload(source, server.url, settings=settings, state=False, wire_compression="always")
    compressed, plain = server.bodies[2:5:2]
    assert (zstd.decompress(compressed), plain) == (source.read_bytes(), source.read_bytes())


def test_after_a_refusal_data_goes_as_it_is_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    made = Choice(Compression.ALWAYS)
    made.refused()
    assert not made.compresses(MiB)
    now = REFUSED_FOR
    assert made.compresses(MiB)


def test_another_word_is_refused(source: Path) -> None:
    with pytest.raises(Usage):
        upload(source, "https://localhost/images/x", wire_compression="sometimes")


# The choice


def choice(plain: float, compressed: float) -> Choice:
    """Return one that has measured MiB per second in both ways."""
    made = Choice(Compression.AUTO)
    for _ in range(2):
        made.sent(MiB, 1 / plain)
        made.sent(MiB, 1 / compressed, 0.0)
    return made


def test_both_ways_are_measured_first() -> None:
    made = Choice(Compression.AUTO)
    ways = []
    for _ in range(4):
        ways.append(made.compresses(MiB))
        made.sent(MiB, 0.1, 0.0 if ways[-1] else None)
    assert ways == [False, True, False, True]


@pytest.mark.parametrize(("plain", "compressed", "better"), [(10, 25, True), (10, 10.5, False), (1000, 400, False)])
def test_the_faster_way_is_taken_and_the_other_tried_from_time_to_time(
    plain: float, compressed: float, better: bool
) -> None:
    made = choice(plain, compressed)
    expected = [way for each in (8, 16, 32, TRY_EACH, TRY_EACH) for way in [better] * (each - 1) + [not better] * TRIED]
    assert [made.compresses(MiB) for _ in expected] == expected


def test_pieces_that_are_tried_are_short() -> None:
    made = choice(plain=10, compressed=25)
    mosts = []
    for _ in range(FIRST_TRY + TRIED):
        mosts.append(made.most)
        made.compresses(MiB)
    assert mosts == [UNLIMITED] * (FIRST_TRY - 1) + [TRIED_LENGTH] * TRIED + [UNLIMITED]
    assert Choice(Compression.ALWAYS).most == UNLIMITED


def test_long_pieces_that_wait_are_not_tried() -> None:
    made = choice(plain=10, compressed=25)
    assert all(made.compresses(8 * MiB) for _ in range(2 * FIRST_TRY))
    assert made.most == TRIED_LENGTH
    assert not made.compresses(TRIED_LENGTH)


def test_pieces_are_long_while_compression_is_in_vain() -> None:
    made = choice(plain=10, compressed=25)
    assert all(made.compresses(MiB) for _ in range(FIRST_TRY - 1))
    made.in_vain(MiB, 10.0)
    assert made.most == UNLIMITED


def test_a_link_that_gets_slower_is_noticed() -> None:
    made = choice(plain=100, compressed=50)
    assert not made.compresses(MiB)
    for _ in range(20):
        made.sent(MiB, 0.1)
    assert made.compresses(MiB)


def test_data_that_gets_no_smaller_is_sent_as_it_is() -> None:
    compressor = Compressor(Choice(Compression.ALWAYS))
    text, noise = [Piece(0, memoryview(TEXT[: 64 * KiB]))], [Piece(0, memoryview(os.urandom(64 * KiB)))]
    assert compressor.compress(noise) is None
    (frame,) = compressor.compress(text) or []
    assert isinstance(frame, Encoded)
    assert zstd.decompress(frame.body) == text[0].data


@pytest.mark.parametrize(("seconds", "skipped"), [(0.0005, 1), (0.0025, 3), (10.0, MOST_SKIPPED)])
def test_compression_in_vain_takes_a_hundredth_of_the_time(seconds: float, skipped: int) -> None:
    made = choice(plain=10, compressed=30)
    made.in_vain(MiB, seconds)
    assert [made.compresses(MiB) for _ in range(skipped + 1)] == [False] * skipped + [True]


def test_compression_that_makes_nothing_faster_is_in_vain() -> None:
    made = choice(plain=10, compressed=5)
    made.sent(MiB, 0.1, 0.0025)
    assert [made.most for _ in range(FIRST_TRY) if not made.compresses(MiB)][:3] == [UNLIMITED] * 3
    faster = choice(plain=10, compressed=30)
    faster.sent(MiB, 0.03, 0.0025)
    assert faster.compresses(MiB)


def test_of_pieces_that_are_sent_together_some_may_get_no_smaller() -> None:
    text, noise = Piece(0, memoryview(TEXT[: 64 * KiB])), Piece(64 * KiB, memoryview(os.urandom(4 * KiB)))
    first, second = Compressor(Choice(Compression.ALWAYS)).compress([text, noise]) or []
    assert isinstance(first, Encoded)
    assert second == noise


def test_always_and_never_do_not_measure() -> None:
    for mode, wanted in ((Compression.ALWAYS, True), (Compression.NEVER, False)):
        made = Choice(mode)
        made.sent(MiB, 1, 0.5)
        made.sent(MiB, 100)
        assert made.compresses(MiB) is wanted


def test_bytes_of_a_frame_count_as_those_of_the_image() -> None:
    told: list[int] = []
    moved = Scaled(told.append, length=1000, encoded=7)
    for _ in range(7):
        moved(1)
    assert sum(told) == 1000
    moved(-7)  # the request failed: all goes again
    assert sum(told) == 0
