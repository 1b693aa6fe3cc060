# SPDX-License-Identifier: Apache-2.0
"""Owner, permissions, ACL and extended attributes, which a file that replaces another one has from it."""

import errno
import os
import stat
from pathlib import Path

from ..errors import LocalError

#: Extended attributes that belong to a file, and not to its file system, by their beginnings (xattr(7)).
KEPT = ("user.", "security.", "trusted.")
#: ACLs: that of acl(5), and that of NFS 4.
ACLS = ("system.posix_acl_access", "system.nfs4_acl")
#: What a write to the file would remove or belie: capabilities(7), and the hashes of the kernel's integrity subsystem.
OF_CONTENT = ("security.capability", "security.ima", "security.evm")


def take_over(fd: int, path: Path) -> None:
    """Give an open file what the regular file at `path` has, if there is one. Only what differs is set.

    Group and others get no permission before the owner is right, if the file has none for them at first. Raises
    LocalError: the attribute may not be set, or its file system has none.
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
    """Tell whether nobody can have opened a file who may not open a new one that take_over() makes like that at `path`.

    So the owner is the same, and so are the permissions and the ACL; without a file at `path` it belongs to this user.
    Raises OSError.
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
        if name in ACLS:  # the file has it from its directory (acl(5), OBJECT CREATION AND DEFAULT ACLs)
            os.removexattr(fd, name)


def _attributes(file: int | Path) -> dict[str, bytes]:
    """Return the attributes of a file that a new one has to have. Raises OSError."""
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
