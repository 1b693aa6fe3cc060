# SPDX-License-Identifier: Apache-2.0
"""HTTP: the same bytes get the same answers, and leave the same images, whether C or Python decides them."""

import pytest

from tests.differential.comparing import check
from tests.differential.conftest import MakeScene
from tests.differential.corpus import GROUPS
from tests.differential.scene import Server

#: Groups for which it may matter how bytes arrive. Over TLS the other groups would show nothing new.
OVER_TLS = ("framing", "delivery", "expectations", "chunked")


@pytest.mark.parametrize(
    ("group", "service"), [*((group, "unix") for group in GROUPS), *((group, "tls") for group in OVER_TLS)]
)
def test_python_decides_like_the_lane(
    make_scene: MakeScene, lane: Server, decided: Server, group: str, service: str
) -> None:
    check(make_scene([lane, decided]), group, service, warm=True)
