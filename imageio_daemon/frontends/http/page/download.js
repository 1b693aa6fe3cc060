// SPDX-License-Identifier: Apache-2.0
// A download into a file of this computer.

import { place, runs } from "./blocks.js";
import { digest } from "./digests.js";
import { Job } from "./job.js";
import { eachBlock, Ranges } from "./lanes.js";
import { DATA, TODO, ZERO } from "./progress.js";

/** How often blocks are read again that differ from the server's checksum: it is another program that changes them. */
const ROUNDS = 3;

/** The disk on the server changes while it is read. */
export class Changing extends Error {
    code = "changing";
}

/**
 * A download, which may be interrupted and run again.
 *
 * The browser writes beside the file that was chosen, and replaces it at the end: what is there is complete and compared.
 */
export class Download extends Job {
    #data = null;
    #file = null;
    /** Nothing was written yet, so zeros need not be: no block can have other bytes from an earlier try. */
    #isNew = true;

    constructor(image, handle, size) {
        super(image, size);
        this.handle = handle;
    }

    /** Download to the end. Raises Changing, Refused, errors of the file, and the reason of the controller's signal. */
    async run(controller, tell) {
        const { progress } = this;
        const patience = this.begin(controller, tell);
        this.#file ??= await this.#open();
        this.#data ??= await this.#extents(patience);
        for (let round = 0; round < ROUNDS; round++) {
            this.phase = "moving";
            try {
                await eachBlock(progress, controller, (index) => this.#move(index, patience));
            } finally {
                this.#isNew = false;
            }
            const blocks = await this.differing(patience);
            if (!blocks.length) {
                await this.#file.close();
                return;
            }
            // They have changed, so what was known of their zeros is of the past, too.
            this.#data = new Ranges([{ start: 0, length: progress.size }], () => true);
            blocks.forEach((index) => progress.set(index, TODO));
        }
        throw new Changing("the disk changes");
    }

    /** Leave no part of a file behind. */
    async cancel() {
        await this.#file?.abort();
    }

    async #open() {
        const file = await this.handle.createWritable();
        // What is not written reads as zeros, and takes no room where the file system has holes.
        await file.truncate(this.progress.size);
        return file;
    }

    async #extents(patience) {
        const extents = await patience.persist(() => this.image.extents("zero", patience.signal));
        return new Ranges(extents, (extent) => !extent.zero);
    }

    async #move(index, patience) {
        const { offset, length } = place(index, this.progress.size);
        const parts = this.#data.within(offset, offset + length);
        if (!parts.length) {
            await this.digests.setZero(index);
            this.progress.set(index, ZERO);
            return;
        }
        const content = new Uint8Array(length);
        for (const [start, end] of parts) {
            const read = () => this.image.read(start, end - start, patience.signal);
            content.set(await patience.persist(read), start - offset);
            this.sent += end - start;
        }
        const hashing = digest(content);
        for (const run of runs(content)) {
            if (!run.zero || !this.#isNew) {
                const data = content.subarray(run.start, run.end);
                await this.#file.write({ type: "write", position: offset + run.start, data });
            }
        }
        this.digests.set(index, await hashing);
        this.progress.set(index, DATA);
    }
}
