# SPDX-License-Identifier: Apache-2.0
"""What a lane needs of an image."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from ..errors import Error


@runtime_checkable
class LaneImage(Protocol):
    """A backend whose operations C performs or passes on."""

    @property
    def name(self) -> str:
        """Return what the image is called in logs."""
        ...

    def lane_handle(self) -> AbstractContextManager[Any]:
        """Keep C's handle of the image open for the block. Raises Canceled when the image was closed."""
        ...

    def take_failure(self, control: Any) -> Error | None:
        """Return, once, why something that the lane with this control asked for failed; None: C tells."""
        ...
