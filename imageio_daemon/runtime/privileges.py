# SPDX-License-Identifier: Apache-2.0
"""The change from root to the service's user, after the sockets are open."""

import grp
import os
import pwd
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ConfigError


class Identity(NamedTuple):
    """A user with its numeric ids."""

    user_name: str
    uid: int
    gid: int


def lookup(user_name: str, group_name: str) -> Identity:
    """Look up the names in the user and group databases. Raises ConfigError if one is unknown."""
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
    """Change owner and group of a path, not of the target of a symbolic link. Raises OSError."""
    os.chown(path, identity.uid, identity.gid, follow_symlinks=False)


def drop(identity: Identity, groups: Sequence[str] = ()) -> None:
    """Set all user and group ids and the supplementary groups of the process (setresuid(2)). Raises OSError.

    `groups` has the names or numbers of more groups. Unknown names have no effect.
    """
    os.initgroups(identity.user_name, identity.gid)
    if groups:
        os.setgroups([*os.getgroups(), *(gid for group in groups if (gid := _gid(group)) is not None)])
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)


def _gid(group: str) -> int | None:
    try:
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        return None
