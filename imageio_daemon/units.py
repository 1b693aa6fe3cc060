# SPDX-License-Identifier: Apache-2.0
"""Names for sizes, in bytes."""

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

#: Largest offset + length that the kernel and the wire formats can name (loff_t is signed).
MAX_OFFSET = 2**63 - 1
