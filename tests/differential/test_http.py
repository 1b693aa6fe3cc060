# SPDX-License-Identifier: Apache-2.0
"""HTTP: the same bytes get the same answers as from an earlier version, and leave the same images."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.differential.comparing import WARM_UP, check, check_lane, difference_of
from tests.differential.conftest import BEFORE, MakeScene
from tests.differential.conversation import Conversation
from tests.differential.corpus import GROUPS
from tests.differential.generated import conversations
from tests.differential.scene import Server
from tests.support.places import KINDS, Place

if BEFORE is None:
    pytest.skip("IMAGEIO_TEST_BEFORE names no earlier build", allow_module_level=True)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("service", ["tls", "unix"])
@pytest.mark.parametrize("group", GROUPS)
def test_earlier_version_answers_like_itself(
    make_scene: MakeScene, before: Server, before_again: Server, group: str, service: str, warm: bool
) -> None:
    check(make_scene([before, before_again]), group, service, warm=warm)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("service", ["tls", "unix"])
@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_those_of_before(
    make_scene: MakeScene, before: Server, lane: Server, decided: Server, group: str, service: str, warm: bool
) -> None:
    check(make_scene([before, lane, decided]), group, service, warm=warm)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_those_of_before_on_other_storage(
    make_scene: MakeScene, before: Server, lane: Server, decided: Server, group: str, kind: type[Place]
) -> None:
    check(make_scene([before, lane, decided], kind), group, "unix", warm=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("service", ["tls", "unix"])
def test_generated_requests_are_answered_as_before(
    make_scene: MakeScene, before: Server, lane: Server, decided: Server, service: str
) -> None:
    scene = make_scene([before, lane, decided])

    for server in scene.servers:
        check_lane(server, service)

    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(conversation=conversations())
    def compare(conversation: Conversation) -> None:
        found = difference_of(scene, conversation.after(*WARM_UP), service)
        assert not found, f"{conversation.rounds}\n{found}"

    compare()
