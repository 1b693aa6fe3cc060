# SPDX-License-Identifier: Apache-2.0
"""What was served is added up, while connections live and after their end."""

from imageio_daemon.runtime.sums import By, Count, Served

NONE = Count()._asdict()


class Line:
    """A connection."""

    def __init__(self, requests: int) -> None:
        self.requests = requests

    def served(self) -> Count:
        return Count(self.requests, 10 * self.requests, 100 * self.requests)


def of(requests: int) -> dict[str, int]:
    return Count(requests, 10 * requests, 100 * requests)._asdict()


def test_nothing_is_told_of_a_service_without_clients() -> None:
    assert Served().as_json() == {}


def test_what_connections_have_served_so_far_is_told_by_service_and_by_who_serves() -> None:
    served, one, other = Served(), Line(1), Line(2)
    served.begin(("remote", By.LANE), one)
    served.begin(("remote", By.PYTHON), other)
    served.begin(("nbd", By.LANE), Line(4))
    assert served.as_json() == {"nbd": {"lane": of(4), "python": NONE}, "remote": {"lane": of(1), "python": of(2)}}
    one.requests = 7
    assert served.as_json()["remote"] == {"lane": of(7), "python": of(2)}


def test_what_a_connection_has_served_stays_counted_after_its_end() -> None:
    served, one, other = Served(), Line(1), Line(2)
    for line in (one, other):
        served.begin(("local", By.LANE), line)
    served.end(one)
    one.requests = 50  # nobody asks it any more
    assert served.as_json()["local"]["lane"] == of(3)


def test_connection_is_counted_once_if_it_ends_twice_or_never_began() -> None:
    served, line = Served(), Line(3)
    served.end(line)
    assert served.as_json() == {}
    served.begin(("local", By.PYTHON), line)
    served.end(line)
    served.end(line)
    assert served.as_json()["local"]["python"] == of(3)
