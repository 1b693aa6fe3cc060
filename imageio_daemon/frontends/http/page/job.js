// SPDX-License-Identifier: Apache-2.0
// What an upload, a download and a check have in common: a disk on the server, how far it is, and what each block was.

import { differing, Digests } from "./digests.js";
import { Patience } from "./patience.js";
import { Progress } from "./progress.js";

/** What the worker runs, and runs again after an interruption. */
export class Job {
    phase = "moving";
    /** Bytes of the disk that were compared. */
    compared = 0;
    /** Bytes that went over the network. */
    sent = 0;
    /** Bytes of blocks under way that the server has, so that a slow upload is seen to go on. */
    ahead = 0;
    /** Of the run that was begun last. */
    patience = null;

    constructor(image, size) {
        this.image = image;
        this.progress = new Progress(size);
        this.digests = new Digests(size);
    }

    /** Begin a run, with nothing under way, and return its patience. An earlier one keeps its own, which has ended. */
    begin(controller, tell) {
        this.patience = new Patience(controller.signal, tell);
        this.progress.release();
        this.ahead = 0;
        return this.patience;
    }

    /** Return the blocks in which the disk on the server differs from the digests. */
    differing(patience) {
        this.phase = "comparing";
        return differing(this.image, this.digests, patience, (done) => (this.compared = done));
    }
}
