# SPDX-License-Identifier: Apache-2.0
"""The NBD error for each errno, with which lanes answer requests that fail."""

from ...errors import FAULTS, Fault
from ...nbdproto.constants import ErrorNumber

_ANSWERS = {Fault.FULL: ErrorNumber.ENOSPC, Fault.PERMISSION: ErrorNumber.EPERM}

#: The NBD error for an errno of storage. All others get EIO (proto.md, "Error values"). The table for HTTP is in
#: frontends/http/errors.py. The NBD client in storage/nbd keeps the number that its server has sent.
ERRORS = {number: _ANSWERS[fault] for number, fault in FAULTS.items() if fault in _ANSWERS}
