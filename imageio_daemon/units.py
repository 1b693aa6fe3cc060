# SPDX-License-Identifier: Apache-2.0
"""Binary units, in bytes."""

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

#: Least and largest limit of a rate, in bytes per second. With less than the least, programs would give up while a
#: piece of data waits; more than the largest is more than memory can be copied.
MIN_RATE = 64 * KiB
MAX_RATE = 16 * GiB

#: Most transfers that a limit on them may allow.
MAX_TRANSFERS = 65536

#: The longest name of a tenant, in bytes of UTF-8.
MAX_TENANT = 255
#: Most tenants that have limits of their own: with names of 255 bytes, 3 MiB.
MAX_TENANTS = 10_000

#: Largest end of a range: loff_t is signed (lseek(2)), and so are sizes in the protocols.
MAX_OFFSET = 2**63 - 1
