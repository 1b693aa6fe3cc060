# SPDX-License-Identifier: Apache-2.0
"""The errors of imageioctl, a class for each exit status. A message is one line."""

from typing import ClassVar

from ..errors import Error


class ControlError(Error):
    """Base of them, and what has no class of its own. `status`: the exit status of the command."""

    status: ClassVar[int] = 1


class Usage(ControlError):
    """The arguments are invalid, or contradict each other."""

    status = 2


class NoSuchTicket(ControlError):
    """There is no ticket of this name or id, or there are several."""

    status = 3


class Unreachable(ControlError):
    """Nothing answers at the control socket, or it is not the daemon."""

    status = 4
