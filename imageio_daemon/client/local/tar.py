# SPDX-License-Identifier: Apache-2.0
"""Members of tar archives, such as OVA files, which are read in place."""

import tarfile
from pathlib import Path
from typing import NamedTuple

from ..errors import LocalError


class Member(NamedTuple):
    """The content of a member: offset in the archive and size, in bytes."""

    name: str
    offset: int
    size: int


def find_member(path: Path, name: str) -> Member:
    """Find a regular member by its name. Raises LocalError, whose message lists the members."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = [member for member in archive if member.isreg()]
    except (OSError, tarfile.TarError) as e:
        raise LocalError(f"can't read {path} as an uncompressed tar archive: {e}") from e
    for member in members:
        if member.name == name and not member.issparse():
            return Member(name, member.offset_data, member.size)
    raise LocalError(f"{path} has no member {name}, but {', '.join(member.name for member in members) or 'none'}")
