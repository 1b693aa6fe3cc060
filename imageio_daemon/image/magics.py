# SPDX-License-Identifier: Apache-2.0
"""The marks that begin what is no raw image, where several modules know them.

A header is checked for them, and a file that is said to be raw must not begin like that. A module without others: the
client reads it in each upload.
"""

QCOW2 = b"QFI\xfb"
#: Of a sparse one: the others begin with a text.
VMDK = b"KDMV"
VHDX = b"vhdxfile"
#: Of the footer, which a dynamic image has at its begin, too.
VPC = b"conectix"
#: Behind the text for people that begins a header.
VDI, VDI_OFFSET = b"\x7f\x10\xda\xbe", 64
#: Of a frame (RFC 8878, 3.1.1).
ZSTD = b"\x28\xb5\x2f\xfd"
