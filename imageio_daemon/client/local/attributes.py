# SPDX-License-Identifier: Apache-2.0
"""Owner, permissions, ACL and extended attributes, which a new file takes over from the file that it replaces."""

import errno
import os
import stat
from pathlib import Path

from ..errors import LocalError

#: Prefixes of the extended attributes that belong to a file, and not to its file system (xattr(7)).
KEPT = ("user.", "security.", "trusted.")
#: The attributes of ACLs, of acl(5) and of NFS 4.
ACLS = ("system.posix_acl_access", "system.nfs4_acl")
#: Attributes that a write to the file would remove or make wrong: capabilities(7), and the hashes of the kernel's
#: integrity subsystem.
OF_CONTENT = ("security.capability", "security.ima", "security.evm")


def take_over(fd: int, path: Path) -> None:
    """Give an open file the owner, attributes and permissions of the regular file at `path`, if there is one.

    Sets only what differs. If the open file has no permissions for group and others at first, they get none before the
    owner is right. Raises LocalError if an attribute cannot be set.
    """
    try:
        older = path.stat()
        if not stat.S_ISREG(older.st_mode):
            return
        what = "the owner"
        new = os.fstat(fd)
        if (new.st_uid, new.st_gid) != (older.st_uid, older.st_gid):
            os.fchown(fd, older.st_uid, older.st_gid)
        what = "the attributes"
        _copy(_attributes(path), fd)
        what = "the permissions"
        # A write would remove the set-user-ID and set-group-ID bits (chmod(2)).
        mode = stat.S_IMODE(older.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)
    except FileNotFoundError:
        return
    except OSError as e:
        raise LocalError(f"can't keep {what} of {path}: {e.strerror}: remove it first, or choose another name") from e


def admits_no_more(fd: int, path: Path) -> bool:
    """Return whether an open file admits nobody whom a new file, after take_over() from `path`, would not admit.

    That is so if owner, permissions and ACL are the same as at `path`, or if there is no file at `path` and the open
    one belongs to this user. Raises OSError.
    """
    part = os.fstat(fd)
    if not stat.S_ISREG(part.st_mode) or part.st_nlink != 1:
        return False
    try:
        older = path.stat()
    except FileNotFoundError:
        return part.st_uid == os.geteuid()
    mode = stat.S_IMODE(older.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
    wanted, present = (_acls(_attributes(file)) for file in (path, fd))
    same_owner = (part.st_uid, part.st_gid) == (older.st_uid, older.st_gid)
    return same_owner and stat.S_IMODE(part.st_mode) == mode and wanted == present


def _acls(attributes: dict[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in attributes.items() if name in ACLS}


def _copy(wanted: dict[str, bytes], fd: int) -> None:
    present = _attributes(fd)
    for name, value in wanted.items():
        if present.get(name) != value:
            os.setxattr(fd, name, value)
    for name in present.keys() - wanted.keys():
        if name in ACLS:  # the directory's default (acl(5), OBJECT CREATION AND DEFAULT ACLs)
            os.removexattr(fd, name)


def _attributes(file: int | Path) -> dict[str, bytes]:
    """Return the attributes of a file that a new one takes over. Raises OSError."""
    try:
        names = os.listxattr(file)
    except OSError as e:
        if e.errno != errno.EOPNOTSUPP:
            raise
        return {}
    return {
        name: os.getxattr(file, name)
        for name in names
        if name in ACLS or (name.startswith(KEPT) and name not in OF_CONTENT)
    }
