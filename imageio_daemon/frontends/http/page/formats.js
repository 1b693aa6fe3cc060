// SPDX-License-Identifier: Apache-2.0
// What a file is, by how it begins. A disk is uploaded byte by byte, so a file that has one inside must be converted.

const CONVERT = ["Convert it first:", (name) => `qemu-img convert -O raw ${quoted(name)} ${other(name)}`];
const UNPACK = ["Unpack it, and choose the disk inside.", () => ""];

function decompress(program) {
    return ["Decompress it first:", (name) => `${program} ${quoted(name)}`];
}

/** Return a name as it stands in a command of any system; FILE in place of one that a shell could take for more. */
function quoted(name) {
    if (!/^[\p{L}\p{N}_.][\p{L}\p{N}_.+ -]*$/u.test(name)) {
        return "FILE";
    }
    return name.includes(" ") ? `"${name}"` : name;
}

/** Return the name of the raw disk, which is not the name of the file. */
function other(name) {
    return name === "disk.raw" ? "converted.raw" : "disk.raw";
}

/** Name, how to make a raw disk of it (a sentence, and a command or ""), and the bytes at an offset by which it is known. */
const FORMATS = [
    ["qcow2 image", CONVERT, 0, "QFI\xfb"],
    ["VMware disk (VMDK)", CONVERT, 0, "KDMV"],
    ["VMware disk (VMDK)", CONVERT, 0, "COWD"],
    ["VMware disk description, without the disk itself", CONVERT, 0, "# Disk DescriptorFile"],
    ["Hyper-V disk (VHDX)", CONVERT, 0, "vhdxfile"],
    ["VirtualBox disk (VDI)", CONVERT, 0x40, "\x7f\x10\xda\xbe"],
    ["dynamic VHD disk", CONVERT, 0, "conectix"],
    ["tar archive, as an OVA is", UNPACK, 257, "ustar"],
    ["gzip file", decompress("gunzip"), 0, "\x1f\x8b\x08"],
    ["xz file", decompress("unxz"), 0, "\xfd7zXZ\0"],
    ["zstd file", decompress("unzstd"), 0, "\x28\xb5\x2f\xfd"],
    ["bzip2 file", decompress("bunzip2"), 0, "BZh"],
    ["zip archive", UNPACK, 0, "PK\x03\x04"],
    ["7z archive", UNPACK, 0, "7z\xbc\xaf\x27\x1c"],
];
/** Bytes that are looked at. */
const HEAD = 512;

/**
 * Return the format of a file: `name`, and if it is no raw disk `advice`, and the `command` that does it, else null and
 * "". Raises what reading a file raises.
 */
export async function formatOf(file) {
    const head = new Uint8Array(await file.slice(0, HEAD).arrayBuffer());
    for (const [name, [advice, command], offset, magic] of FORMATS) {
        if (Array.from(magic).every((c, index) => head[offset + index] === c.charCodeAt(0))) {
            return { name, advice, command: command(file.name) };
        }
    }
    return { name: partitioned(head), advice: null, command: "" };
}

/** A raw disk has no mark of its own; the signature of its first sector is that of a partition table (UEFI 2.10, 5.2). */
function partitioned(head) {
    return head[510] === 0x55 && head[511] === 0xaa ? "raw disk with a partition table" : "raw bytes";
}
