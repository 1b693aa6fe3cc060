// SPDX-License-Identifier: Apache-2.0
// What a file is, by how it begins. A disk is uploaded byte by byte, so a file that has one inside must be converted.

/** Name, how to make a raw disk of it, and the bytes at an offset by which it is known. */
const FORMATS = [
    ["qcow2 image", convert, 0, "QFI\xfb"],
    ["VMware disk (VMDK)", convert, 0, "KDMV"],
    ["VMware disk (VMDK)", convert, 0, "COWD"],
    ["VMware disk description, without the disk itself", convert, 0, "# Disk DescriptorFile"],
    ["Hyper-V disk (VHDX)", convert, 0, "vhdxfile"],
    ["VirtualBox disk (VDI)", convert, 0x40, "\x7f\x10\xda\xbe"],
    ["dynamic VHD disk", convert, 0, "conectix"],
    ["tar archive, as an OVA is", unpack, 257, "ustar"],
    ["gzip file", () => "Decompress it first: gunzip FILE", 0, "\x1f\x8b\x08"],
    ["xz file", () => "Decompress it first: unxz FILE", 0, "\xfd7zXZ\0"],
    ["zstd file", () => "Decompress it first: unzstd FILE", 0, "\x28\xb5\x2f\xfd"],
    ["bzip2 file", () => "Decompress it first: bunzip2 FILE", 0, "BZh"],
    ["zip archive", unpack, 0, "PK\x03\x04"],
    ["7z archive", unpack, 0, "7z\xbc\xaf\x27\x1c"],
];
/** Bytes that are looked at. */
const HEAD = 512;

function convert() {
    return "Convert it first: qemu-img convert -O raw FILE disk.raw";
}

function unpack() {
    return "Unpack it, and choose the disk inside.";
}

/**
 * Return the format of a file: `name`, and `advice` if it is no raw disk, else null. Raises what reading a file raises.
 */
export async function formatOf(file) {
    const head = new Uint8Array(await file.slice(0, HEAD).arrayBuffer());
    for (const [name, advice, offset, magic] of FORMATS) {
        if (Array.from(magic).every((c, index) => head[offset + index] === c.charCodeAt(0))) {
            return { name, advice: advice() };
        }
    }
    return { name: partitioned(head), advice: null };
}

/** A raw disk has no mark of its own; the signature of its first sector is that of a partition table (UEFI 2.10, 5.2). */
function partitioned(head) {
    return head[510] === 0x55 && head[511] === 0xaa ? "raw disk with a partition table" : "raw bytes";
}
