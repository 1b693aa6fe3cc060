# SPDX-License-Identifier: Apache-2.0
"""Kinds of storage. Each is a folder with a class that keeps the contract Backend (backend.py).

`file` has files and block devices, by C. `nbd` has exports of NBD servers: Python connects, then C talks to them.
`qcow2` has image files that C reads itself, and `qemu` other image files and Ceph, by a qemu-nbd that the daemon
starts. operations/opener.py chooses by the ticket. The modules of this folder are for all kinds.
"""
