// SPDX-License-Identifier: Apache-2.0
// How much one request sends. A browser does not tell when bytes have left the computer, only when the system has taken
// them, which may be all of a request at once. So on a slow connection a request has to be short, or the wait for its
// answer cannot be told from a connection that is dead.

/** Bytes of a request: multiples of what disks write at once. */
const LEAST = 64 * 1024;
const FIRST = 256 * 1024;
const MOST = 4 * 1024 * 1024;
/** Milliseconds of a request after which the next ones are longer or shorter. */
const FAST = 1000;
const SLOW = 4000;

/** The bytes of the next request, which follow the time that requests take. */
export class Pace {
    bytes = FIRST;

    /** Do a request, and learn from its time. One that fails may have been too long. */
    async follow(action) {
        const began = performance.now();
        try {
            await action();
        } catch (error) {
            this.#take(this.bytes / 2);
            throw error;
        }
        const took = performance.now() - began;
        if (took < FAST) {
            this.#take(this.bytes * 2);
        } else if (took > SLOW) {
            this.#take(this.bytes / 2);
        }
    }

    #take(bytes) {
        this.bytes = Math.min(MOST, Math.max(LEAST, bytes));
    }
}
