# SPDX-License-Identifier: Apache-2.0
"""Kinds of storage, each a folder with a class that keeps the contract Backend (backend.py).

file: files and block devices, by C. nbd: exports of NBD servers, to which C talks when Python has connected. qemu:
image files, by a qemu-nbd that the daemon starts. daemon.py chooses by the ticket. The other modules are shared.
"""
