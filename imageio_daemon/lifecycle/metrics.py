# SPDX-License-Identifier: Apache-2.0
"""The metrics of the daemon, read from its objects at a scrape, and their text for Prometheus.

Labels have few values, all known beforehand: no ticket ids, which are secrets, no paths and no addresses. Counters of
known labels begin with 0, so that their first increase is seen (prometheus.io/docs/practices/instrumentation).
"""

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from .. import __version__
from ..image import zstd
from ..lanes.http import HttpLane
from ..lanes.shared import Lanes
from ..net import tls_socket
from ..net.connection_limit import ConnectionLimit
from ..net.tls_contexts import ServerTls
from ..runtime import logs
from ..runtime.degraded import Degraded
from ..runtime.sums import By, Count, Served
from ..storage.buffers import BufferPool
from ..storage.completions import KINDS, SLOW_NS, slow_operations
from ..storage.engine import Engine
from ..storage.operation import HANGING, Kind, Totals, ZeroMethod
from ..storage.qcow2 import verdicts
from ..transfers.store import TransferStore
from ..transfers.ticket import STORAGE
from .ticket_counts import RECORDS, TICKETS, TicketCounts

#: Operations of storage. UNKNOWN counts failures in lanes that were too many to report each.
OPERATIONS = tuple(sorted({*Kind, *KINDS}))
UNKNOWN = "unknown"
#: The services of NBD.
NBD = ("nbd", "nbd-local")

_PROCESS = ProcessCollector(registry=None)
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


@dataclass(frozen=True)
class Watched:
    """The objects that are read at a scrape.

    `services` has the names of those that listen, and `limits` the limits on connections, by name. Without TLS `tls`
    is None.
    """

    services: Sequence[str]
    served: Served
    store: TransferStore
    engine: Engine
    pool: BufferPool
    lanes: Lanes
    limits: Mapping[str, ConnectionLimit]
    tls: ServerTls | None
    degraded: Degraded

    async def metrics(self) -> list[Metric]:
        """Return the families of metrics. Takes a few locks of C for a moment each, and reads files of /proc."""
        tickets = await TicketCounts.look(self.store.totals)
        return [
            _build(),
            _degraded(self),
            *_requests(self),
            *_connections(self),
            *_storage(self, tickets),
            *_transfers(self, tickets),
            *_resources(self),
            *_PROCESS.collect(),
        ]


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"imageio_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"imageio_{name}", text, labels=labels)


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"imageio_{name}", text, value=value)


def _total(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"imageio_{name}", text, value=value)


def _filled(family: _Family, values: Mapping[str, float]) -> _Family:
    """Return a family with one label, with the values by that label."""
    for label, value in values.items():
        family.add_metric((label,), value)
    return family


def _build() -> Metric:
    build = _gauge("build_info", "Versions that run; the value is 1.", "version", "python", "openssl")
    build.add_metric((__version__, platform.python_version(), tls_socket.OPENSSL_VERSION), 1)
    return build


def _degraded(watched: Watched) -> Metric:
    degraded = _gauge("degraded", "1: the feature was configured and is not in force.", "feature")
    return _filled(degraded, {feature: bool(why) for feature, why in watched.degraded.reasons().items()})


def _requests(watched: Watched) -> Iterator[Metric]:
    requests = _counter("requests", "Requests of HTTP and NBD, by what has served them.", "service", "by")
    errors = _counter("request_errors", "Answers with a fault of client or server; NBD: any error.", "service", "fault")
    received = _counter("received_bytes", "Bytes received from clients, without TLS.", "service", "by")
    sent = _counter("sent_bytes", "Bytes sent to clients, without TLS.", "service", "by")
    served = watched.served.sums()
    for service in watched.services:
        both = Count()
        for by in By:
            count = served.get((service, by), Count())
            both = both.plus(count)
            requests.add_metric((service, by), count.requests)
            received.add_metric((service, by), count.received)
            sent.add_metric((service, by), count.sent)
        errors.add_metric((service, "client"), both.refused)
        errors.add_metric((service, "server"), both.failed)
    yield from (requests, errors, received, sent)


def _connections(watched: Watched) -> Iterator[Metric]:
    connections = _gauge("connections", "Connections of HTTP, and those of NBD that are in an export.", "service")
    opened = _counter("connections_opened", "These connections so far.", "service")
    lanes = _gauge("lanes", "Of the connections, those that lanes in C serve.", "service")
    sources, so_far = watched.served.sources(), watched.served.begun()
    # A lane of HTTP serves a connection that counts itself. One of NBD counts, also after an upgrade from HTTP.
    there = Counter(service for source, (service, _) in sources.items() if not isinstance(source, HttpLane))
    in_lanes = Counter(service for service, by in sources.values() if by is By.LANE)
    for service in watched.services:
        by = By.LANE if service in NBD else By.PYTHON  # an upgraded connection was opened as one of HTTP
        connections.add_metric((service,), there[service])
        opened.add_metric((service,), so_far[service, by])
        lanes.add_metric((service,), in_lanes[service])
    yield from (connections, opened, lanes)
    yield from _places(watched)


def _places(watched: Watched) -> Iterator[Metric]:
    places = _gauge("connection_places", "Connections by how far they have come.", "limit", "stage")
    most = _gauge("connection_places_limit", "Most connections that are strangers or known.", "limit")
    dropped = _counter("connections_dropped", "Connections without a ticket that were closed for new ones.", "limit")
    for name, limit in watched.limits.items():
        for stage, count in limit.places().items():
            places.add_metric((name, stage.name.lower()), count)
        most.add_metric((name,), limit.most)
        dropped.add_metric((name,), limit.dropped)
    yield from (places, most, dropped)
    of_lanes = watched.lanes.places
    yield _single("lane_places", "Places that lanes of HTTP have now.", of_lanes.taken)
    yield _single("lane_places_limit", "Most places that lanes of HTTP may have.", of_lanes.most)
    yield _single("lane_places_waiting", "Connections that wait for a lane of HTTP.", of_lanes.waiting)


def _storage(watched: Watched, tickets: TicketCounts) -> Iterator[Metric]:
    read = _counter("read_bytes", "Bytes that were read from images.", "storage")
    written = _counter("written_bytes", "Bytes that were written to images, without zeroing.", "storage")
    zeroed = _counter("zeroed_bytes", "Bytes of images that were zeroed.", "storage", "method")
    errors = _counter("storage_errors", "Operations on images that storage has failed.", "storage", "operation")
    for storage in STORAGE:
        done = tickets.totals.get(storage, Totals())
        read.add_metric((storage,), done.read)
        written.add_metric((storage,), done.written)
        for method in ZeroMethod:
            zeroed.add_metric((storage, method), done.zeroed[method])
        for kind in OPERATIONS:
            errors.add_metric((storage, kind), done.failed[kind])
        errors.add_metric((storage, UNKNOWN), done.failed[""])
    yield from (read, written, zeroed, errors)
    text = f"Operations of storage that took longer than {SLOW_NS // 10**9} s and have ended."
    yield _total("storage_slow_operations", text, slow_operations())
    text = "Images in the format qcow2 by who serves them: native, the daemon itself."
    yield _filled(_counter("qcow2_images", text, "verdict"), verdicts())
    load = watched.engine.load()
    yield _single("storage_threads", "Threads for operations on files and devices.", load.threads)
    yield _single("storage_threads_busy", "Threads that run an operation.", load.busy)
    yield _single("storage_queue", "Operations that wait for a thread, or for earlier ones.", load.queued)


def _transfers(watched: Watched, found: TicketCounts) -> Iterator[Metric]:
    tickets = _gauge("tickets", "Tickets by state; ending: cancelled, the image is not closed yet.", "state")
    yield _filled(tickets, {state: found.states[state] for state in TICKETS})
    yield _single("tickets_limit", "Most tickets.", watched.store.most_tickets)
    limited = _counter("limited_seconds", "Time in which transfers have waited for limits on their rate.", "storage")
    yield _filled(limited, {storage: found.totals.get(storage, Totals()).limited for storage in STORAGE})
    added = _counter("tickets_added", "Tickets that were added or restored.", "storage")
    begun = watched.store.totals.begun()
    yield _filled(added, {storage: begun[storage] for storage in STORAGE})
    yield from _waits(found.waits)
    records = _gauge("durable_records", "Records of what is durable of open images that may be written.", "state")
    yield _filled(records, {name: found.records[name] for name in RECORDS})
    yield _single("durable_bytes", "Bytes of open images that are known to be on stable storage.", found.durable)


def _waits(waits: dict[str, list[float]]) -> Iterator[Metric]:
    longest = _gauge("storage_wait_seconds", "Longest time that storage has owed an answer now.", "storage")
    waiting = _gauge("storage_waiting", "Requests and lanes that wait for storage now.", "storage")
    hanging = _gauge("storage_hanging", f"Of these, those that have waited for {HANGING:.0f} s.", "storage")
    yield _filled(longest, {storage: max(seconds, default=0) for storage, seconds in waits.items()})
    yield _filled(waiting, {storage: len(seconds) for storage, seconds in waits.items()})
    yield _filled(hanging, {name: sum(wait >= HANGING for wait in seconds) for name, seconds in waits.items()})


def _resources(watched: Watched) -> Iterator[Metric]:
    used = _gauge("buffer_memory_bytes", "Memory for data between network and storage that is in use.", "by")
    limit = _gauge("buffer_memory_limit_bytes", "Most memory for data between network and storage.", "by")
    waiting = _gauge("buffer_memory_waiting", "Requests (python) or tickets (lane) that wait for memory.", "by")
    pool, memory = watched.pool, watched.lanes.memory()
    yield _filled(used, {By.PYTHON: pool.in_use, By.LANE: memory.used})
    yield _filled(limit, {By.PYTHON: pool.limit, By.LANE: memory.limit})
    yield _filled(waiting, {By.PYTHON: pool.waiting, By.LANE: memory.waiting})
    decoders = zstd.totals()
    yield _single("decoder_memory_bytes", "Memory that decoders of zstd may use now.", decoders.memory)
    for name, what, value in (("encoded", "Bytes", decoders.taken), ("decoded", "Content", decoders.made)):
        yield _total(f"{name}_bytes", f"{what} of uploads with Content-Encoding: zstd.", value)
    text = "Lines of the log that were dropped, because nothing read it."
    yield _total("log_lines_dropped", text, logs.lines_lost())
    if watched.tls is not None:
        expires = watched.tls.context.expires
        yield _single("certificate_expiry_timestamp_seconds", "When the certificate in use expires.", expires)


#: The format that each version of Prometheus reads (prometheus.io/docs/instrumenting/exposition_formats).
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The same text is used again for MIN_AGE seconds, or for AGE_FACTOR times the time that making it took, if longer.
MIN_AGE = 0.5
AGE_FACTOR = 20


class _Collected(Collector):
    """Families of metrics as prometheus_client wants them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exposition:
    """Make the text, for one request at a time. `collect` returns the families of metrics.

    Clients that ask often get the same text, so that they take at most 1/AGE_FACTOR of a processor.
    """

    def __init__(self, collect: Callable[[], Awaitable[Iterable[Metric]]]) -> None:
        self._collect = collect
        self._turn = asyncio.Lock()
        self._text = b""
        self._fresh_until = 0.0

    async def text(self, *, fresh: bool) -> bytes:
        """Return the text. Pass fresh=True, for trusted clients only, to always make a new one."""
        async with self._turn:
            began = time.monotonic()
            if fresh or began >= self._fresh_until:
                self._text = generate_latest(_Collected(await self._collect()))
                ended = time.monotonic()
                self._fresh_until = ended + max(MIN_AGE, AGE_FACTOR * (ended - began))
            return self._text
