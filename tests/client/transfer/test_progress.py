# SPDX-License-Identifier: Apache-2.0
"""What is counted while a transfer runs: bytes as they go, what is left, and units that are made ahead."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Progress, Settings, download, upload
from imageio_daemon.client.errors import Stopped
from imageio_daemon.client.local.source import FileSource
from imageio_daemon.client.server.retries import Retries
from imageio_daemon.client.stopping import Stop
from imageio_daemon.client.transfer import plan
from imageio_daemon.client.transfer.plan import Queue, Unit, units
from imageio_daemon.client.transfer.progress import Counter
from imageio_daemon.image.blockhash import Segment
from imageio_daemon.image.extents import Extent
from tests.client.proxy import Proxy
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.polling import eventually

SIZE = 24 * MiB


def unit(number: int) -> Unit:
    return Unit(number, number + 1, [Segment(number, 1, zero=False)])


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    return new_image(size=SIZE, ops=["read", "write"])


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An image of data."""
    path = tmp_path / "disk.raw"
    path.write_bytes(pattern(SIZE))
    return path


# What is counted


def test_data_that_is_left_is_that_of_the_map() -> None:
    counter = Counter()
    counter.total = 1000
    counter.plan(60)
    counter.plan(40)
    assert counter.progress().to_move is None
    counter.plan(None)
    counter.moved(30)
    counter.spare(20)
    counter.add(zero=900)
    assert counter.progress().to_move == 50


def test_time_left_is_that_of_the_data() -> None:
    assert Progress(total=10**12, zero=0, to_move=600, rate=20.0, elapsed=1e6).left == 30


@pytest.mark.parametrize("progress", [Progress(to_move=None, rate=1.0), Progress(to_move=5), Progress(to_move=0)])
def test_time_left_is_not_guessed(progress: Progress) -> None:
    assert progress.left is None


def test_retries_are_those_of_all_servers() -> None:
    counter = Counter()
    counter.retries += [Retries(), Retries()]
    for retries in counter.retries:
        retries.waits("away", 0.1, is_first=True)
    counter.retries[0].succeeded()
    progress = counter.progress()
    assert (progress.retries, progress.reason) == (2, "away")


def test_what_goes_again_lowers_no_rate_below_zero() -> None:
    counter = Counter()
    counter.moved(100)
    counter.moved(-100)
    progress = counter.progress()
    assert (progress.data, progress.rate) == (0, 0)


def test_request_counts_while_it_goes(daemon: Daemon, tls: Settings, disk: Path, target: Image) -> None:
    """The connection hangs in the first request, whose bytes are counted nevertheless."""
    seen: list[Progress] = []
    with Proxy(daemon.port, lambda: MiB // 2, hold=True) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"

        def report(progress: Progress) -> None:
            seen.append(progress)
            if progress.data and progress.idle > 0.5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            upload(disk, url, settings=_one(tls), progress=report)
    assert 64 * 1024 <= max(progress.data for progress in seen) <= MiB


def test_request_that_fails_is_taken_back(daemon: Daemon, tls: Settings, disk: Path, target: Image) -> None:
    budgets = iter([MiB + MiB // 2, 5 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"
        done = upload(disk, url, settings=_one(tls))
    assert proxy.broken == 2
    assert (done.progress.data, done.progress.to_move) == (SIZE, 0)
    assert done.progress.retries >= 2
    assert done.progress.reason is None


def test_download_counts_each_byte_once(daemon: Daemon, tls: Settings, target: Image, tmp_path: Path) -> None:
    target.path.write_bytes(pattern(SIZE))
    budgets = iter([MiB + MiB // 2, 5 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"
        done = download(url, tmp_path / "copy", settings=_one(tls))
    assert (done.progress.data, done.progress.to_move) == (SIZE, 0)
    assert done.progress.retries == 2


def test_zeros_in_data_are_not_left(daemon: Daemon, tls: Settings, disk: Path, target: Image) -> None:
    disk.write_bytes(pattern(SIZE - 4 * MiB) + bytes(4 * MiB))
    done = upload(disk, daemon.url(target.ticket), settings=tls)
    assert (done.progress.data, done.progress.to_move) == (SIZE - 4 * MiB, 0)


def _one(settings: Settings) -> Settings:
    return Settings(cafile=settings.cafile, local=False, connections=1)


# Units that are made ahead


def test_units_are_made_before_they_are_taken() -> None:
    told: list[Unit | None] = []
    queue = Queue(map(unit, range(3)), 0, Stop(), told.append)
    queue.fill()
    assert told == [unit(0), unit(1), unit(2), None]
    assert list(queue.take()) == [unit(0), unit(1), unit(2)]


def test_no_more_are_made_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "AHEAD", 2)
    made = threading.Semaphore(0)

    def work() -> Iterator[Unit]:
        for number in range(10):
            yield unit(number)
            made.release()

    queue = Queue(work(), 0, Stop())
    thread = threading.Thread(target=queue.fill)
    thread.start()
    assert made.acquire(timeout=10)
    assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.1)
    assert list(queue.take()) == [unit(number) for number in range(10)]
    thread.join()


def test_what_is_taken_becomes_less_at_the_end() -> None:
    queue = Queue(units([Extent(0, 256 * MiB)]), 16 * MiB, Stop())
    queue.fill()
    sizes = [taken.end - taken.start for taken in queue.take()]
    assert (sizes[0], sizes[-1], sum(sizes)) == (16 * MiB, 4 * MiB, 256 * MiB)
    assert sizes == sorted(sizes, reverse=True)


def test_units_apart_are_not_joined() -> None:
    apart = [Unit(2 * number, 2 * number + 1, []) for number in range(64)]
    queue = Queue(iter(apart), 32 * MiB, Stop())
    queue.fill()
    assert list(queue.take()) == apart


def test_stop_ends_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "AHEAD", 1)
    stop = Stop()
    full, empty = Queue(map(unit, range(9)), 0, stop), Queue(iter([]), 0, stop)
    ended: list[type[BaseException]] = []

    def runs_until_stopped(queue: Queue, *, fills: bool) -> None:
        try:
            queue.fill() if fills else next(queue.take())
        except Stopped as e:
            ended.append(type(e))

    threads = [
        threading.Thread(target=runs_until_stopped, args=(queue,), kwargs={"fills": fills})
        for queue, fills in ((full, True), (empty, False))
    ]
    for thread in threads:
        thread.start()
    stop.stop()
    for thread in threads:
        thread.join(10)
    assert ended == [Stopped, Stopped]


def test_connections_give_signs_of_life_while_the_map_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "IDLE", 0.01)
    signs: list[None] = []
    enough = threading.Event()

    def idle() -> None:
        signs.append(None)
        if len(signs) == 3:
            enough.set()

    def work() -> Iterator[Unit]:
        assert enough.wait(10)
        yield unit(0)

    queue = Queue(work(), 0, Stop())
    thread = threading.Thread(target=queue.fill)
    thread.start()
    assert list(queue.take(idle)) == [unit(0)]
    thread.join()


def test_connections_that_a_server_closes_meanwhile_are_no_failures(
    make_daemon: MakeDaemon, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make_daemon(daemon={"inactivity_timeout": 1})
    target = tmp_path / "target.raw"
    target.write_bytes(bytes(SIZE))
    ticket = daemon.add_ticket(target, SIZE, inactivity_timeout=1)

    def slow_map(source: FileSource) -> Iterator[Extent]:
        yield Extent(0, 8 * MiB)
        eventually(lambda: daemon.status(ticket)["connections"] == 0, "the daemon closes the connections")
        yield Extent(8 * MiB, SIZE - 8 * MiB)

    monkeypatch.setattr(FileSource, "extents", slow_map)
    done = upload(disk, daemon.url(ticket), settings=Settings(cafile=str(daemon.cafile), local=False))
    assert done.progress.retries == 0
    assert target.read_bytes() == disk.read_bytes()


def test_map_that_fails_ends_the_upload(
    daemon: Daemon, tls: Settings, disk: Path, target: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seek(*arguments: object) -> int:
        raise LocalError("no map")

    monkeypatch.setattr("imageio_daemon.client.local.source.FileSource._seek", seek)
    with pytest.raises(LocalError, match="no map"):
        upload(disk, daemon.url(target.ticket), settings=tls)
