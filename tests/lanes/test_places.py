# SPDX-License-Identifier: Apache-2.0
"""Places of lanes: how many, for whom, and in which order."""

import pytest

from imageio_daemon.lanes.shared import Places, WaitingConnection


class World:
    """Places, who was granted one, and what lanes were told."""

    def __init__(self, most: int) -> None:
        self.recalled: list[int] = []
        self.granted: list[str] = []
        self.places = Places(most, self.recalled.append)

    def fill(self, *owners: str) -> None:
        for owner in owners:
            assert self.places.enter(owner)

    def wait(self, owner: str, name: str = "") -> WaitingConnection:
        return self.places.wait(owner, lambda: self.granted.append(name or owner))


@pytest.fixture
def world() -> World:
    return World(2)


def test_no_more_places_are_taken_than_there_are(world: World) -> None:
    world.fill("a", "b")
    assert not world.places.enter("c")
    world.places.leave("a")
    assert world.places.enter("c")


def test_owner_has_no_more_than_twice_what_is_left() -> None:
    world = World(9)
    world.fill(*"aaaaaa")
    assert not world.places.enter("a")
    assert world.places.enter("b")


def test_place_that_is_left_goes_to_who_waits(world: World) -> None:
    world.fill("a", "b")
    world.wait("c")
    world.places.leave("a")
    assert world.granted == ["c"]
    assert not world.places.enter("d")


def test_nobody_passes_who_waits() -> None:
    world = World(9)
    world.fill(*"aaaaaa")
    world.wait("a")
    assert not world.places.enter("b")


def test_owner_whose_share_is_used_up_does_not_stand_before_others() -> None:
    world = World(9)
    world.fill(*"aaaaaa")
    world.wait("a")
    world.wait("b")
    assert world.granted == ["b"]


def test_owners_that_wait_take_turns(world: World) -> None:
    world.fill("x", "y")
    for name in ("a1", "a2", "b1"):
        world.wait(name[0], name)
    for owner in ("x", "a", "b"):
        world.places.leave(owner)
    assert world.granted == ["a1", "b1", "a2"]


def test_who_waits_no_more_gets_no_place(world: World) -> None:
    world.fill("a", "b")
    first = world.wait("c")
    world.wait("d")
    assert world.places.abandon(first)
    world.places.leave("a")
    assert world.granted == ["d"]


def test_place_that_was_granted_is_not_abandoned(world: World) -> None:
    world.fill("a", "b")
    waiting = world.wait("c")
    world.places.leave("a")
    assert not world.places.abandon(waiting)


def test_lanes_are_told_of_each_who_waits_and_when_nobody_does_any_more(world: World) -> None:
    world.fill("a", "b")
    world.wait("c")
    waiting = world.wait("d")
    world.places.leave("a")
    assert world.recalled == [1, 1]
    world.places.abandon(waiting)
    assert world.recalled == [1, 1, 0]
