# SPDX-License-Identifier: Apache-2.0
"""A file that comes over a network, in order: the interface for the code that opens images."""

from abc import ABC, abstractmethod


class Fetched(ABC):
    """A file that is read once.

    `name` is for messages, without secrets. `file_name` is the name with the suffixes. `size` is in bytes, or None if
    it is not known.
    """

    name: str
    file_name: str
    size: int | None

    @abstractmethod
    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises ClientError."""

    @abstractmethod
    def stop(self) -> None:
        """Make a waiting read, and all later reads, raise Stopped."""
