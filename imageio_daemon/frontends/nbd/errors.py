# SPDX-License-Identifier: Apache-2.0
"""The NBD error for each errno, with which lanes answer requests that fail."""

import errno

from ...nbdproto.constants import ErrorNumber

#: The NBD error for an errno of storage. All others get EIO (proto.md, "Error values"). The table for HTTP is in
#: frontends/http/errors.py. The NBD client in storage/nbd keeps the number that its server has sent.
ERRORS = {
    errno.EPERM: ErrorNumber.EPERM,
    errno.EACCES: ErrorNumber.EPERM,
    errno.EROFS: ErrorNumber.EPERM,
    errno.ENOSPC: ErrorNumber.ENOSPC,
    errno.EDQUOT: ErrorNumber.ENOSPC,
    errno.EFBIG: ErrorNumber.ENOSPC,
}
