# SPDX-License-Identifier: Apache-2.0
"""Images of NBD servers: of those that a ticket names, and of a qemu-nbd that the daemon starts for a ticket."""
