// SPDX-License-Identifier: Apache-2.0
// The calls of the images API (docs/images-api.md) that the page needs.

import { request } from "./request.js";

/** Milliseconds that the server may take to read what it hashes: a GiB from a slow disk. */
const HASHING = 300_000;
/** The algorithm of checksums that browsers have, too (Web Cryptography API). */
const ALGORITHM = "sha256";

/** An image, as a ticket gives access to it. Each call raises Refused, Lost and the reason of the signal. */
export class Image {
    #path;

    constructor(ticket) {
        this.#path = `/images/${encodeURIComponent(ticket)}`;
    }

    /**
     * Return what can be done: `size`, the bytes that the image has now; `most`, those that it may have, Infinity: no
     * limit; the name `filename`, or null; `finalized`, whether an upload has ended well; `writable`, `durable` and
     * `finalize`, whether the ticket has these features; `safe`, the bytes that uploads with this ticket have left on
     * stable storage, as far as the server has recorded them.
     */
    async describe(signal) {
        const { response } = await this.#ask("OPTIONS", "", { signal });
        const head = await this.#ask("HEAD", "", { signal, type: "text" });
        const features = new Set(response.features);
        const durable = features.has("durable") && features.has("zero") ? await this.extents("durable", signal) : [];
        return {
            size: Number(head.getResponseHeader("Content-Length")),
            most: response.max_size ?? Infinity,
            filename: offeredName(head.getResponseHeader("Content-Disposition") ?? ""),
            finalized: response.finalized ?? false,
            writable: features.has("zero"),
            durable: features.has("durable"),
            finalize: features.has("finalize"),
            safe: durable.reduce((sum, extent) => sum + (extent.durable ? extent.length : 0), 0),
        };
    }

    /** Return the address of the image, for the browser's own download. It has the ticket. */
    get address() {
        return this.#path;
    }

    /** Write bytes at an offset. They are safe after a flush. */
    async write(offset, content, signal) {
        const headers = {
            "Content-Range": `bytes ${offset}-${offset + content.byteLength - 1}/*`,
            "Content-Type": "application/octet-stream",
        };
        await this.#ask("PUT", "?flush=n", { headers, body: content, type: "text", signal });
    }

    /** Make a range read as zeros. */
    async zero(offset, size, signal) {
        await this.#patch({ op: "zero", offset, size, flush: false }, { type: "text", stalled: HASHING, signal });
    }

    /** Put all that was written on stable storage. */
    async flush(signal) {
        await this.#patch({ op: "flush" }, { type: "text", stalled: HASHING, signal });
    }

    /** Return the bytes of a range; fewer, if the image has become shorter, which the comparison at the end finds. */
    async read(offset, size, signal) {
        const headers = { Range: `bytes=${offset}-${offset + size - 1}` };
        const { response } = await this.#ask("GET", "", { headers, type: "arraybuffer", signal });
        return new Uint8Array(response);
    }

    /** Return the extents of the image, which are in order: `start`, `length`, and `zero` or for "durable" `durable`. */
    async extents(context, signal) {
        const { response } = await this.#ask("GET", `/extents?context=${context}`, { stalled: HASHING, signal });
        return response;
    }

    /** Return the checksum of a part of the image, in hexadecimal. */
    async checksum(blockSize, offset, length, signal) {
        const query = `?algorithm=${ALGORITHM}&block_size=${blockSize}&offset=${offset}&length=${length}`;
        const { response } = await this.#ask("GET", `/checksum${query}`, { stalled: HASHING, signal });
        return response.checksum;
    }

    /**
     * Ask for the end: the server flushes and compares. Return "finalized", "mismatch", "verifying": ask again, or
     * "busy": another comparison runs, or has ended with another checksum.
     */
    async finalize(blockSize, checksum, signal) {
        const told = { algorithm: ALGORITHM, block_size: blockSize, checksum };
        const options = { accept: [409], stalled: HASHING, signal };
        const { status, response } = await this.#patch({ op: "finalize", checksum: told }, options);
        if (status === 409) {
            return response?.checksum ? "mismatch" : "busy";
        }
        return status === 202 ? "verifying" : "finalized";
    }

    /** Return the `state` of a finalize, the bytes that one that runs has compared: `done`, and why it failed: `code`. */
    async finalizing(signal) {
        const { response } = await this.#ask("GET", "/finalize", { signal });
        return { state: response.state, done: response.done ?? 0, code: response.code ?? "" };
    }

    #patch(document, options) {
        const headers = { "Content-Type": "application/json" };
        return this.#ask("PATCH", "", { headers, body: JSON.stringify(document), ...options });
    }

    #ask(method, below, options) {
        return request(method, this.#path + below, options);
    }
}

/** Return the name in a Content-Disposition as the server writes it (RFC 6266, RFC 8187), or null. */
function offeredName(disposition) {
    const extended = /; filename\*=UTF-8''([^;]+)/.exec(disposition);
    if (extended) {
        return decodeURIComponent(extended[1]);
    }
    const [, quoted, plain] = /; filename=(?:"([^"]*)"|([^;]+))/.exec(disposition) ?? [];
    return quoted ?? plain ?? null;
}
