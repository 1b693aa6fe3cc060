// SPDX-License-Identifier: Apache-2.0
// The ticket of this tab. It comes in the fragment of the link, which is in no request, and stays in the session of the
// tab, so that a reload goes on. It is a secret: it leaves the address bar before anything else happens.

const TICKET = "imageio-ticket";
const FILE = "imageio-file";
/** Most bytes of an id (docs/images-api.md). */
const MAX_ID = 255;

/** Take the ticket out of the address, and return it; null: the link has none. */
export function takeTicket() {
    const fragment = location.hash.slice(1);
    if (fragment) {
        history.replaceState(null, "", location.pathname);
        const id = decoded(fragment);
        if (id !== sessionStorage.getItem(TICKET)) {
            sessionStorage.removeItem(FILE);
        }
        if (id === null) {
            sessionStorage.removeItem(TICKET);
        } else {
            sessionStorage.setItem(TICKET, id);
        }
    }
    return sessionStorage.getItem(TICKET);
}

/** Lets other tabs have the ticket. */
let release = () => {};

/** Forget the ticket and its file: nothing is left to do with them. */
export function dropTicket() {
    release();
    sessionStorage.removeItem(TICKET);
    sessionStorage.removeItem(FILE);
}

function decoded(fragment) {
    try {
        const id = decodeURIComponent(fragment);
        const length = new TextEncoder().encode(id).length;
        // In a path, these names mean another place.
        return length <= MAX_ID && id !== "." && id !== ".." ? id : null;
    } catch {
        return null;
    }
}

/** Note which file is uploaded, so that the same one continues after a reload. */
export function rememberFile(file) {
    sessionStorage.setItem(FILE, mark(file));
}

/** Tell whether this is the file whose upload this tab has begun. Another one begins anew. */
export function isRememberedFile(file) {
    return sessionStorage.getItem(FILE) === mark(file);
}

/** Tell whether this tab has begun an upload. */
export function hasBegun() {
    return sessionStorage.getItem(FILE) !== null;
}

function mark(file) {
    return JSON.stringify([file.name, file.size, file.lastModified]);
}

/**
 * Keep other tabs of this browser from using the ticket until this one drops it; return whether this tab has it.
 * Other browsers are not seen: what they write is found when the disk is compared.
 */
export function holdTicket(id) {
    return new Promise((resolve) => {
        navigator.locks.request(`imageio ${id}`, { ifAvailable: true }, (lock) => {
            resolve(lock !== null);
            return lock && new Promise((end) => (release = end));
        });
    });
}
