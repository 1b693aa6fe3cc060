# SPDX-License-Identifier: Apache-2.0
"""The checks of Ceph. They use qemu, which also opens the images of tickets, as the user that is checked."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..config.config import Config
from ..errors import InvalidRequest
from ..storage.nbd.process import environment
from ..storage.nbd.reasons import remedy
from ..urls import rbd as rbd_url
from .finding import Finding, failed, ok, warning

#: Seconds that a cluster has to answer.
TIMEOUT = 15.0
#: Most questions at a time. So the checks wait once for a cluster that does not answer, not for each of its pools.
AT_ONCE = 16
#: An image that should not exist. A pool that can be read says that it does not.
NOBODYS = "imageioctl check"
_NOT_THERE = f"error reading header from {NOBODYS}: No such file or directory"
#: The error for a key of another pool, or of one namespace only.
_NOT_PERMITTED = "Operation not permitted"


def cluster(config: Config, urls: Sequence[str]) -> Iterator[Finding]:
    """Check that the pools of [backend_rbd] allowed_pools, and images at `urls`, can be read with the user's key."""
    pools = config.backend_rbd.allowed_pools
    if pools and shutil.which("rbd") is None:
        yield warning("ceph", "without rbd (ceph-common) no ticket can tell what has changed since a snapshot")
    questions = [*(partial(_pool, config, pool) for pool in pools), *(partial(_image, config, url) for url in urls)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield from threads.map(lambda ask: ask(), questions)


def _pool(config: Config, pool: str) -> Finding:
    """Check that a pool, or a namespace of one, can be reached."""
    reason = _why_unreadable(config, rbd_url.parse(f"{rbd_url.SCHEME}:{pool}/{NOBODYS}"))
    if reason is None or reason.endswith(_NOT_THERE):
        return ok("ceph", f"pool {pool}: client.{config.backend_rbd.user} can reach it")
    if reason.endswith(_NOT_PERMITTED) and "/" not in pool:
        reason += f" (is the key of one namespace? then: {pool}/NAMESPACE)"
    return failed("ceph", f"pool {pool}: {reason}")


def _image(config: Config, url: str) -> Finding:
    """Check that an image can be read."""
    try:
        address = rbd_url.parse(url)
    except InvalidRequest as e:
        return failed("image", str(e))
    if not address.is_in(config.backend_rbd.allowed_pools):
        return failed("image", f"{url}: {address.where} is not in [backend_rbd] allowed_pools")
    reason = _why_unreadable(config, address)
    return failed("image", f"{url}: {reason}") if reason else ok("image", f"{url}: it can be read")


def _why_unreadable(config: Config, address: rbd_url.RbdAddress) -> str | None:
    """Return why qemu cannot open an image, or None if it can."""
    node = address.node(config.backend_rbd.conf, config.backend_rbd.user)
    command = ["qemu-img", "info", "json:" + json.dumps({"driver": "raw", "file": node})]
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and names are inside JSON
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"the cluster does not answer in {TIMEOUT:.0f} seconds"
    except OSError as e:
        return f"qemu-img cannot be run (qemu-utils): {e.strerror}"
    if done.returncode == 0:
        return None
    said = " ".join(done.stderr.decode(errors="replace").split())
    return said.rpartition("': ")[2] + remedy(said)
