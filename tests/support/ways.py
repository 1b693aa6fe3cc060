# SPDX-License-Identifier: Apache-2.0
"""The ways to serve requests of HTTP: tests of the images API run with each, and see no difference."""

import os
from collections.abc import Mapping

from tests.support.daemon import EAGER_PROGRAM, PROGRAM, STATE, Certificates, Daemon, Section

#: Tests of images with every kind of ticket take too long for each run: some are left to `make soak`.
EVERYTHING = bool(os.environ.get("IMAGEIO_TEST_LONG"))

C_LANE = "c_lane"
AIOHTTP = "aiohttp"
#: What distinguishes them.
WAYS: Mapping[str, Mapping[str, Section]] = {
    C_LANE: {"daemon": {"loops": 2, "state_dir": STATE}},
    AIOHTTP: {"daemon": {"state_dir": STATE}, "remote": {"c_lane": "false"}},
}


def start(way: str, certificates: Certificates, **config: Section) -> Daemon:
    """Return a daemon, not started, that serves in this way. config: more of its configuration."""
    config = {**WAYS[way], "backend_http": {"ca_file": certificates.cafile}, **config}
    return Daemon(certificates, config, program=EAGER_PROGRAM if way == C_LANE else PROGRAM)
