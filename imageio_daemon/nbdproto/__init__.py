# SPDX-License-Identifier: Apache-2.0
"""The NBD protocol without I/O: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md."""
