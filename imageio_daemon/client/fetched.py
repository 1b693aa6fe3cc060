# SPDX-License-Identifier: Apache-2.0
"""A file that comes over a network, in order, as what opens images knows it."""

import io


class Fetched(io.RawIOBase):
    """A file that is read once. name: in messages, without secrets. file_name: what its suffixes are those of.

    size: bytes; None: nobody tells it. Reads raise ClientError.
    """

    name: str
    file_name: str
    size: int | None

    def readable(self) -> bool:
        """Return True."""
        return True

    def stop(self) -> None:
        """Make a read that waits raise Stopped, and those that follow."""
