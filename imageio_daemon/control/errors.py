# SPDX-License-Identifier: Apache-2.0
"""The errors of imageioctl, one class for each exit status. A message is one line."""

from typing import ClassVar

from ..errors import Error


class ControlError(Error):
    """The base class, also of errors without a class of their own. `status` is the exit status of the command."""

    status: ClassVar[int] = 1


class Usage(ControlError):
    """The arguments are invalid, or contradict each other."""

    status = 2


class NoSuchTicket(ControlError):
    """There is no ticket with this name or id, or there are several."""

    status = 3


class Unreachable(ControlError):
    """Nothing answers at the control socket, or something that is not the daemon."""

    status = 4
