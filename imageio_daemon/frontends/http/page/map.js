// SPDX-License-Identifier: Apache-2.0
// The map of a disk: a cell for each part, in rows, from its first byte to its last.

const GAP = 2;
/** Pixels of a cell, and rows of a map that is wide. */
const CELL = 11;
/** By state: the custom property of the style that has the colour. */
const COLOURS = ["--todo", "--busy", "--data", "--zero"];

/** Draws cells on a canvas, which is as wide as its place. */
export class DiskMap {
    #canvas;
    #cells = new Uint8Array(0);

    constructor(canvas) {
        this.#canvas = canvas;
        new ResizeObserver(() => this.#draw()).observe(canvas.parentElement);
        for (const query of ["(prefers-color-scheme: dark)", "print"]) {
            matchMedia(query).addEventListener("change", () => this.#draw());
        }
    }

    /** Show the states of the cells. text: says the same to those who do not see it. */
    show(cells, text) {
        this.#cells = cells;
        this.#canvas.setAttribute("aria-label", text);
        this.#draw();
    }

    #draw() {
        const width = this.#canvas.parentElement.clientWidth;
        const count = this.#cells.length;
        if (!width || !count) {
            return;
        }
        const columns = Math.max(1, Math.min(count, Math.floor((width + GAP) / (CELL + GAP))));
        // Cells take the whole width, also of a disk that has few.
        const side = (width + GAP) / columns - GAP;
        const height = Math.min(side, 2 * CELL);
        const rows = Math.ceil(count / columns);
        const scale = devicePixelRatio;
        this.#canvas.width = Math.round(width * scale);
        this.#canvas.height = Math.round((rows * (height + GAP) - GAP) * scale);
        const style = getComputedStyle(this.#canvas);
        const colours = COLOURS.map((name) => style.getPropertyValue(name));
        const context = this.#canvas.getContext("2d");
        context.scale(scale, scale);
        this.#cells.forEach((state, index) => {
            context.fillStyle = colours[state];
            const [column, row] = [index % columns, Math.floor(index / columns)];
            context.beginPath();
            context.roundRect(column * (side + GAP), row * (height + GAP), side, height, 2);
            context.fill();
        });
    }
}
