# SPDX-License-Identifier: Apache-2.0
"""Transfer disk images over HTTP and NBD, one ticket each."""

__version__ = "0.1.0"
