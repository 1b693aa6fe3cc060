# SPDX-License-Identifier: Apache-2.0
"""The errors of NBD by errno, from which lanes answer requests that fail."""

import errno

from ...nbdproto.constants import ErrorNumber

#: The error of each errno that storage fails with; that of all others is EIO (proto.md, "Error values"). The table for
#: HTTP is in frontends/http/errors.py. As a client, storage/nbd passes on the number that its server sent.
ERRORS = {
    errno.EPERM: ErrorNumber.EPERM,
    errno.EACCES: ErrorNumber.EPERM,
    errno.EROFS: ErrorNumber.EPERM,
    errno.ENOSPC: ErrorNumber.ENOSPC,
    errno.EDQUOT: ErrorNumber.ENOSPC,
    errno.EFBIG: ErrorNumber.ENOSPC,
}
