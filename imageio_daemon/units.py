# SPDX-License-Identifier: Apache-2.0
"""Binary units, in bytes."""

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

#: Largest end of a range: loff_t is signed (lseek(2)), and so are sizes in the protocols.
MAX_OFFSET = 2**63 - 1
