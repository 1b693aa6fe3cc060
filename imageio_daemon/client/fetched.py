# SPDX-License-Identifier: Apache-2.0
"""A file that comes over a network, in order: the interface for the code that opens images."""

import io


class Fetched(io.RawIOBase):
    """A file that is read once. Reads raise ClientError.

    `name` is for messages, without secrets. `file_name` is the name with the suffixes. `size` is in bytes, or None if
    it is not known.
    """

    name: str
    file_name: str
    size: int | None

    def readable(self) -> bool:
        """Return True."""
        return True

    def stop(self) -> None:
        """Make a waiting read, and all later reads, raise Stopped."""
