// SPDX-License-Identifier: Apache-2.0
// Amounts as people read them.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/** Return bytes as text: "1.5 GiB". */
export function bytes(count) {
    if (count < 1024) {
        return count === 1 ? "1 byte" : `${count} bytes`;
    }
    let value = count;
    let unit = "";
    for (const next of UNITS) {
        if (value < 1023.95) {
            break;
        }
        value /= 1024;
        unit = next;
    }
    // Whole numbers have no decimals: a disk of 2 GiB is no "2.0 GiB".
    return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${unit}`;
}

/** Return seconds as text: "3 min 20 s". */
export function duration(seconds) {
    const whole = Math.max(1, Math.round(seconds));
    if (whole < 60) {
        return `${whole} s`;
    }
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) {
        return minutes < 10 && whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
    }
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Return the part that is done as whole percent. 100 means all of it. */
export function percent(done, total) {
    return total ? Math.floor((done / total) * 100) : 100;
}

/** The rate of progress over the last WINDOW milliseconds, so that neither a pause nor a burst stays in it. */
export class Rate {
    static WINDOW = 10_000;
    #samples = [];

    /** Note how many bytes are done now. */
    add(done) {
        const now = performance.now();
        this.#samples.push([now, done]);
        while (this.#samples.length > 2 && this.#samples[0][0] < now - Rate.WINDOW) {
            this.#samples.shift();
        }
    }

    /** Return bytes per second; 0: not known yet. */
    get value() {
        const [first, last] = [this.#samples.at(0), this.#samples.at(-1)];
        if (!first || last[0] - first[0] < 1000) {
            return 0;
        }
        return Math.max(0, ((last[1] - first[1]) / (last[0] - first[0])) * 1000);
    }
}
