# SPDX-License-Identifier: Apache-2.0
"""The user that the daemon becomes, and the state directory, which that user opens."""

import logging
import os

from ..config.config import Config
from ..errors import ConfigError
from ..net.service_sockets import ServiceSockets
from ..runtime import privileges
from ..runtime.state import StateDirectory, make_directory, open_state

log = logging.getLogger(__name__)


def state_path(config: Config) -> str:
    """Return the configured state directory, or that of the unit (StateDirectory= in systemd.exec(5)), or ""."""
    return config.daemon.state_dir or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]


def become(config: Config, sockets: ServiceSockets) -> tuple[StateDirectory | None, str]:
    """Drop privileges, as the configuration says, and open the state directory.

    Return the directory, if there is one, and why the configured one cannot be used, or "".
    Gives the files of the sockets to the new user. Raises ConfigError, also if another daemon has the state directory.
    In that case this removes the sockets.
    """
    path = state_path(config)
    _drop_privileges(config, sockets, path)
    try:
        return (open_state(path) if path else None), ""
    except OSError as e:
        log.warning("the state directory %s cannot be used, so nothing is kept: %s", path, e.strerror or e)
        return None, e.strerror or str(e)
    except ConfigError:
        sockets.remove()
        raise


def _drop_privileges(config: Config, sockets: ServiceSockets, state: str) -> None:
    made = make_directory(state) if state else False
    if not config.daemon.drop_privileges or os.geteuid() != 0:
        return
    identity = privileges.lookup(config.daemon.user_name, config.daemon.group_name)
    sockets.give(identity)
    if made:
        privileges.give(state, identity)
    privileges.drop(identity)
