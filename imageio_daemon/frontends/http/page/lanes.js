// SPDX-License-Identifier: Apache-2.0
// Blocks that are moved at the same time, and ranges of a disk.

import { BLOCK } from "./blocks.js";

/**
 * Blocks under way at a time, each with a request. Browsers open six connections to a server that speaks HTTP/1.1;
 * another request would wait for one of them.
 */
export const LANES = 6;

/**
 * Do work(index) for all blocks that are to be done, in LANES at a time. The first failure ends all of them.
 *
 * Raises the failure, or the reason of the controller's signal.
 */
export async function eachBlock(progress, controller, work) {
    async function lane() {
        try {
            for (let index = progress.take(); index !== null; index = progress.take()) {
                await work(index);
                controller.signal.throwIfAborted();
            }
        } catch (error) {
            controller.abort(error);
        }
    }
    await Promise.all(Array.from({ length: LANES }, lane));
    controller.signal.throwIfAborted();
}

/** Ranges of a disk in order, of those extents that are wanted. */
export class Ranges {
    #starts = [];
    #ends = [];

    constructor(extents, isWanted) {
        for (const extent of extents) {
            if (isWanted(extent)) {
                this.#add(extent.start, extent.start + extent.length);
            }
        }
    }

    #add(start, end) {
        if (this.#ends.at(-1) === start) {
            this.#ends[this.#ends.length - 1] = end;
        } else {
            this.#starts.push(start);
            this.#ends.push(end);
        }
    }

    /** Return what the ranges have of the bytes from start to end: pairs of both. */
    within(start, end) {
        const found = [];
        for (let index = this.#after(start); index < this.#starts.length && this.#starts[index] < end; index++) {
            found.push([Math.max(start, this.#starts[index]), Math.min(end, this.#ends[index])]);
        }
        return found;
    }

    /** Tell whether all bytes from start to end are in the ranges. */
    has(start, end) {
        const found = this.within(start, end);
        return found.length === 1 && found[0][0] === start && found[0][1] === end;
    }

    /** Return the number of the first range that ends after a place. */
    #after(place) {
        let [low, high] = [0, this.#ends.length];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.#ends[middle] > place) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return low;
    }
}

/** Return blocks that follow each other as pairs of the first one and their number, at most `most` of them. */
export function consecutive(blocks, most) {
    const found = [];
    for (const index of blocks.toSorted((a, b) => a - b)) {
        const last = found.at(-1);
        if (last && last[0] + last[1] === index && last[1] < most) {
            last[1]++;
        } else {
            found.push([index, 1]);
        }
    }
    return found;
}

/** Return a number of bytes as a number of blocks. */
export function inBlocks(bytes) {
    return Math.floor(bytes / BLOCK);
}
