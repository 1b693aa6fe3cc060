// SPDX-License-Identifier: Apache-2.0
// What went wrong, and what to do about it, in sentences. Texts of the server are for programs and logs.

/** By the code of an error: those of docs/images-api.md, and those of this page. `title`, and `text` of what to do. */
const SENTENCES = {
    not_allowed: {
        title: "The link does not work any more",
        text: "It has expired, was removed, or was used to the end. Ask the person who sent it for more time or for a new link.",
    },
    storage_full: {
        title: "The storage is full",
        text: "The server has no room left for this disk. Tell the person who sent the link; nothing can be mended from here. Afterwards start anew with a new link.",
    },
    storage_permission: {
        title: "The server may not use the disk",
        text: "The service has no permission for it. Tell the person who sent the link.",
    },
    storage_gone: {
        title: "The disk is not there",
        text: "The file or volume behind the link is missing on the server. Tell the person who sent the link.",
    },
    storage_io: {
        title: "The storage of the server fails",
        text: "The disk could not be read or written. Tell the person who sent the link; the log of the service has the reason.",
    },
    image_in_use: {
        title: "The disk is in use",
        text: "Another program on the server uses it, such as a running virtual machine. When that has ended, try again.",
    },
    image_unusable: {
        title: "The server cannot use the disk",
        text: "It is damaged, or not what the link says. Tell the person who sent the link; the log of the service has the reason.",
    },
    out_of_range: {
        title: "The disk is too small",
        text: "The server has less room for this disk than is needed. Ask for a link to a disk of the right size.",
    },
    too_many_transfers: {
        title: "The server is busy",
        text: "As many transfers run as it allows. This one begins when another has ended.",
    },
    lost: {
        title: "The server does not answer",
        text: "Check your network connection. If it is fine, reload the page: if the browser then warns of the certificate, tell the person who sent the link.",
    },
    unreadable: {
        title: "The file cannot be read any more",
        text: "It was changed, moved or deleted since it was chosen, or its drive is gone. Close programs that use it, and choose it again.",
    },
    mismatch: {
        title: "The disk on the server is not the file",
        text: "It was changed meanwhile, for instance by somebody with the same link, or its storage is faulty. Ask for a new link, and start anew.",
    },
    changing: {
        title: "The disk changes while it is read",
        text: "A program on the server writes to it, so no copy is of one moment. Stop that program, or ask for a link to a snapshot.",
    },
    different: {
        title: "The file is not the disk",
        text: "The file differs from the disk on the server. Download it again.",
    },
    room: {
        title: "This computer has no room for the file",
        text: "Free some space, or choose another place, and save the disk again.",
    },
};

const UNKNOWN = {
    title: "Something went wrong",
    text: "Try again. If it stays so, tell the person who sent the link what happened, and when: the log of the service has more.",
};

/** Names of errors of the browser's file functions (the File System standard), as codes. */
const BROWSER = { QuotaExceededError: "room", NotReadableError: "unreadable", NotFoundError: "unreadable" };

/** Return the `title` and `text` of an error, with the code of the server in brackets if the page has no words for it. */
export function sentence({ code, name, status }) {
    const known = SENTENCES[code] ?? SENTENCES[BROWSER[name]];
    if (known) {
        return known;
    }
    return status ? { ...UNKNOWN, text: `${UNKNOWN.text} (${status} ${code})` } : UNKNOWN;
}

/** Return what a person reads while the page waits for another try. */
export function waitingFor({ code, status }) {
    if (code === "too_many_transfers") {
        return "The server is busy with other transfers.";
    }
    if (code === "lost" || status === 502) {
        return "The connection is lost.";
    }
    return status === 503 ? "The server is busy or starts anew." : "The server could not do it.";
}
