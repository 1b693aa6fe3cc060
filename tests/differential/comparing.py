# SPDX-License-Identifier: Apache-2.0
"""Hold the same conversations with several servers, and find the differences."""

from collections.abc import Iterable

from tests.differential.conversation import Conversation, Round, exchange, hold
from tests.differential.corpus import GROUPS, PROBE
from tests.differential.scene import Scene, Server
from tests.differential.wanted import changes_images, is_wanted
from tests.support.places import Trait
from tests.support.polling import eventually
from tests.support.processes import thread_names

#: What makes a server hand the connection over to C.
WARM_UP: tuple[Round, ...] = (exchange(PROBE), exchange(PROBE))
#: The most differences to report. Further ones would say nothing new.
MOST = 10


def check(scene: Scene, group: str, service: str, *, warm: bool) -> None:
    """Fail if there are differences in a group of conversations."""
    found = differences(scene, GROUPS[group](), service, warm=warm)
    assert not found, "\n".join(found)


def differences(scene: Scene, conversations: Iterable[Conversation], service: str, *, warm: bool) -> list[str]:
    """Return texts about the differences. With `warm`, C has the connection when the conversation begins, if it can."""
    if warm and Trait.OWN in scene.kind.traits:
        for server in scene.servers:
            check_lane(server, service)
    found: list[str] = []
    for conversation in conversations:
        said = conversation.after(*WARM_UP) if warm else conversation
        if difference := difference_of(scene, said, service):
            found.append(f"{conversation}: {difference}")
        if len(found) == MOST:
            return found
    if difference := scene.difference() or scene.status_difference():
        found.append(f"at the end: {difference}")
    return found


def difference_of(scene: Scene, conversation: Conversation, service: str) -> str:
    """Hold a conversation with each server, and return the difference. Renew the images if they differ."""
    expected, *others = [hold(conversation, server.daemon, service, PROBE) for server in scene.servers]
    found = [
        f"{scene.servers[0].name}:\n{expected}\n  {server.name}:\n{got}\n"
        for server, got in zip(scene.servers[1:], others, strict=True)
        if got != expected and not is_wanted(conversation, scene.kind.kind, expected, got)
    ]
    changes = any(changes_images(conversation, scene.kind.kind, expected, got) for got in others if got != expected)
    if not changes and scene.looks_often and (difference := scene.difference()):
        found.append(difference)
    if found or changes:
        scene.renew()
    return "\n  ".join(found)


def check_lane(server: Server, service: str) -> None:
    """Fail unless C serves the connections that it should, and no others."""
    with server.daemon.connect(service) as connection:
        for each in WARM_UP:
            connection.send(*each.pieces)
            assert connection.receive().status == 206
        # The thread that carries out a request ends when it gives the connection back.
        eventually(lambda: ("http-lane" in thread_names(server.daemon.pid)) == server.has_lane, server.name)
