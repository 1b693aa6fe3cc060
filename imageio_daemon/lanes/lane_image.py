# SPDX-License-Identifier: Apache-2.0
"""The interface of backends whose images lanes can serve."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from ..errors import Error


@runtime_checkable
class LaneImage(Protocol):
    """A backend with a C handle: C does the operations of lanes itself."""

    @property
    def name(self) -> str:
        """Return the name of the image for logs."""
        ...

    def lane_handle(self) -> AbstractContextManager[Any]:
        """Keep C's handle of the image open for the block. Raises Canceled if the image was closed."""
        ...

    def explain(self, end: Any) -> Error | None:
        """Return the error of a failed operation, or None if the backend knows no more than the numbers of C.

        `end` is the structure of C with `error`, `syscall` and `size`.
        """
        ...
