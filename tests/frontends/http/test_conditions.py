# SPDX-License-Identifier: Apache-2.0
"""Which images have an entity tag; how it is used: tests/functional/test_resume.py."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from imageio_daemon.errors import Changed
from imageio_daemon.frontends.http.conditions import Conditions, entity_tag, require_none
from imageio_daemon.storage.packed import PackedDisk
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer

SURE: dict[str, Any] = {"generation": 7, "identity": (1, 2, 3)}


def transfer(*ops: Access, **backend: Any) -> Transfer:
    """Return a transfer; backend: what it knows of its image, nothing: the image is not open."""
    ticket = Ticket("secret", "file:///disk", 100, ops or (Access.READ,), timeout=300, inactivity_timeout=60)
    info = SimpleNamespace(identity=backend.get("identity"))
    opened = SimpleNamespace(generation=backend["generation"], info=info) if backend else None
    return cast(Transfer, SimpleNamespace(ticket=ticket, opened=opened))


def tag(size: int = 100, **changed: Any) -> str:
    found = entity_tag(size=size, **SURE | changed)
    assert found is not None
    return found


def test_a_tag_names_image_size_and_generation() -> None:
    tags = [tag(), tag(101), tag(generation=8), tag(identity=(1, 2, 4))]
    assert len(set(tags)) == len(tags)
    assert tag() == tags[0]


@pytest.mark.parametrize(
    "uncertain", [{}, SURE | {"generation": 0}, SURE | {"identity": None}], ids=["closed", "writers", "other server"]
)
def test_what_is_uncertain_has_no_tag_and_meets_no_condition(uncertain: dict[str, Any]) -> None:
    image = transfer(**uncertain)
    assert Conditions({}, image, 100).headers == {}
    for condition in (tag(), "None", '""', "*"):
        assert not Conditions({"if-range": condition}, image, 100).range_counts
        assert Conditions({"if-none-match": condition}, image, 100).unmodified == (condition == "*")
    with pytest.raises(Changed):
        Conditions({"if-match": tag()}, image, 100)


def test_a_ticket_that_may_write_knows_no_conditions() -> None:
    image = transfer(Access.READ, Access.WRITE, **SURE)
    conditions = Conditions({"if-range": '"a"', "if-match": '"a"', "if-none-match": tag()}, image, 100)
    assert (conditions.headers, conditions.range_counts, conditions.unmodified) == ({}, True, False)


def made(generation: int = 7, layout: str = "a") -> PackedDisk:
    return cast(PackedDisk, SimpleNamespace(generation=generation, layout=layout))


@pytest.mark.parametrize("ops", [(Access.READ,), (Access.WRITE,)])
def test_a_file_made_of_the_image_has_a_tag_of_its_own(ops: tuple[Access, ...]) -> None:
    image = transfer(*ops, **SURE)
    found = Conditions({}, image, 100, made()).headers["ETag"]
    assert found not in (tag(), tag(layout="b"), tag(layout="a", generation=8))
    assert Conditions({"if-range": found}, image, 100, made()).range_counts
    assert not Conditions({"if-range": found}, image, 100, made(layout="b")).range_counts
    with pytest.raises(Changed):
        Conditions({"if-match": found}, image, 100, made(generation=8))


def test_a_file_made_while_the_image_changed_has_no_tag() -> None:
    assert Conditions({}, transfer(**SURE), 100, made(generation=0)).headers == {}


@pytest.mark.parametrize("asked", ["{tag}", "W/{tag}", '"a",\t{tag}', "*"])
def test_the_client_has_the_image(asked: str) -> None:
    conditions = Conditions({"if-none-match": asked.format(tag=tag())}, transfer(**SURE), 100)
    assert (conditions.unmodified, conditions.headers) == (True, {"ETag": tag()})


@pytest.mark.parametrize("asked", ['"a"', "", "{tag}x", "w/{tag}", '*, "a"'])
def test_the_client_has_something_else(asked: str) -> None:
    assert not Conditions({"if-none-match": asked.format(tag=tag())}, transfer(**SURE), 100).unmodified


def test_who_wants_another_image_is_told_that_first() -> None:
    """RFC 9110 13.2.2: If-Match comes before If-None-Match."""
    with pytest.raises(Changed):
        Conditions({"if-match": '"a"', "if-none-match": tag()}, transfer(**SURE), 100)


def test_a_change_for_no_image_is_refused() -> None:
    require_none({})
    require_none({"if-none-match": '"a"'})
    with pytest.raises(Changed):
        require_none({"if-none-match": "*"})
