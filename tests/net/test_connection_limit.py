# SPDX-License-Identifier: Apache-2.0
import logging
from collections.abc import Callable

import pytest

from imageio_daemon.errors import TooManyConnections
from imageio_daemon.net import connection_limit
from imageio_daemon.net.connection_limit import LOCAL, ConnectionLimit, Place, Stage, address_group


class World:
    """A limit of eight, and the names of those that were dropped."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.limit = ConnectionLimit(8, clock=lambda: self.now)
        self.dropped: list[str] = []

    def enter(self, name: str, address: str | None = None, stage: Stage = Stage.STRANGER) -> Place:
        """Take a place; every connection has an address of its own, if none is given."""
        return self.limit.enter(stage, f"at {name}" if address is None else address, lambda: self.dropped.append(name))

    def know(self, name: str, address: str | None = None, has_ticket: Callable[[], bool] = lambda: True) -> Place:
        place = self.enter(name, address)
        place.know(has_ticket)
        return place


@pytest.fixture
def world() -> World:
    return World()


def test_oldest_stranger_goes_for_a_new_one(world: World) -> None:
    for number in range(11):
        world.enter(str(number))
    assert world.dropped == ["0", "1", "2"]
    assert world.limit.count == 8


def test_limit_that_is_lowered_holds_for_new_connections(world: World) -> None:
    for number in range(6):
        world.enter(str(number))
    world.limit.most = 4
    assert (world.limit.most, world.limit.count, world.dropped) == (4, 6, [])
    world.enter("new")
    assert (world.limit.count, world.dropped) == (6, ["0"])


def test_limit_that_is_raised_gives_each_address_more(world: World) -> None:
    for number in range(4):  # more than a quarter of eight
        world.enter(str(number), "greedy")
    world.limit.most = 40
    for number in range(4, 40):
        world.enter(str(number))
    world.enter("new", "other")
    assert world.dropped == ["0"]
    world.limit.most = 4
    world.enter("more", "other")
    assert world.dropped == ["0", "1"]


def test_place_that_was_given_back_is_free(world: World) -> None:
    places = [world.enter(str(number)) for number in range(8)]
    places[3].leave()
    places[3].leave()
    assert world.limit.count == 7
    world.enter("new")
    assert world.dropped == []


def test_who_has_shown_a_ticket_keeps_his_place(world: World) -> None:
    for number in range(6):
        world.know(str(number))
    for number in range(6, 12):
        world.enter(str(number))
    assert world.dropped == ["6", "7", "8", "9"]


def test_strangers_go_for_who_has_a_ticket_as_well(world: World) -> None:
    for number in range(8):
        world.enter(str(number))
    for name in ("a", "b", "c"):
        world.know(name)
    assert world.dropped == ["0", "1", "2"]


def test_new_connection_is_refused_where_all_have_tickets(world: World) -> None:
    for number in range(8):
        world.know(str(number))
    for address in ("elsewhere", LOCAL):
        with pytest.raises(TooManyConnections, match="the limit is 8"):
            world.enter("new", address)
    assert world.dropped == []
    assert world.limit.count == 8


def test_negotiation_that_ends_with_a_ticket_needs_a_place(world: World) -> None:
    greeting = [world.enter(str(number), stage=Stage.SILENT) for number in range(9)]
    for place in greeting[:8]:
        place.spoke()
        place.know(lambda: True)
    with pytest.raises(TooManyConnections):
        greeting[8].know(lambda: True)
    assert greeting[8].stage is Stage.SILENT


def test_address_that_has_more_than_its_share_goes_first(world: World) -> None:
    world.enter("first")
    for number in range(7):
        world.enter(str(number), "many")
    world.enter("new")
    assert world.dropped == ["0"]
    world.enter("7", "many")
    assert world.dropped == ["0", "1"]


def test_of_greedy_addresses_the_one_with_the_most_goes_first(world: World) -> None:
    for number in range(3):
        world.enter(f"few {number}", "few")
    for number in range(5):
        world.enter(f"many {number}", "many")
    for name in ("a", "b"):
        world.enter(name)
    assert world.dropped == ["many 0", "many 1"]


def test_address_is_not_limited_while_there_is_room(world: World) -> None:
    for number in range(8):
        world.enter(str(number), "one")
    assert world.dropped == []


def test_tickets_do_not_count_for_the_share_of_an_address(world: World) -> None:
    world.enter("oldest")
    for number in range(6):
        world.know(str(number), "proxy")
    world.enter("stranger", "proxy")
    world.enter("new")
    assert world.dropped == ["oldest"]


def test_clients_of_this_host_stay_when_others_come(world: World) -> None:
    for number in range(3):
        world.enter(f"local {number}", LOCAL)
    for number in range(9):
        world.enter(str(number))
    assert world.dropped == ["0", "1", "2", "3"]


def test_clients_of_this_host_have_half_of_the_places(world: World) -> None:
    for number in range(6):
        world.enter(f"local {number}", LOCAL)
    for number in range(4):
        world.enter(str(number))
    assert world.dropped == ["0", "1"]
    world.enter("local 6", LOCAL)
    assert world.dropped == ["0", "1", "local 0"]


def test_clients_of_this_host_do_not_keep_others_out(world: World) -> None:
    for number in range(8):
        world.enter(f"local {number}", LOCAL)
    for number in range(4):
        world.know(str(number))
    assert world.dropped == ["local 0", "local 1", "local 2", "local 3"]


def test_others_are_refused_where_tickets_and_clients_of_this_host_have_all(world: World) -> None:
    for number in range(4):
        world.know(str(number))
        world.enter(f"local {number}", LOCAL)
    with pytest.raises(TooManyConnections):
        world.enter("new")
    world.enter("local 4", LOCAL)
    assert world.dropped == ["local 0"]


# Tickets that end


def test_who_has_no_valid_ticket_any_more_goes_first(world: World) -> None:
    valid = True
    for number in range(7):
        world.know(str(number), has_ticket=lambda number=number: valid or number not in (4, 5))  # type: ignore[misc]
    world.enter("stranger")
    world.enter("second")
    assert world.dropped == ["stranger"]
    valid = False
    world.now += connection_limit.LOOK_INTERVAL
    for name in ("third", "fourth", "fifth"):
        world.enter(name)
    assert world.dropped == ["stranger", "4", "5", "second"]


def test_tickets_are_looked_at_once_in_a_while(world: World) -> None:
    looks = []
    for number in range(8):
        world.know(str(number), has_ticket=lambda: not looks.append(1))  # type: ignore[func-returns-value]
    for _ in range(3):
        with pytest.raises(TooManyConnections):
            world.enter("new")
    assert len(looks) == 8
    world.now += connection_limit.LOOK_INTERVAL
    with pytest.raises(TooManyConnections):
        world.enter("new")
    assert len(looks) == 16


def test_ticket_that_is_valid_again_is_shown_again(world: World) -> None:
    for number in range(7):
        world.know(str(number))
    revived = world.know("revived", has_ticket=lambda: False)
    world.enter("new")
    assert world.dropped == ["revived"]
    revived.know(lambda: True)  # too late
    assert revived.stage is None
    assert world.limit.count == 8


# Before requests


@pytest.mark.parametrize(
    ("stage", "limit"), [(Stage.SILENT, "MAX_SILENT"), (Stage.GREETING, "MAX_GREETING"), (Stage.REFUSED, "MAX_REFUSED")]
)
def test_each_stage_has_a_limit_and_drops_its_oldest(monkeypatch: pytest.MonkeyPatch, stage: Stage, limit: str) -> None:
    monkeypatch.setattr(connection_limit, limit, 4)
    world = World()
    for number in range(6):
        world.enter(str(number), stage=stage)
    assert world.dropped == ["0", "1"]
    assert world.limit.count == 0


def test_who_has_spoken_does_not_go_for_silent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MAX_SILENT", 4)
    world = World()
    spoke = world.enter("spoke", stage=Stage.SILENT)
    spoke.spoke()
    for number in range(6):
        world.enter(str(number), stage=Stage.SILENT)
    assert world.dropped == ["0", "1"]
    assert spoke.stage is Stage.GREETING


def test_dropped_connection_changes_nothing_any_more(world: World) -> None:
    places = [world.enter(str(number)) for number in range(9)]
    places[0].spoke()
    places[0].know(lambda: True)
    places[0].leave()
    assert places[0].stage is None
    assert world.limit.count == 8


# What is told


def test_drops_are_told_once_in_a_while(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        world.enter(str(number))
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["connections without a ticket are dropped for new ones, so far: 1"]
    world.now += connection_limit.WARNING_INTERVAL
    world.enter("another")
    assert "so far: 13" in caplog.text


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("", LOCAL),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, group: str) -> None:
    assert address_group(address) == group


def test_defaults() -> None:
    assert (connection_limit.MAX_SILENT, connection_limit.MAX_GREETING, connection_limit.MAX_REFUSED) == (
        1024,
        1024,
        256,
    )
    assert (connection_limit.ADDRESS_SHARE, connection_limit.LOCAL_SHARE) == (4, 2)


# Descriptors


def test_few_descriptors_leave_fewer_places_to_each_stage() -> None:
    limit, dropped = ConnectionLimit(1000, descriptors=160), []
    for number in range(60):
        for stage in (Stage.SILENT, Stage.GREETING, Stage.REFUSED, Stage.STRANGER):
            limit.enter(stage, f"at {number}", lambda: dropped.append(1))
    assert limit.places() == {
        Stage.KNOWN: 0,
        Stage.SILENT: 10,
        Stage.GREETING: 10,
        Stage.REFUSED: 2,
        Stage.STRANGER: 20,
    }
    limit.most = 15
    assert limit.most == 15
    limit.most = 1000
    assert limit.most == 20


def test_many_descriptors_change_nothing() -> None:
    assert ConnectionLimit(1000, descriptors=65536).most == 1000


def test_the_oldest_stranger_of_the_earliest_stage_is_closed_for_its_descriptor(world: World) -> None:
    world.know("known")
    world.enter("stranger")
    world.enter("here", LOCAL, Stage.SILENT)
    world.enter("silent", stage=Stage.SILENT)
    world.enter("greets", stage=Stage.GREETING)
    assert [world.limit.relieve() for _ in range(5)] == [True] * 4 + [False]
    assert world.dropped == ["silent", "here", "greets", "stranger"]
    assert world.limit.strangers == 0
