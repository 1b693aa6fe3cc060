# SPDX-License-Identifier: Apache-2.0
"""From root to the service's user, once, after the sockets are open."""

import grp
import os
import pwd
from typing import NamedTuple

from .errors import ConfigError


class Identity(NamedTuple):
    """A user and group, resolved."""

    user_name: str
    uid: int
    gid: int


def lookup(user_name: str, group_name: str) -> Identity:
    """Resolve the names. Raises ConfigError when one is unknown."""
    try:
        uid = pwd.getpwnam(user_name).pw_uid
    except KeyError:
        raise ConfigError(f"[daemon] user_name: there is no user {user_name!r}") from None
    try:
        gid = grp.getgrnam(group_name).gr_gid
    except KeyError:
        raise ConfigError(f"[daemon] group_name: there is no group {group_name!r}") from None
    return Identity(user_name, uid, gid)


def give(path: str, identity: Identity) -> None:
    """Make the user the owner of a path of ours."""
    os.chown(path, identity.uid, identity.gid, follow_symlinks=False)


def drop(identity: Identity) -> None:
    """Become the user, with its supplementary groups (initgroups), for good."""
    os.initgroups(identity.user_name, identity.gid)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
