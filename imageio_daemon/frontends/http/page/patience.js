// SPDX-License-Identifier: Apache-2.0
// What is tried again, and when.

import { Lost, Refused } from "./request.js";

/** Milliseconds before the first and between the last tries. */
const FIRST = 500;
const LONGEST = 15_000;
/** Tries of what the storage fails to do. It may be a moment's fault, and is the disk's if it stays. */
const STORAGE_TRIES = 4;
/** Codes of answers that another try does not change, although their status is 5xx. */
const FINAL = new Set(["storage_full", "storage_permission", "storage_gone", "cannot_flush"]);
/** Codes of answers below 500 that are for the moment. */
const PASSING = new Set(["in_use", "truncated_request"]);

/** Tries again what the network, a restart of the server or a moment's lack of room has interrupted. */
export class Patience {
    #waits = new Set();

    /** signal: ends all waits. tell: gets the seconds until the next try and the error, or 0 and null when it went well. */
    constructor(signal, tell) {
        this.signal = signal;
        this.#tell = tell;
    }
    #tell;

    /** Return what the action returns in the end. Raises what makes no sense to try again, and the signal's reason. */
    async persist(action) {
        for (let tries = 1; ; tries++) {
            try {
                const result = await action();
                this.#tell(0, null);
                return result;
            } catch (error) {
                if (this.signal.aborted || !isPassing(error, tries)) {
                    throw error;
                }
                const pause = Math.max(Math.min(LONGEST, FIRST * 2 ** (tries - 1)), (error.retryAfter ?? 0) * 1000);
                this.#tell(pause / 1000, error);
                await this.#wait(pause);
            }
        }
    }

    /** Let everything that waits try now: the network is there again, or somebody has asked for it. */
    hurry() {
        for (const end of this.#waits) {
            end();
        }
    }

    async #wait(milliseconds) {
        await new Promise((resolve) => {
            const end = () => {
                clearTimeout(timer);
                this.signal.removeEventListener("abort", end);
                this.#waits.delete(end);
                resolve();
            };
            const timer = setTimeout(end, milliseconds);
            this.signal.addEventListener("abort", end);
            this.#waits.add(end);
        });
        this.signal.throwIfAborted();
    }
}

function isPassing(error, tries) {
    if (error instanceof Lost) {
        return true;
    }
    if (!(error instanceof Refused) || FINAL.has(error.code)) {
        return false;
    }
    if (error.status === 500) {
        return tries < STORAGE_TRIES;
    }
    return error.status > 500 || PASSING.has(error.code);
}
