// SPDX-License-Identifier: Apache-2.0
// The page: what the link is for.

import { Downloading } from "./downloading.js";
import { Image } from "./image.js";
import { Patience } from "./patience.js";
import { dropTicket, holdTicket, takeTicket } from "./ticket.js";
import { Transfer } from "./transfer.js";
import { Uploading } from "./uploading.js";
import { View } from "./view.js";

/** Seconds of one wait after which a person is told that the server does not answer. */
const PATIENT = 2;

const view = new View(location.hostname);
const transfer = new Transfer();

async function open() {
    const ticket = takeTicket();
    if (ticket === null) {
        view.show({
            title: "This page needs a link",
            lead: "Open it by the whole link that you were sent: it ends in # and a long word, which says which disk it is for. If you have come by that link, it was cut short: ask for it again.",
        });
        return;
    }
    if (!(await holdTicket(ticket))) {
        view.show({
            title: "The link is open in another tab",
            lead: "Two tabs would write to the same disk. Go on in the other one, or close it and try again.",
            actions: [{ label: "Try again", primary: true, run: () => location.reload() }],
        });
        return;
    }
    try {
        const disk = await described(ticket);
        serve(ticket, disk);
    } catch (error) {
        if (error.code === "not_allowed") {
            dropTicket();
        }
        view.fail(error, { actions: [{ label: "Try again", primary: true, run: () => location.reload() }] });
    }
}

/** Return what Image.describe() tells, when the server answers. */
function described(ticket) {
    const controller = new AbortController();
    const patience = new Patience(controller.signal, (seconds, error) => {
        if (seconds > PATIENT) {
            view.fail(error, {
                actions: [{ label: "Try now", primary: true, run: () => patience.hurry() }],
                small: "The page tries again by itself.",
            });
        }
    });
    addEventListener("online", () => patience.hurry());
    return patience.persist(() => new Image(ticket).describe(controller.signal));
}

function serve(ticket, disk) {
    if (disk.finalized) {
        dropTicket();
        view.show({
            title: "The disk is safe",
            tone: "good",
            lead: "Its upload has ended: the server has it on stable storage and has compared every byte. This link can do nothing more.",
        });
    } else if (!disk.writable) {
        new Downloading(view, transfer, ticket, disk).offer();
    } else if (!disk.finalize) {
        view.show({
            title: "This disk cannot be uploaded here",
            lead: "Its storage cannot confirm that data is safe. Ask the person who sent the link for another way.",
            tone: "bad",
        });
    } else {
        new Uploading(view, transfer, ticket, disk).choose();
    }
}

// A second link in the same tab changes only the fragment.
addEventListener("hashchange", () => location.reload());
open();
