# SPDX-License-Identifier: Apache-2.0
"""The daemon that tests share: images are open before a test begins, so that each plain request has to come to C."""

from tests.support.daemon import EAGER_PROGRAM, STATE, Certificates, Daemon, Section
from tests.support.places import QCOW2


def start(certificates: Certificates, **config: Section) -> Daemon:
    """Return a daemon, not started. config: more of its configuration."""
    config = {
        "daemon": {"state_dir": STATE},
        "backend_file": {"qcow2": QCOW2},
        "backend_http": {"ca_file": certificates.cafile},
        **config,
    }
    return Daemon(certificates, config, program=EAGER_PROGRAM)
