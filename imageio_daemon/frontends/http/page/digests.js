// SPDX-License-Identifier: Apache-2.0
// The digests of all blocks of a disk, and checksums of its parts as the server makes them: the digest of the digests.

import { BLOCK, blockCount, place } from "./blocks.js";

/** Bytes of a SHA-256. */
const LENGTH = 32;
/** Blocks that one request compares: a GiB, which a server reads in a second or some. */
const MOST = 256;

/** Return the SHA-256 of bytes. */
export async function digest(content) {
    return new Uint8Array(await crypto.subtle.digest("SHA-256", content));
}

/** The digests of the blocks of one disk. A GiB of the disk has 8 KiB of them. */
export class Digests {
    #all;
    #zero = null;

    constructor(size) {
        this.size = size;
        this.#all = new Uint8Array(blockCount(size) * LENGTH);
    }

    /** Set the digest of a block. */
    set(index, value) {
        this.#all.set(value, index * LENGTH);
    }

    /** Set the digest of a block of zeros, which is computed once. */
    async setZero(index) {
        const { length } = place(index, this.size);
        if (length !== BLOCK) {
            this.set(index, await digest(new Uint8Array(length)));
            return;
        }
        this.#zero ??= digest(new Uint8Array(BLOCK));
        this.set(index, await this.#zero);
    }

    /** Return the checksum of blocks, in hexadecimal. */
    async checksum(first = 0, count = blockCount(this.size)) {
        const sum = await digest(this.#all.subarray(first * LENGTH, (first + count) * LENGTH));
        return Array.from(sum, (byte) => byte.toString(16).padStart(2, "0")).join("");
    }
}

/**
 * Return the blocks of an image that differ from the digests, in order.
 *
 * patience: tries requests again. tell: gets the bytes that are compared.
 */
export async function differing(image, digests, patience, tell) {
    const found = [];
    let done = 0;

    async function compare(first, count) {
        const { offset } = place(first, digests.size);
        const length = Math.min(count * BLOCK, digests.size - offset);
        const there = await patience.persist(() => image.checksum(BLOCK, offset, length, patience.signal));
        if (there === (await digests.checksum(first, count))) {
            done += length;
            tell(done);
        } else if (count === 1) {
            found.push(first);
            done += length;
        } else {
            const half = count >> 1;
            await compare(first, half);
            await compare(first + half, count - half);
        }
    }

    const blocks = blockCount(digests.size);
    for (let first = 0; first < blocks; first += MOST) {
        await compare(first, Math.min(MOST, blocks - first));
    }
    return found;
}
