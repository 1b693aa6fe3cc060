// SPDX-License-Identifier: Apache-2.0
// The page's side of the worker: its job, and what keeps the computer and the tab from ending it.

/** Hands a job to the worker. */
export class Transfer {
    #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    #awake = null;
    #busy = false;
    #tell = () => {};

    constructor() {
        this.#worker.onmessage = ({ data }) => this.#report(data);
        document.addEventListener("visibilitychange", () => this.#stayAwake());
        addEventListener("beforeunload", (event) => {
            if (this.#busy) {
                event.preventDefault();
            }
        });
    }

    /** Begin a job of the worker. tell: gets its reports. */
    begin(job, options, tell) {
        this.#tell = tell;
        this.#send("begin", { job, ...options });
    }

    /** Interrupt the job; it can be continued. */
    pause() {
        this.#send("pause");
    }

    /** Go on with a job that was paused or has failed. */
    continue() {
        this.#send("continue");
    }

    /** End the job for good. */
    cancel() {
        this.#send("cancel");
    }

    /** Try now what waits. */
    hurry() {
        this.#send("hurry");
    }

    #send(command, options = {}) {
        this.#worker.postMessage({ command, ...options });
    }

    #report(report) {
        const wasBusy = this.#busy;
        this.#busy = report.state === "running";
        if (this.#busy !== wasBusy) {
            this.#stayAwake();
        }
        this.#tell(report);
    }

    /** Keep the screen, and so the computer, awake while the job runs. Browsers may refuse, or not know it. */
    async #stayAwake() {
        if (!this.#busy) {
            await this.#awake?.release();
            this.#awake = null;
        } else if (document.visibilityState === "visible") {
            this.#awake = (await navigator.wakeLock?.request("screen").catch(() => null)) ?? null;
        }
    }
}
