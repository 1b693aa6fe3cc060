# SPDX-License-Identifier: Apache-2.0
"""The NBD protocol without I/O, as https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md specifies it.

Docstrings here name sections of this document as proto.md, "Section".
"""
