# SPDX-License-Identifier: Apache-2.0
"""Kinds of storage. Each has a subclass of Backend (backend.py).

`file` has files and block devices, `qcow2` images in this format, both by C. `nbd` has exports of NBD servers: Python
connects, then C talks to them. It also has image files with a format and Ceph, by a qemu-nbd that the daemon starts.
operations/opener.py chooses by the ticket. The other modules are for all kinds.
"""
