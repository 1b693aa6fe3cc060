# SPDX-License-Identifier: Apache-2.0
"""How long to look for trouble: a moment in each run of the tests, an hour with IMAGEIO_TEST_LONG=1."""

import os

from hypothesis import HealthCheck, settings

# No deadline: the machine may be busy. The fixtures of an example are meant to be shared with the others.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])

settings.register_profile("short", _COMMON, max_examples=60)
settings.register_profile("long", _COMMON, max_examples=5000)
settings.load_profile("long" if os.environ.get("IMAGEIO_TEST_LONG") else "short")
