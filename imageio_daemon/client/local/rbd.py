# SPDX-License-Identifier: Apache-2.0
"""Images on Ceph as local ones: rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT], read and written by qemu-nbd.

Cluster and user are found as by Ceph's own programs: CEPH_CONF names the configuration, and CEPH_ARGS, as in
`--id backup`, the user. The defaults are /etc/ceph/ceph.conf and client.admin (ceph(8)). In qemu-nbd, librados reads
CEPH_ARGS, too, but leaves cluster and user in it to the program.
"""

import argparse
import json
import os
import shlex

from ...errors import InvalidRequest
from ...urls.rbd import RbdAddress, parse, remedy
from ..errors import LocalError, Usage
from .image_source import ImageSource
from .image_target import InPlace
from .qemu_nbd import PrivateQemuNbd

_NOT_CONNECTED = "CEPH_CONF and CEPH_ARGS tell which cluster and user it is; can you read the user's key?"


class RbdSource(ImageSource[PrivateQemuNbd]):
    """An image on Ceph, or a snapshot. As with block devices, nothing shows whether it was changed."""

    def __init__(self, address: str) -> None:
        super().__init__(_serve(address, writable=False))


class RbdTarget(InPlace[PrivateQemuNbd]):
    """An existing image on Ceph, which is written in place."""

    remedy = " (rbd resize)"

    def __init__(self, address: str) -> None:
        super().__init__(address, _serve(address, writable=True))


def _serve(address: str, *, writable: bool) -> PrivateQemuNbd:
    found = _parse(address)
    if writable and found.snapshot:
        raise Usage(f"{address} is a snapshot, which cannot be written")
    conf, user = _cluster()
    node = {"driver": "raw", "file": found.node(conf, user), "read-only": not writable}
    try:
        return PrivateQemuNbd(address, ["--", "json:" + json.dumps(node)], writable=writable)
    except LocalError as e:
        raise LocalError(f"{e}{remedy(str(e), _NOT_CONNECTED)}") from e


def _parse(address: str) -> RbdAddress:
    try:
        return parse(address)
    except InvalidRequest as e:
        raise Usage(str(e)) from None


def _cluster() -> tuple[str, str]:
    """Return the path of the configuration and the user in the environment, with "" for the default."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--conf", default=os.environ.get("CEPH_CONF", ""))
    parser.add_argument("--cluster", default="")
    parser.add_argument("-i", "--id", "--user", default="")
    parser.add_argument("-n", "--name", default="")
    try:
        told, _ = parser.parse_known_args(shlex.split(os.environ.get("CEPH_ARGS", "")))
    except (argparse.ArgumentError, ValueError) as e:
        raise Usage(f"can't read CEPH_ARGS: {e}") from None
    named = f"/etc/ceph/{told.cluster}.conf" if told.cluster else ""
    return told.conf or named, told.id or told.name.removeprefix("client.")
