# SPDX-License-Identifier: Apache-2.0
"""Kinds of storage. Each has a subclass of Backend (backend.py).

`file` has files and block devices, by C. `nbd` has exports of NBD servers: Python connects, then C talks to them.
`qemu` has image files with a format and Ceph, by a qemu-nbd that the daemon starts, and qcow2 that C reads itself.
operations/opener.py chooses by the ticket. The other modules are for all kinds.
"""
