// SPDX-License-Identifier: Apache-2.0
// What a person does to upload a disk: choose a file, start, pause, and see that the disk is safe.

import { bytes } from "./amounts.js";
import { formatOf } from "./formats.js";
import { dropTicket, hasBegun, isRememberedFile, rememberFile } from "./ticket.js";

const WORDS = ["To do", "Under way", "Data", "Zeros"];
const STAY = "Leave this page open until the disk is safe.";

/** The upload of one disk. */
export class Uploading {
    #file = null;
    #size = 0;

    /** disk: what Image.describe() tells. */
    constructor(view, transfer, ticket, disk) {
        this.view = view;
        this.transfer = transfer;
        this.ticket = ticket;
        this.disk = disk;
    }

    /** Ask for the file. notice: why, if it is not the first time; command: what makes one that is taken. */
    choose(notice = "", command = "") {
        this.#listen();
        this.view.show({
            title: this.#begun ? "Continue the upload" : "Upload a disk",
            lead: this.#begun
                ? `Choose the same file again. What is already safe on the server${this.#safe()} is not sent a second time.`
                : `This link takes one raw disk image${this.#limit()}. Zeros are not sent, and at the end the server compares every byte.`,
            notice,
            refused: true,
            command,
            parts: ["choose"],
        });
    }

    /** Whether the server knows what an upload, of this tab or of another one, has sent. */
    get #begun() {
        return this.disk.durable && (hasBegun() || this.disk.safe > 0);
    }

    #safe() {
        return this.disk.safe ? `, ${bytes(this.disk.safe)},` : "";
    }

    #limit() {
        return this.disk.most === Infinity ? "" : ` of up to ${bytes(this.disk.most)}`;
    }

    /** Let files be chosen and dropped. A file that is dropped beside the field would replace the page. */
    #listen() {
        const input = document.getElementById("file");
        const zone = document.getElementById("choose");
        const over = (event, is) => {
            event.preventDefault();
            zone.classList.toggle("over", is);
        };
        input.value = "";
        input.onchange = () => this.#chosen(input.files);
        document.ondragover = (event) => over(event, !zone.hidden);
        document.ondragleave = (event) => over(event, false);
        document.ondrop = (event) => {
            over(event, false);
            if (!zone.hidden) {
                this.#chosen(event.dataTransfer.files);
            }
        };
    }

    async #chosen(files) {
        const [file] = files;
        if (!file) {
            return;
        }
        let format;
        try {
            format = await formatOf(file);
        } catch {
            this.choose("The file cannot be read. Choose a file, not a folder, that you may open.");
            return;
        }
        const problem = this.#problem(file, format);
        if (problem) {
            this.choose(problem, file.size ? format.command : "");
        } else {
            this.#ready(file, format);
        }
    }

    /** Return why a file cannot be uploaded; "" if it can. */
    #problem(file, format) {
        if (file.size === 0) {
            return "The file is empty: it has 0 bytes. Choose the file that has the disk.";
        }
        if (format.advice) {
            return `The file is a ${format.name}, but this link expects the plain bytes of the disk (raw). ${format.advice}`;
        }
        if (file.size > this.disk.most) {
            return `The file has ${exactly(file.size)}, more than the ${exactly(this.disk.most)} that this link takes. Choose another file, or ask for a link to a larger disk.`;
        }
        return "";
    }

    #ready(file, format) {
        const size = Math.max(this.disk.size, file.size);
        const facts = [
            ["File", file.name],
            ["Size", exactly(file.size)],
            ["Content", format.name],
        ];
        if (size > file.size) {
            facts.push(["Disk", `${exactly(size)}: what the file does not have becomes zeros`]);
        }
        const offer = this.#offer(file);
        const labels = offer.labels.map(([label, again], index) => ({
            label,
            primary: index === 0,
            run: () => this.#start(file, size, again),
        }));
        this.view.show({
            title: offer.title,
            lead: `${STAY} You can pause${this.disk.durable ? ", and a reload of this tab continues" : ""}.`,
            notice: offer.notice ?? "",
            parts: ["facts"],
            facts,
            actions: [...labels, { label: "Choose another file", run: () => this.choose() }],
        });
    }

    /**
     * Return what can be done with a file: title, notice, and labels, each with whether what is safe on the server is kept.
     * Nobody loses what was sent without being asked. To continue with another file is safe, and slower: the comparison
     * at the end finds what differs.
     */
    #offer(file) {
        if (!this.#begun) {
            const notice = hasBegun() ? "This server keeps no record of what was sent before, so all is sent again." : "";
            return { title: "Ready to upload", notice, labels: [["Upload", false]] };
        }
        const [goOn, anew] = [["Continue", true], ["Send all anew", false]];
        if (isRememberedFile(file)) {
            return { title: "Ready to continue", labels: [goOn] };
        }
        if (hasBegun()) {
            const notice = "This is not the file that was begun. Send all of it anew, or choose the other one to continue.";
            return { title: "Another file", notice, labels: [anew] };
        }
        const notice = `An upload with this link has begun elsewhere, and ${bytes(this.disk.safe)} are safe on the server. If it was of this file, continue it. At the end every byte is compared, and what differs is sent.`;
        return { title: "Continue or start anew?", notice, labels: [goOn, anew] };
    }

    #start(file, size, again) {
        this.#file = file;
        this.#size = size;
        rememberFile(file);
        const options = { ticket: this.ticket, file, size, continues: again };
        this.#running("moving");
        this.transfer.begin("upload", options, (report) => this.#report(report));
    }

    #phase = "";

    #running(phase) {
        this.#phase = phase;
        const comparing = phase === "comparing";
        this.view.show({
            title: comparing ? "Comparing" : "Uploading",
            lead: comparing ? "All is sent. The server flushes it, reads the disk back and compares it with the file." : STAY,
            parts: ["facts", "moving"],
            facts: [["File", this.#file.name]],
            actions: [
                { label: "Pause", primary: true, run: () => this.transfer.pause() },
                { label: "Cancel", run: () => this.transfer.cancel() },
            ],
        });
    }

    #report(report) {
        if (report.state === "running" && report.phase !== this.#phase) {
            this.#running(report.phase);
        } else if (report.state !== "running") {
            this.#phase = "";
            this.#ended(report);
        }
        this.view.progress(report, WORDS);
    }

    #ended({ state, error, sent }) {
        const more = { parts: ["facts", "moving"], facts: [["File", this.#file.name]] };
        const goOn = { label: "Continue", primary: true, run: () => this.transfer.continue() };
        const cancel = { label: "Cancel", run: () => this.transfer.cancel() };
        if (state === "done") {
            dropTicket();
            this.view.show({
                ...more,
                title: "The disk is safe",
                tone: "good",
                lead: `All ${bytes(this.#size)} are on stable storage of the server, which has read them back and found them equal to your file. You can close this page.`,
                facts: [...more.facts, ["Sent", `${bytes(sent)}, the rest is zeros or was there`]],
            });
        } else if (state === "paused") {
            this.view.show({
                ...more,
                title: "Paused",
                lead: "Nothing is lost. Continue before the link expires.",
                actions: [goOn, cancel],
            });
        } else if (state === "canceled") {
            this.view.show({
                title: "Canceled",
                lead: "The disk on the server is incomplete, and must not be used. With the same link the upload can be done anew.",
                actions: [{ label: "Choose a file", primary: true, run: () => this.choose() }],
            });
        } else if (error.code === "unreadable") {
            this.view.fail(error, { ...more, actions: [{ label: "Choose the file again", primary: true, run: () => this.choose() }] });
        } else {
            this.view.fail(error, { ...more, actions: [{ ...goOn, label: "Try again" }, cancel] });
        }
    }
}

function exactly(count) {
    return count < 1024 ? bytes(count) : `${bytes(count)} (${count.toLocaleString("en")} bytes)`;
}
