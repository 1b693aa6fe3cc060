// SPDX-License-Identifier: Apache-2.0
// How far the blocks of a disk are, for the map and the numbers.

import { blockCount, place } from "./blocks.js";

/** The states of a block. */
export const TODO = 0;
export const BUSY = 1;
export const DATA = 2;
export const ZERO = 3;
/** Most cells of the map. */
export const CELLS = 480;

/** The state of each block, and the bytes in each state. */
export class Progress {
    #states;
    #next = 0;

    constructor(size) {
        this.size = size;
        this.bytes = [size, 0, 0, 0];
        this.#states = new Uint8Array(blockCount(size));
    }

    /** Return the bytes that need nothing more. */
    get done() {
        return this.bytes[DATA] + this.bytes[ZERO];
    }

    /** Set the state of a block. */
    set(index, state) {
        const { length } = place(index, this.size);
        this.bytes[this.#states[index]] -= length;
        this.bytes[state] += length;
        this.#states[index] = state;
        if (state === TODO) {
            this.#next = Math.min(this.#next, index);
        }
    }

    /** Return the first block that is to be done, which is under way from now on; null: there is none. */
    take() {
        while (this.#next < this.#states.length && this.#states[this.#next] !== TODO) {
            this.#next++;
        }
        if (this.#next === this.#states.length) {
            return null;
        }
        const index = this.#next++;
        this.set(index, BUSY);
        return index;
    }

    /** Let what was under way be done anew. */
    release() {
        for (let index = 0; index < this.#states.length; index++) {
            if (this.#states[index] === BUSY) {
                this.set(index, TODO);
            }
        }
    }

    /** Return the state of each cell of the map. A cell is done when all of its blocks are. */
    cells() {
        const blocks = this.#states.length;
        const cells = new Uint8Array(Math.min(CELLS, blocks));
        for (let cell = 0; cell < cells.length; cell++) {
            const first = Math.floor((cell * blocks) / cells.length);
            const end = Math.floor(((cell + 1) * blocks) / cells.length);
            cells[cell] = together(this.#states.subarray(first, end));
        }
        return cells;
    }
}

function together(states) {
    if (states.includes(BUSY)) {
        return BUSY;
    }
    if (states.includes(TODO)) {
        return TODO;
    }
    return states.includes(DATA) ? DATA : ZERO;
}
