// SPDX-License-Identifier: Apache-2.0
// A disk in blocks, which are hashed and moved one by one; what is zero in one; blocks of a file.

/** Bytes of a block: the default of checksums (docs/images-api.md). */
export const BLOCK = 4 * 1024 * 1024;
/** Zeros are looked for in pieces of UNIT bytes. Fewer than SHORT in a row are cheaper to send than to ask for. */
const UNIT = 64 * 1024;
const SHORT = 256 * 1024;

/** The file cannot be read, or is not what it was when it was chosen. */
export class Unreadable extends Error {
    constructor(cause) {
        super(cause.message, { cause });
        this.code = "unreadable";
    }
}

/** Return how many blocks a disk has. */
export function blockCount(size) {
    return Math.ceil(size / BLOCK);
}

/** Return where a block begins and how many bytes it has: the last one may be shorter. */
export function place(index, size) {
    const offset = index * BLOCK;
    return { offset, length: Math.min(BLOCK, size - offset) };
}

/** Return the bytes of a file from offset on; after its end they are zero. Raises Unreadable. */
export async function readBlock(file, offset, length) {
    const there = Math.min(length, file.size - offset);
    let content;
    try {
        content = new Uint8Array(await file.slice(offset, offset + there).arrayBuffer());
    } catch (error) {
        throw new Unreadable(error);
    }
    if (content.length !== there) {
        throw new Unreadable(new Error("the file has become shorter"));
    }
    if (there === length) {
        return content;
    }
    const padded = new Uint8Array(length);
    padded.set(content);
    return padded;
}

/** Return the runs of a block: `start`, `end` and whether it is `zero`, in order and without gaps. */
export function runs(content) {
    const found = [];
    for (let start = 0; start < content.length; start += UNIT) {
        const end = Math.min(start + UNIT, content.length);
        const zero = isZero(content, start, end);
        if (found.at(-1)?.zero === zero) {
            found.at(-1).end = end;
        } else {
            found.push({ start, end, zero });
        }
    }
    return joined(found);
}

/** Join runs of zeros that are too short with their neighbours. */
function joined(found) {
    const result = [];
    for (const run of found) {
        const zero = run.zero && (run.end - run.start >= SHORT || found.length === 1);
        if (result.at(-1)?.zero === zero) {
            result.at(-1).end = run.end;
        } else {
            result.push({ ...run, zero });
        }
    }
    return result;
}

/** Tell whether all bytes of a piece are 0. Four at a time: the rest of the disk's last piece byte by byte. */
function isZero(content, start, end) {
    const words = new Uint32Array(content.buffer, content.byteOffset + start, (end - start) >> 2);
    for (let index = 0; index < words.length; index++) {
        if (words[index] !== 0) {
            return false;
        }
    }
    for (let index = end - ((end - start) & 3); index < end; index++) {
        if (content[index] !== 0) {
            return false;
        }
    }
    return true;
}
