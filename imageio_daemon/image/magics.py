# SPDX-License-Identifier: Apache-2.0
"""The magic bytes of formats other than raw, as far as several modules use them.

They tell the format of a file, and a file that should be raw must not begin with them. This module imports no others,
as the client imports it for each upload.
"""

QCOW2 = b"QFI\xfb"
#: The magic of a sparse VMDK. Other kinds of VMDK begin with a text.
VMDK = b"KDMV"
VHDX = b"vhdxfile"
#: The magic of the footer. A dynamic VPC image has a copy of the footer at its beginning.
VPC = b"conectix"
#: The header of VDI begins with a text for people. The magic comes after it.
VDI, VDI_OFFSET = b"\x7f\x10\xda\xbe", 64
#: The magic of a frame (RFC 8878, 3.1.1).
ZSTD = b"\x28\xb5\x2f\xfd"
