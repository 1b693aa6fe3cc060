// SPDX-License-Identifier: Apache-2.0
// The worker: it reads, hashes and moves, so that the page stays free for the person who looks at it.

import { Check } from "./check.js";
import { Download } from "./download.js";
import { Image } from "./image.js";
import { Upload } from "./upload.js";

/** Milliseconds between two reports. */
const REPORT_INTERVAL = 250;
/** Milliseconds for what is done after a pause. */
const REST = 10_000;

const PAUSED = new Error("paused");
const CANCELED = new Error("canceled");

const JOBS = {
    upload: ({ ticket, file, size, continues }) => new Upload(new Image(ticket), file, size, continues),
    download: ({ ticket, handle, size }) => new Download(new Image(ticket), handle, size),
    check: ({ ticket, file, size }) => new Check(new Image(ticket), file, size),
};

let job = null;
let running = Promise.resolve();
let controller = null;
let waiting = null;
let reporting = 0;

/** Post how far the job is. */
function report(state, error = null) {
    const { progress, phase, compared, sent, ahead } = job;
    const { bytes, size } = progress;
    postMessage({ state, phase, size, bytes, ahead, compared, sent, waiting, error, cells: progress.cells() });
}

/** Run the job when an earlier run, which was interrupted, has ended. */
function start() {
    running = running.then(run);
}

async function run() {
    controller = new AbortController();
    waiting = null;
    clearInterval(reporting);
    reporting = setInterval(report, REPORT_INTERVAL, "running");
    report("running");
    try {
        await job.run(controller, (seconds, error) => {
            waiting = error && { until: Date.now() + seconds * 1000, code: error.code, status: error.status ?? 0 };
        });
        finish("done");
    } catch (error) {
        await interrupted(controller.signal.aborted ? controller.signal.reason : error);
    }
}

async function interrupted(error) {
    if (error === CANCELED) {
        return; // drop() comes next
    }
    if (error === PAUSED) {
        finish("paused");
        const resting = new AbortController();
        controller = resting;
        const timer = setTimeout(() => resting.abort(PAUSED), REST);
        await job.rest?.(resting).catch(() => {});
        clearTimeout(timer);
    } else {
        finish("failed", { code: error.code ?? "", status: error.status ?? 0, name: error.name, text: error.message });
    }
}

/** End the job for good, whether it ran, rested or had failed. */
async function drop() {
    await job.cancel?.().catch(() => {});
    finish("canceled");
}

function finish(state, error = null) {
    clearInterval(reporting);
    waiting = null;
    job.progress.release(); // nothing is under way any more
    job.ahead = 0;
    report(state, error);
}

const COMMANDS = {
    begin: (message) => {
        job = JOBS[message.job](message);
        start();
    },
    pause: () => controller.abort(PAUSED),
    continue: () => {
        controller.abort(PAUSED);
        start();
    },
    cancel: () => {
        controller.abort(CANCELED);
        running = running.then(drop);
    },
    hurry: () => job?.patience?.hurry(),
};

onmessage = ({ data }) => COMMANDS[data.command](data);
addEventListener("online", COMMANDS.hurry);
