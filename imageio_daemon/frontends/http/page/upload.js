// SPDX-License-Identifier: Apache-2.0
// An upload: blocks of a file are read, hashed and sent; then the server compares all of them.

import { BLOCK, place, readBlock, runs } from "./blocks.js";
import { digest } from "./digests.js";
import { Job } from "./job.js";
import { consecutive, eachBlock, inBlocks, Ranges } from "./lanes.js";
import { Pace } from "./pace.js";
import { Patience } from "./patience.js";
import { DATA, TODO, ZERO } from "./progress.js";
import { Refused } from "./request.js";

/** Milliseconds between two flushes. What was sent since the last one has to be sent again after a reload. */
const FLUSH_INTERVAL = 5000;
/** Blocks of zeros that are gathered for one request, and most bytes of it: it is one step of the progress. */
const GATHERED = 64;
const MOST_ZEROS = 256 * 1024 ** 2;
/** Milliseconds between two looks at a comparison that runs. */
const LOOK_INTERVAL = 1000;
/** How often the server may find another disk than the file, before there is a fault that sending does not mend. */
const ROUNDS = 3;

/** The disk on the server is not what was sent, again and again. */
export class Mismatch extends Error {
    code = "mismatch";
}

/**
 * An upload, which may be interrupted and run again.
 *
 * size: of the disk, at least that of the file; what the file does not have is zeroed. continues: the server's record of
 * what is durable is of this file.
 */
export class Upload extends Job {
    #pace = new Pace();
    #zeros = [];
    #durable = null;
    #flushed = 0;
    #flushing = false;

    constructor(image, file, size, continues) {
        super(image, size);
        this.file = file;
        this.continues = continues;
    }

    /** Upload to the end. Raises Unreadable, Mismatch, Refused, and the reason of the controller's signal. */
    async run(controller, tell) {
        const patience = this.begin(controller, tell);
        this.#zeros = [];
        this.#flushing = false;
        this.#flushed = performance.now();
        this.#durable ??= await this.#record(patience);
        for (let round = 0; round < ROUNDS; round++) {
            this.phase = "moving";
            await eachBlock(this.progress, controller, (index) => this.#move(index, patience));
            await this.#sendZeros(patience);
            this.phase = "comparing";
            if (await this.#finalize(patience)) {
                return;
            }
            this.#durable = new Ranges([], () => false);
            const blocks = await this.differing(patience);
            blocks.forEach((index) => this.progress.set(index, TODO));
        }
        throw new Mismatch("the disk on the server differs");
    }

    /** Make durable what was sent before a pause, if that works. */
    async rest(controller) {
        const patience = new Patience(controller.signal, () => {});
        await patience.persist(() => this.image.flush(controller.signal));
    }

    /** Return what need not be sent again. */
    async #record(patience) {
        if (!this.continues) {
            return new Ranges([], () => false);
        }
        const extents = await patience.persist(() => this.image.extents("durable", patience.signal));
        return new Ranges(extents, (extent) => extent.durable);
    }

    async #move(index, patience) {
        const { offset, length } = place(index, this.progress.size);
        const isDurable = this.#durable.has(offset, offset + length);
        if (offset >= this.file.size) {
            await this.#moveZero(index, isDurable);
        } else {
            const content = await readBlock(this.file, offset, length);
            const parts = runs(content);
            if (parts.length === 1 && parts[0].zero) {
                await this.#moveZero(index, isDurable);
            } else {
                const hashing = digest(content);
                if (!isDurable) {
                    await this.#send(offset, content, parts, patience);
                }
                this.digests.set(index, await hashing);
                this.progress.set(index, DATA);
                this.ahead -= isDurable ? 0 : length;
            }
        }
        await this.#keepUp(patience);
    }

    async #moveZero(index, isDurable) {
        await this.digests.setZero(index);
        if (isDurable) {
            this.progress.set(index, ZERO);
        } else {
            this.#zeros.push(index);
        }
    }

    async #send(offset, content, parts, patience) {
        for (const { start, end, zero } of parts) {
            if (zero) {
                await patience.persist(() => this.image.zero(offset + start, end - start, patience.signal));
                this.ahead += end - start;
            } else {
                await this.#sendData(offset + start, content.subarray(start, end), patience);
            }
        }
    }

    async #sendData(offset, content, patience) {
        for (let at = 0; at < content.length; ) {
            const length = await patience.persist(async () => {
                const piece = content.subarray(at, at + this.#pace.bytes);
                await this.#pace.follow(() => this.image.write(offset + at, piece, patience.signal));
                return piece.length;
            });
            at += length;
            this.sent += length;
            this.ahead += length;
        }
    }

    /** Send gathered zeros, and flush if it is time. A lane does it, so that no further connection is needed. */
    async #keepUp(patience) {
        if (this.#zeros.length >= GATHERED) {
            await this.#sendZeros(patience);
        }
        if (!this.#flushing && performance.now() - this.#flushed > FLUSH_INTERVAL) {
            this.#flushing = true;
            await this.#sendZeros(patience);
            await patience.persist(() => this.image.flush(patience.signal));
            this.#flushing = false;
            this.#flushed = performance.now();
        }
    }

    async #sendZeros(patience) {
        const blocks = this.#zeros;
        this.#zeros = [];
        for (const [first, count] of consecutive(blocks, inBlocks(MOST_ZEROS))) {
            const offset = first * BLOCK;
            const length = Math.min(count * BLOCK, this.progress.size - offset);
            await patience.persist(() => this.image.zero(offset, length, patience.signal));
            for (let index = first; index < first + count; index++) {
                this.progress.set(index, ZERO);
            }
        }
    }

    /** Let the server flush and compare; tell whether the disk is what was read from the file. */
    async #finalize(patience) {
        this.compared = 0;
        const looking = setInterval(async () => {
            // How far it is matters less than that it goes on: a look that fails is no failure of the upload.
            const look = await this.image.finalizing(patience.signal).catch(() => ({ done: 0 }));
            this.compared = Math.max(this.compared, look.done);
        }, LOOK_INTERVAL);
        try {
            const checksum = await this.digests.checksum();
            for (;;) {
                const result = await patience.persist(() => this.image.finalize(BLOCK, checksum, patience.signal));
                if (result === "finalized" || result === "mismatch") {
                    return result === "finalized";
                }
                const { state, code } = await this.#compared(patience);
                if (result === "busy" && state === "finalized") {
                    throw new Mismatch("somebody else has ended the upload with another disk");
                }
                if (result === "verifying" && state === "mismatch") {
                    return false;
                }
                if (result === "verifying" && state === "failed") {
                    throw new Refused(500, code, "the comparison has failed", 0);
                }
            }
        } finally {
            clearInterval(looking);
        }
    }

    /** Wait while a comparison runs, and return how it has ended. Another finalize would begin it anew. */
    async #compared(patience) {
        for (;;) {
            await new Promise((resolve) => setTimeout(resolve, LOOK_INTERVAL));
            const ended = await patience.persist(() => this.image.finalizing(patience.signal));
            if (ended.state !== "verifying") {
                return ended;
            }
        }
    }
}
