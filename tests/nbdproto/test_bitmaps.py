# SPDX-License-Identifier: Apache-2.0
"""Dirty bitmaps among the metadata contexts of an export."""

import pytest

from imageio_daemon.nbdproto.agreement import Export, FindExport
from imageio_daemon.nbdproto.constants import BASE_ALLOCATION, MAX_QUERIES, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest, unpack_context

from .conversation import Conversation

A, B = "qemu:dirty-bitmap:a", "qemu:dirty-bitmap:b"


def talk(contexts: tuple[str, ...] = (BASE_ALLOCATION, A, B)) -> Conversation:
    """Return a conversation about an export with bitmaps, in which structured replies are in use."""
    found = Conversation({"disk": Export("disk", 1 << 20, contexts=contexts), "b": Export("b", 512)}).open()
    assert found.final(OptionType.STRUCTURED_REPLY) == Reply.ACK
    return found


@pytest.mark.parametrize(
    ("queries", "listed"),
    [
        ((), [BASE_ALLOCATION, A, B]),
        (("qemu:",), [A, B]),
        (("qemu:dirty-bitmap:",), [A, B]),
        ((B,), [B]),
        ((B, A, "base:"), [BASE_ALLOCATION, A, B]),
        (("qemu:allocation-depth", "qemu:dirty-bitmap", "qemu:dirty", "qemu:dirty-bitmap:c", ":", ""), []),
    ],
)
def test_queries_list_bitmaps_by_name_and_by_prefix(queries: tuple[str, ...], listed: list[str]) -> None:
    assert talk().contexts(OptionType.LIST_META_CONTEXT, *queries) == listed


@pytest.mark.parametrize(
    ("queries", "ids"),
    [
        ((A,), (2,)),
        ((B, BASE_ALLOCATION), (1, 3)),
        ((A, A, B), (2, 3)),
        (("qemu:dirty-bitmap:",), ()),
        (("qemu:",), ()),
    ],
)
def test_selection_takes_each_bitmap_once_by_its_whole_name(queries: tuple[str, ...], ids: tuple[int, ...]) -> None:
    conversation = talk()
    answers = conversation.ask(OptionType.SET_META_CONTEXT, ContextRequest("disk", queries).pack())
    assert answers[-1].reply == Reply.ACK
    told = [unpack_context(answer.payload) for answer in answers[:-1]]
    assert told == [(number, (BASE_ALLOCATION, A, B)[number - 1]) for number in ids]
    assert conversation.go().contexts == ids


def test_as_many_bitmaps_as_clients_may_ask_for_can_be_selected() -> None:
    names = tuple(f"qemu:dirty-bitmap:{number}" for number in range(MAX_QUERIES - 2))
    conversation = talk((BASE_ALLOCATION, *names))
    assert conversation.contexts(OptionType.SET_META_CONTEXT, BASE_ALLOCATION, *names) == [BASE_ALLOCATION, *names]
    assert len(conversation.go().contexts) == MAX_QUERIES - 1


def test_unknown_bitmap_is_ignored_and_not_told_as_another() -> None:
    conversation = talk()
    assert conversation.contexts(OptionType.SET_META_CONTEXT, "qemu:dirty-bitmap:c", BASE_ALLOCATION) == [
        BASE_ALLOCATION
    ]
    assert conversation.go().contexts == (1,)


@pytest.mark.parametrize("queries", [(A,), ("qemu:dirty-bitmap:c", BASE_ALLOCATION)])
def test_who_looks_the_export_up_learns_that_a_bitmap_is_asked_for(queries: tuple[str, ...]) -> None:
    conversation = talk()
    conversation.contexts(OptionType.SET_META_CONTEXT, *queries)
    conversation.go()
    assert conversation.lookups == [FindExport("disk", False, True), FindExport("disk", True, True)]


@pytest.mark.parametrize("queries", [(), (BASE_ALLOCATION,), ("qemu:dirty-bitmap:",), ("x-bitmap:a",)])
def test_who_asks_for_no_bitmap_is_not_taken_for_one_who_does(queries: tuple[str, ...]) -> None:
    conversation = talk()
    conversation.contexts(OptionType.SET_META_CONTEXT, A)
    conversation.contexts(OptionType.SET_META_CONTEXT, *queries)
    conversation.go()
    assert [lookup.changes for lookup in conversation.lookups] == [True, False, False]


def test_refused_bitmap_refuses_to_enter_until_another_selection() -> None:
    conversation = talk()
    good = conversation.exports.pop("disk")
    assert conversation.final(OptionType.SET_META_CONTEXT, ContextRequest("disk", (A,)).pack()) == Reply.ERR_UNKNOWN
    conversation.exports["disk"] = good
    assert conversation.final(OptionType.INFO, InfoRequest("b", ()).pack()) == Reply.ACK
    assert conversation.contexts(OptionType.SET_META_CONTEXT) == []
    assert conversation.go().contexts == ()
    assert [lookup.changes for lookup in conversation.lookups] == [True, False, False, False]


def test_selection_does_not_hold_for_an_image_with_other_bitmaps() -> None:
    conversation = talk()
    conversation.contexts(OptionType.SET_META_CONTEXT, BASE_ALLOCATION, A)
    conversation.exports["disk"] = Export("disk", 1 << 20, contexts=(BASE_ALLOCATION, B, A))
    assert conversation.go().contexts == ()
