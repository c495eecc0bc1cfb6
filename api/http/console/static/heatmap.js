// Heatmaps of C, C^-1 and B: the service reduces the matrix to cells, strip by strip; zooming asks for fewer rows.

import { ask } from "./api.js";
import { Colours } from "./colours.js";
import { button, el } from "./dom.js";
import { short } from "./formats.js";

const CELLS = 256;
const STRIPS = 4;
const LEAST = 16; // rows and columns of the closest view
const NAMES = [["C", "C"], ["C_inv", "C^-1"], ["B", "B"]];

/** Show the card of heatmaps. */
export function heatmapCard(manifest, signal) {
  const map = new Heatmap(manifest, signal);
  const choose = NAMES.map(([name, text]) => button(text, () => map.choose(name), { "aria-pressed": String(name === "C"), value: name }));
  map.chosen = (name) => choose.forEach((node) => node.setAttribute("aria-pressed", String(node.value === name)));
  const moves = [
    ["Zoom in", () => map.zoom(0.5)], ["Zoom out", () => map.zoom(2)], ["Whole", () => map.whole()],
    ["←", () => map.move(-1, 0), "Left"], ["→", () => map.move(1, 0), "Right"], ["↑", () => map.move(0, -1), "Up"], ["↓", () => map.move(0, 1), "Down"],
  ].map(([text, action, label]) => button(text, action, { "aria-label": label ?? text }));
  map.show();
  return el(
    "section",
    { class: "card heatmap", "aria-labelledby": "heatmap" },
    el("h2", { id: "heatmap" }, "Matrices"),
    el("p", { class: "actions" }, choose),
    map.canvas,
    map.readout,
    map.scale,
    map.ends,
    el("p", { class: "actions", role: "group", "aria-label": "View" }, moves),
    el("p", { class: "hint" }, "Each cell shows its entry of largest size. Click a place to zoom in there; with the picture focused, arrow keys move, + and - zoom, 0 shows all."),
  );
}

class Heatmap {
  constructor(manifest, signal) {
    this.manifest = manifest;
    this.leaving = signal;
    this.name = "C";
    this.asking = new AbortController();
    this.canvas = el("canvas", { width: CELLS, height: CELLS, role: "img", tabindex: "0", "aria-label": "Heatmap" });
    this.scale = el("canvas", { class: "scale", width: 128, height: 1, "aria-hidden": "true" });
    this.ends = el("p", { class: "ends" });
    this.readout = el("p", { class: "readout" });
    const { workload } = manifest.spec;
    this.endless = typeof workload.n !== "number" && !workload.shape;
    this.n = this.endless ? 1024 : workload.n ?? workload.shape[1];
    this.m = this.endless ? 1024 : workload.n ?? workload.shape[0];
    this.view = { top: 0, left: 0, height: this.m, width: this.n };
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    signal.addEventListener("abort", () => this.asking.abort());
  }

  get rows() {
    return this.name === "B" ? this.m : this.n;
  }

  choose(name) {
    this.name = name;
    this.chosen(name);
    return this.whole();
  }

  whole() {
    this.view = { top: 0, left: 0, height: this.rows, width: this.n };
    return this.show();
  }

  zoom(factor, x = 0.5, y = 0.5) {
    const { top, left, height, width } = this.view;
    const [tall, wide] = [[height, this.rows], [width, this.n]].map(([size, most]) => Math.max(Math.min(LEAST, most), Math.min(most, Math.round(size * factor))));
    this.view = { top: Math.round(top + y * (height - tall)), left: Math.round(left + x * (width - wide)), height: tall, width: wide };
    return this.move(0, 0);
  }

  move(right, down) {
    const { top, left, height, width } = this.view;
    const within = (place, size, most) => Math.max(0, Math.min(most - size, Math.round(place)));
    this.view.left = within(left + (right * width) / 2, width, this.n);
    this.view.top = within(top + (down * height) / 2, height, this.rows);
    return this.show();
  }

  key(event) {
    const action = { ArrowLeft: () => this.move(-1, 0), ArrowRight: () => this.move(1, 0), ArrowUp: () => this.move(0, -1), ArrowDown: () => this.move(0, 1), "+": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.whole() }[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  click(event) {
    this.zoom(0.5, ...this.place(event));
  }

  point(event) {
    if (!this.values) return;
    const [x, y] = this.place(event);
    const column = Math.min(this.wide - 1, Math.floor(x * this.wide));
    const row = Math.min(this.tall - 1, Math.floor(y * this.tall));
    const value = this.values[row * this.wide + column];
    const { top, left, height, width } = this.view;
    const where = `row ${1 + top + Math.floor((row * height) / this.tall)}, column ${1 + left + Math.floor((column * width) / this.wide)}`;
    this.readout.textContent = Number.isNaN(value) ? where : `${where}: ${short(value, 6)}`;
  }

  /** Ask for the strips of this view, one after the other, and draw each as it comes. */
  async show() {
    this.asking.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    const { height, width } = this.view;
    this.tall = Math.min(CELLS, height);
    this.wide = Math.min(CELLS, width);
    this.values = new Float32Array(this.tall * this.wide).fill(NaN);
    this.canvas.dataset.state = "loading";
    this.readout.textContent = "Loading.";
    try {
      let whole = true;
      const strips = this.tall >= STRIPS && height > CELLS ? STRIPS : 1;
      for (let i = 0; i < strips; i += 1) whole = (await this.strip(i, strips, signal)) && whole;
      this.finish(whole);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.canvas.dataset.state = "failed";
      this.readout.textContent = error.message;
    }
  }

  async strip(number, strips, signal) {
    const { top, left, height, width } = this.view;
    const [from, to] = [number, number + 1].map((i) => Math.round((i * this.tall) / strips));
    const [first, end] = [from, to].map((cell) => top + Math.floor((cell * height) / this.tall));
    const query = `rows=${first}:${end}&columns=${left}:${left + width}&cells=${to - from}:${this.wide}`;
    const answer = await ask(`/v1/factorizations/${this.manifest.digest}/matrices/${this.name}/cells?${query}`, { signal });
    this.values.set(new Float32Array(await answer.arrayBuffer()), from * this.wide);
    this.draw();
    return answer.headers.get("x-factorize-exact") === "true";
  }

  draw() {
    const colours = new Colours(this.values);
    paint(this.canvas, this.wide, this.tall, this.values, colours);
    const along = colours.along(64);
    paint(this.scale, along.length, 1, along, colours);
    const [low, high] = [along[0], along.at(-1)];
    this.ends.replaceChildren(...[short(low), colours.signed ? "0" : null, short(high)].filter(Boolean).map((text) => el("span", {}, text)));
  }

  finish(whole) {
    const { top, left, height, width } = this.view;
    const text = NAMES.find(([name]) => name === this.name)[1];
    const where = `${text}, rows ${top + 1} to ${top + height}, columns ${left + 1} to ${left + width}`;
    this.readout.textContent = whole ? where : `${where}; of each cell, some rows`;
    this.canvas.setAttribute("aria-label", `Heatmap of ${where}`);
    this.canvas.dataset.state = "done";
  }
}

function paint(canvas, width, height, values, colours) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const image = context.createImageData(width, height);
  values.forEach((value, i) => image.data.set(colours.of(value), 4 * i));
  context.putImageData(image, 0, 0);
}
