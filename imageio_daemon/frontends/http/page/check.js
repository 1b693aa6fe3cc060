// SPDX-License-Identifier: Apache-2.0
// The check of a file of this computer, which was saved in another way, against the disk on the server.

import { place, readBlock } from "./blocks.js";
import { digest } from "./digests.js";
import { Job } from "./job.js";
import { eachBlock } from "./lanes.js";
import { DATA } from "./progress.js";

/** A saved file is not the disk. */
export class Different extends Error {
    code = "different";
}

/** The check of a file of this computer against the disk on the server. */
export class Check extends Job {
    constructor(image, file, size) {
        super(image, size);
        this.file = file;
    }

    /** Compare to the end. Raises Different, Unreadable, Refused, and the reason of the controller's signal. */
    async run(controller, tell) {
        const { file, progress } = this;
        const patience = this.begin(controller, tell);
        if (file.size !== progress.size) {
            throw new Different("the sizes differ");
        }
        await eachBlock(progress, controller, async (index) => {
            const { offset, length } = place(index, progress.size);
            this.digests.set(index, await digest(await readBlock(file, offset, length)));
            progress.set(index, DATA);
        });
        if ((await this.differing(patience)).length) {
            throw new Different("blocks differ");
        }
    }
}
