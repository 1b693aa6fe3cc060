// SPDX-License-Identifier: Apache-2.0
// One HTTP request, and how it fails. XMLHttpRequest tells the progress of a body that is sent, which fetch does not:
// so a slow connection is known from a dead one.

/** The server has refused. code: that of X-Error-Code, which docs/images-api.md lists. */
export class Refused extends Error {
    constructor(status, code, text, retryAfter) {
        super(text);
        this.status = status;
        this.code = code;
        this.retryAfter = retryAfter;
    }
}

/** No answer has come: there is no connection, or nothing has moved on it for some time. */
export class Lost extends Error {
    constructor() {
        super("no answer");
        this.code = "lost";
    }
}

/** Milliseconds after which a connection on which nothing moves is given up. */
const STALLED = 60_000;

/**
 * Send a request, and return the answer if it is a success.
 *
 * accept: statuses besides 200 to 299 that are no refusal. type: "json", "arraybuffer" or "text", of the answer's body.
 * stalled: milliseconds without progress. Raises Refused, Lost, and the reason of the signal.
 */
export function request(method, url, { headers = {}, body = null, type = "json", accept = [], stalled = STALLED, signal }) {
    return new Promise((resolve, reject) => {
        signal.throwIfAborted();
        const xhr = new XMLHttpRequest();
        let timer = setTimeout(stop, stalled);

        function stop() {
            xhr.abort();
        }
        function moved() {
            clearTimeout(timer);
            timer = setTimeout(stop, stalled);
        }
        function end() {
            clearTimeout(timer);
            signal.removeEventListener("abort", stop);
            if (signal.aborted) {
                reject(signal.reason);
            } else if (xhr.status === 0) {
                reject(new Lost());
            } else if ((xhr.status >= 200 && xhr.status < 300) || accept.includes(xhr.status)) {
                resolve(xhr);
            } else {
                reject(refusal(xhr));
            }
        }

        xhr.open(method, url);
        xhr.responseType = type;
        for (const [name, value] of Object.entries(headers)) {
            xhr.setRequestHeader(name, value);
        }
        xhr.upload.onprogress = moved;
        xhr.onprogress = moved;
        xhr.onloadend = end;
        signal.addEventListener("abort", stop);
        xhr.send(body);
    });
}

function refusal(xhr) {
    const seconds = Number(xhr.getResponseHeader("Retry-After"));
    return new Refused(xhr.status, xhr.getResponseHeader("X-Error-Code") ?? "", text(xhr), seconds || 0);
}

function text(xhr) {
    return xhr.responseType === "text" ? xhr.responseText.trim() : "";
}
