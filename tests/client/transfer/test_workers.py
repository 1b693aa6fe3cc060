# SPDX-License-Identifier: Apache-2.0
"""Threads that end together."""

import contextlib
import signal
import threading
import traceback

import pytest

from imageio_daemon.client.errors import LocalError, Stopped
from imageio_daemon.client.stopping import Stop
from imageio_daemon.client.transfer import workers


def test_error_of_one_ends_all() -> None:
    stop = Stop()
    together = threading.Barrier(2)

    def wait() -> None:
        together.wait()
        stop.sleep(1000)

    def fail() -> None:
        together.wait()
        raise LocalError("broken")

    with pytest.raises(LocalError, match="broken"):
        workers.run([wait, fail], stop)


def test_earliest_error_is_told() -> None:
    stop = Stop()

    def consequence() -> None:
        with contextlib.suppress(Stopped):
            stop.sleep(1000)
        raise LocalError("consequence")

    def cause() -> None:
        raise LocalError("cause")

    with pytest.raises(LocalError, match="cause"):
        workers.run([consequence, cause], stop)


def test_results_are_in_the_order_of_the_functions() -> None:
    first_ended = threading.Event()

    def second() -> str:
        first_ended.wait()
        return "second"

    def first() -> str:
        first_ended.set()
        return "first"

    assert workers.run([second, first], Stop()) == ["second", "first"]


def test_thread_that_lives_longer_than_its_call_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lingering(threading.Thread):
        """It ends when somebody waits for it."""

        joined = threading.Event()

        def run(self) -> None:
            super().run()
            self.joined.wait()

        def join(self, timeout: float | None = None) -> None:
            self.joined.set()
            super().join(timeout)

    monkeypatch.setattr(threading, "Thread", Lingering)
    stop = Stop()
    assert workers.run([lambda: 1], stop) == [1]
    stop.check()


def test_interrupt_waits_for_the_threads() -> None:
    stop = Stop()
    ended = threading.Event()

    def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            stop.sleep(1000)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        workers.run([wait], stop)
    assert ended.is_set()


def test_second_interrupt_does_not_wait_for_the_threads() -> None:
    released = threading.Event()

    def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        released.wait()

    stop = Stop()
    stop.call(lambda: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            workers.run([wait], stop)
    finally:
        released.set()


def test_interrupt_is_not_lost_when_all_have_ended() -> None:
    def tick() -> None:
        if not interrupted:
            interrupted.append(True)
            signal.raise_signal(signal.SIGINT)

    interrupted: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        workers.run([lambda: None], Stop(), tick)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_of_the_main_thread_signals_stay_as_they_are() -> None:
    handlers: list[object] = []
    before = signal.getsignal(signal.SIGINT)

    def transfer() -> None:
        handlers.extend(workers.run([lambda: signal.getsignal(signal.SIGINT)], Stop()))

    thread = threading.Thread(target=transfer)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_error_keeps_no_buffer_alive() -> None:
    def fail() -> None:
        buffer = memoryview(bytearray(1))
        try:
            buffer[1] = 0
        except IndexError as e:
            raise LocalError("broken") from e

    with pytest.raises(LocalError) as caught:
        workers.run([fail], Stop())
    assert caught.value.__cause__ is not None
    for error in (caught.value, caught.value.__cause__):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            assert not any(isinstance(value, memoryview) for value in frame.f_locals.values())


def test_what_stopped_before_it_started_does_not_start() -> None:
    stop = Stop()
    stop.stop()
    with pytest.raises(Stopped):
        workers.run([stop.check], stop)
