// SPDX-License-Identifier: Apache-2.0
// What a person does to download a disk: choose a place, start, pause, and see that the file is the disk.

import { bytes } from "./amounts.js";
import { Image } from "./image.js";

const WORDS = ["To do", "Under way", "Data", "Zeros, not fetched"];

/** The download of one disk. */
export class Downloading {
    #phase = "";
    #facts = [];

    /** disk: what Image.describe() tells. */
    constructor(view, transfer, ticket, disk) {
        this.view = view;
        this.transfer = transfer;
        this.ticket = ticket;
        this.disk = disk;
        this.name = disk.filename ?? "disk.raw";
        this.#facts = [
            ["File", this.name],
            ["Size", `${bytes(disk.size)} (${disk.size.toLocaleString("en")} bytes)`],
        ];
    }

    /** Offer the download, by what the browser can do. */
    offer() {
        if (this.disk.size === 0) {
            this.view.show({ title: "The disk is empty", lead: "It has 0 bytes, so there is nothing to download." });
            return;
        }
        const check = { label: "Compare a saved file", run: () => this.#choose() };
        if (window.showSaveFilePicker) {
            this.view.show({
                title: "Download a disk",
                lead: "Zeros are not fetched, and at the end the file is compared with the disk on the server.",
                parts: ["facts"],
                facts: this.#facts,
                actions: [{ label: "Save the disk", primary: true, run: () => this.#save() }, check],
            });
            return;
        }
        const { address } = new Image(this.ticket);
        this.view.show({
            title: "Download a disk",
            lead: "This browser saves the disk by itself, zeros included, and goes on after an interruption. Then compare the file: only that tells whether it is complete.",
            parts: ["facts"],
            facts: this.#facts,
            actions: [{ label: "Download", primary: true, href: address, download: this.name }, check],
            small: "The link stays in the browser's list of downloads. On a computer of others remove it there.",
        });
    }

    async #save() {
        let handle;
        try {
            handle = await window.showSaveFilePicker({ suggestedName: this.name });
        } catch {
            return; // The person has closed the dialog.
        }
        this.#begin("download", { handle });
    }

    /** Ask for a file that was saved before. */
    #choose() {
        const input = document.getElementById("file");
        input.value = "";
        input.onchange = () => {
            if (input.files.length) {
                this.#begin("check", { file: input.files[0] });
            }
        };
        this.view.show({
            title: "Compare a saved file",
            lead: "The file stays on this computer: only its checksums are compared with those of the server.",
            parts: ["choose"],
            actions: [{ label: "Back", run: () => this.offer() }],
        });
    }

    #begin(job, options) {
        this.transfer.begin(job, { ticket: this.ticket, size: this.disk.size, ...options }, (report) =>
            this.#report(report, job === "check"),
        );
    }

    #report(report, check) {
        if (report.state === "running" && report.phase !== this.#phase) {
            this.#phase = report.phase;
            this.#running(check);
        } else if (report.state !== "running") {
            this.#phase = "";
            this.#ended(report, check);
        }
        this.view.progress(report, check ? ["To do", "Under way", "Read", "Zeros"] : WORDS);
    }

    #running(check) {
        const title = this.#phase === "comparing" ? "Comparing" : check ? "Reading the file" : "Downloading";
        this.view.show({
            title,
            lead: check ? "" : "Leave this page open until the file is complete.",
            parts: ["facts", "moving"],
            facts: this.#facts,
            actions: [
                { label: "Pause", primary: true, run: () => this.transfer.pause() },
                { label: "Cancel", run: () => this.transfer.cancel() },
            ],
        });
    }

    #ended({ state, error }, check) {
        const more = { parts: ["facts", "moving"], facts: this.#facts };
        const goOn = { label: "Continue", primary: true, run: () => this.transfer.continue() };
        const back = { label: "Back", run: () => this.offer() };
        const cancel = { label: "Cancel", run: () => this.transfer.cancel() };
        if (state === "done") {
            this.view.show({
                ...more,
                title: check ? "The file is the disk" : "The file is complete",
                tone: "good",
                lead: `All ${bytes(this.disk.size)} were compared with the disk on the server by checksum, and are equal.`,
                actions: [back],
            });
        } else if (state === "paused") {
            this.view.show({ ...more, title: "Paused", lead: "Continue before the link expires.", actions: [goOn, cancel] });
        } else if (state === "canceled") {
            this.offer();
        } else if (check) {
            this.view.fail(error, { ...more, actions: [back] });
        } else {
            this.view.fail(error, { ...more, actions: [{ ...goOn, label: "Try again" }, cancel] });
        }
    }
}
