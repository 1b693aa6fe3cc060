# SPDX-License-Identifier: Apache-2.0
"""Images on Ceph: their addresses, rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT], and what qemu and rbd(8) are told, and tell.

Names have neither `/` nor `@`, which separate them, and no control characters. Anything else stands for itself: there
is no escape, and no option can be in a name, because neither program gets an address as one string.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidRequest

SCHEME = "rbd"

#: Longest name of a pool, namespace, image or snapshot, in bytes of UTF-8.
MAX_NAME = 255

_NAME = r"[^/@\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+"
_WHOLE_NAME = re.compile(_NAME)
_ADDRESS = re.compile(
    rf"rbd:(?P<pool>{_NAME})/(?:(?P<namespace>{_NAME})/)?(?P<image>{_NAME})(?:@(?P<snapshot>{_NAME}))?"
)


@dataclass(frozen=True)
class RbdAddress:
    """The address of an image, or of a snapshot of it. Without a namespace or snapshot, that is ""."""

    pool: str
    namespace: str
    image: str
    snapshot: str

    def __str__(self) -> str:
        snapshot = f"@{self.snapshot}" if self.snapshot else ""
        return f"{SCHEME}:{self.where}/{self.image}{snapshot}"

    @property
    def where(self) -> str:
        """Return POOL, or POOL/NAMESPACE."""
        return f"{self.pool}/{self.namespace}" if self.namespace else self.pool

    def is_in(self, places: Sequence[str]) -> bool:
        """Return whether it is in one of these pools, with all their namespaces, or namespaces (POOL/NAMESPACE)."""
        return self.pool in places or self.where in places

    def node(self, conf: str = "", user: str = "") -> dict[str, str]:
        """Return qemu's block node, for JSON. If `conf` or `user` of the cluster is "", librados finds it itself."""
        told = {
            "pool": self.pool,
            "namespace": self.namespace,
            "image": self.image,
            "snapshot": self.snapshot,
            "conf": conf,
            "user": user,
        }
        return {"driver": "rbd"} | {key: value for key, value in told.items() if value}

    def options(self, conf: str = "", user: str = "") -> Sequence[str]:
        """Return the options of rbd(8) that name the image. `conf` and `user` are as for node()."""
        told = {
            "--pool": self.pool,
            "--namespace": self.namespace,
            "--image": self.image,
            "--snap": self.snapshot,
            "--conf": conf,
            "--id": user,
        }
        return [f"{option}={value}" for option, value in told.items() if value]


def is_rbd(url: str) -> bool:
    """Return whether a url has the scheme of images on Ceph."""
    return url.startswith(f"{SCHEME}:")


def is_name(text: str) -> bool:
    """Return whether something on Ceph may have this name."""
    return _WHOLE_NAME.fullmatch(text) is not None and len(text.encode()) <= MAX_NAME


def parse(url: str) -> RbdAddress:
    """Parse a url. Raises InvalidRequest; the message is for the author of the url."""
    match = _ADDRESS.fullmatch(url)
    if match is None or not all(is_name(name) for name in match.groups() if name is not None):
        raise InvalidRequest(
            f"Invalid rbd url: expected rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT], names of at most {MAX_NAME} bytes "
            "without control characters"
        )
    return RbdAddress(**{key: value or "" for key, value in match.groupdict().items()})


def remedy(said: str, not_connected: str) -> str:
    """Return what helps where a message of qemu does not tell, in parentheses, to be put behind it, or "".

    `not_connected` is what helps if the cluster cannot be reached, or does not know the user.
    """
    known = {"Unknown driver 'rbd'": "is qemu-block-extra installed?", "error connecting": not_connected}
    return next((f" ({help_})" for text, help_ in known.items() if text in said), "")
