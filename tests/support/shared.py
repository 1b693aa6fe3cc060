# SPDX-License-Identifier: Apache-2.0
"""The daemon that tests share. Images are open before a test begins, so C has to get each plain request."""

from tests.support.daemon import EAGER_PROGRAM, STATE, Certificates, Daemon, Section
from tests.support.places import QCOW2


def start(certificates: Certificates, **config: Section) -> Daemon:
    """Return a daemon that is not started yet, with this configuration in addition to the usual one."""
    config = {
        "daemon": {"state_dir": STATE},
        "backend_file": {"qcow2": QCOW2},
        "backend_http": {"ca_file": certificates.cafile},
        **config,
    }
    return Daemon(certificates, config, program=EAGER_PROGRAM)
