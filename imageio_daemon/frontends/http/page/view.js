// SPDX-License-Identifier: Apache-2.0
// The document: it shows one state of the page. Text is set as text, never as markup: names of files are hostile.

import { bytes, duration, percent, Rate } from "./amounts.js";
import { DiskMap } from "./map.js";
import { BUSY, DATA, TODO, ZERO } from "./progress.js";
import { sentence, waitingFor } from "./sentences.js";

const PARTS = ["choose", "facts", "moving"];
/** Percent between two announcements to screen readers. */
const ANNOUNCED = 10;

function part(id) {
    return document.getElementById(id);
}

/** Shows states, and how a transfer goes on. */
export class View {
    #map = new DiskMap(part("map"));
    #rate = new Rate();
    #phase = "";
    #announced = 0;
    #waits = false;

    /** host: the name of the server, as in the link. */
    constructor(host) {
        part("host").textContent = host;
        part("copy").addEventListener("click", () => this.#copy());
    }

    /**
     * Show a state.
     *
     * title, lead: what it is, and what to do. parts: of PARTS. facts: pairs of a name and a value. notice: a sentence that
     * must not be missed; refused: it is why a file is not taken; command: a line to copy that helps. tone: "", "good" or
     * "bad". actions: label, run or href, and primary. small: what else there is to know. The title gets the focus, so that
     * a screen reader says it and the keyboard goes on from there; what was said before is no longer so.
     */
    show({
        title,
        lead = "",
        parts = [],
        facts = [],
        notice = "",
        refused = false,
        command = "",
        tone = "",
        actions = [],
        small = "",
    }) {
        document.title = title;
        document.body.className = tone;
        part("title").textContent = title;
        part("lead").textContent = lead;
        part("lead").hidden = !lead;
        part("small").textContent = small;
        part("notice").textContent = notice;
        part("notice").hidden = !notice;
        part("notice").className = refused ? "notice bad" : "notice";
        part("command").hidden = !command;
        part("line").textContent = command;
        part("copy").textContent = "Copy the command";
        this.#wait(null);
        this.say("");
        for (const id of PARTS) {
            part(id).hidden = !parts.includes(id);
        }
        part("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
        part("actions").replaceChildren(...actions.map(action));
        part("title").focus({ preventScroll: true });
    }

    /** Show that something failed. more: what show() takes besides. */
    fail(error, more = {}) {
        const { title, text } = sentence(error);
        this.show({ title, lead: text, tone: "bad", ...more });
    }

    /** Show how far a transfer is: a report of the worker. words: of the legend, by state. */
    progress(report, words) {
        const { size, bytes: counts, ahead, phase, compared, waiting, cells, state } = report;
        const comparing = phase === "comparing" && state !== "done";
        const done = comparing ? compared : counts[DATA] + counts[ZERO] + ahead;
        if (phase !== this.#phase || state !== "running") {
            this.#phase = phase;
            this.#rate = new Rate();
            this.#announced = 0;
        }
        this.#rate.add(done);
        const share = percent(done, size);
        part("percent").textContent = `${share} %`;
        part("rate").textContent = state === "running" ? this.#pace(done, size) : `${bytes(done)} of ${bytes(size)}`;
        part("bar").value = size ? (done / size) * 1000 : 1000;
        const there = [DATA, ZERO, BUSY, TODO].filter((each) => counts[each]);
        const legend = there.map((each) => [each, `${words[each]}: ${bytes(counts[each])}`]);
        part("legend").replaceChildren(
            ...legend.map(([each, text]) => Object.assign(element("li", text), { className: `state-${each}` })),
        );
        this.#map.show(cells, `Map of the disk. ${legend.map(([, text]) => text).join(". ")}.`);
        this.#wait(waiting);
        if (state === "running") {
            document.title = `${share} % – ${part("title").textContent}`;
            this.#announce(share, comparing ? "compared" : "done");
        }
    }

    #pace(done, size) {
        const rate = this.#rate.value;
        const amount = `${bytes(done)} of ${bytes(size)}`;
        if (!rate || done >= size) {
            return amount;
        }
        return `${amount} · ${bytes(rate)}/s · ${duration((size - done) / rate)} left`;
    }

    /** Tell what is waited for, and when the next try is; null: nothing is. */
    #wait(waiting) {
        part("waiting").hidden = !waiting;
        if (waiting) {
            const seconds = Math.max(0, (waiting.until - Date.now()) / 1000);
            const next = seconds < 1 ? "Trying again now." : `Trying again in ${duration(seconds)}.`;
            part("waiting").textContent = `${waitingFor(waiting)} ${next} Nothing that was sent is lost.`;
            this.say(waitingFor(waiting));
        } else if (this.#waits) {
            part("waiting").textContent = "";
            this.say("It goes on.");
        }
        this.#waits = Boolean(waiting);
    }

    async #copy() {
        try {
            await navigator.clipboard.writeText(part("line").textContent);
            this.say("Copied");
            part("copy").textContent = "Copied";
        } catch {
            // The browser forbids it: then the line is selected, for the keys of the person.
            getSelection().selectAllChildren(part("line"));
        }
    }

    #announce(share, word) {
        const step = Math.floor(share / ANNOUNCED);
        if (step !== this.#announced) {
            this.#announced = step;
            this.say(`${share} percent ${word}`);
        }
    }

    /** Let a screen reader say something, once. */
    say(text) {
        if (part("said").textContent !== text) {
            part("said").textContent = text;
        }
    }
}

function element(name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
}

function action({ label, primary = false, run, href, download }) {
    const made = element(href ? "a" : "button", label);
    made.className = `${href ? "button" : ""} ${primary ? "primary" : ""}`.trim();
    if (href) {
        made.href = href;
        made.download = download;
        made.rel = "noreferrer";
    } else {
        made.type = "button";
    }
    if (run) {
        made.addEventListener("click", run);
    }
    return made;
}
