# SPDX-License-Identifier: Apache-2.0
"""The ways to serve requests of HTTP: tests of the images API run with each, and see no difference."""

import os
from collections.abc import Mapping

import pytest

from tests.support.daemon import EAGER_PROGRAM, PROGRAM, Certificates, Daemon, Section

#: Tests that run all ways through all services take too long for each run: some are left to `make soak`.
EVERYTHING = bool(os.environ.get("IMAGEIO_TEST_LONG"))

C_LANE = "c_lane"
PYTHON_LANE = "python_lane"
#: What distinguishes them. C has no part in what is logged request by request, nor without fast_lane.
WAYS: Mapping[str, Mapping[str, Section]] = {
    C_LANE: {"daemon": {"loops": 2}},
    PYTHON_LANE: {"log": {"level": "DEBUG"}},
    "aiohttp_lane": {"remote": {"fast_lane": "false"}},
}
#: Which services a way is tested through each time. C has TLS of its own; Python's ways share theirs.
_SERVICES = {C_LANE: ("tls", "unix"), PYTHON_LANE: ("unix",), "aiohttp_lane": ("tls",)}


def start(way: str, certificates: Certificates) -> Daemon:
    """Return a daemon, not started, that serves in this way."""
    config = {**WAYS[way], "backend_http": {"ca_file": certificates.cafile}}
    return Daemon(certificates, config, program=EAGER_PROGRAM if way == C_LANE else PROGRAM)


def is_wanted(item: pytest.Item) -> bool:
    """Tell whether a test is to be run with the way and the service that it has."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    way = str(params.get("shared_daemon"))
    if EVERYTHING or way not in WAYS:
        return True
    return params["service"] in _SERVICES[way] if "service" in params else way != PYTHON_LANE
