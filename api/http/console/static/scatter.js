// Points of what costs more against what errs less, as SVG.

import { el, svg } from "./dom.js";
import { short } from "./formats.js";
import { Scale } from "./scales.js";

const HEIGHT = 320;
const EDGE = { left: 62, right: 24, top: 14, bottom: 42 };

/** Return a figure of points {name, x, y, strong}; x is drawn as x + 1 on a logarithmic axis. Names are of the best. */
export function scatterChart({ title, points, budget, x, y }) {
  const width = Math.min(560, Math.max(320, document.getElementById("main").clientWidth - 48));
  const bottom = HEIGHT - EDGE.bottom;
  const best = front(points);
  const high = 1.3 * Math.max(...best.map((point) => point.y)); // what is worse with more memory needs no room
  const shown = points.filter((point) => point.y <= high);
  const across = new Scale(shown.map((point) => point.x + 1), [EDGE.left, width - EDGE.right], true);
  const up = new Scale(shown.map((point) => point.y), [bottom, EDGE.top]);
  const dots = shown.map((point) => svg("circle", { class: point.strong ? "point strong" : "point", cx: across.at(point.x + 1), cy: up.at(point.y), r: point.strong ? 6 : 4 }, svg("title", {}, `${point.name}: ${short(point.y)}`)));
  const steps = best.map((point, i) => `${across.at(point.x + 1)},${up.at(i ? best[i - 1].y : point.y)} ${across.at(point.x + 1)},${up.at(point.y)}`).join(" ");
  const line = svg("polyline", { class: "line s2", points: steps });
  const limit = Number.isFinite(budget) && budget !== null ? svg("line", { class: "level s3", x1: across.at(budget + 1), x2: across.at(budget + 1), y1: EDGE.top, y2: bottom }) : null;
  const label = `${title}. Best for their memory: ${best.map((point) => `${point.name} with ${point.x} vectors, ${short(point.y)}`).join("; ")}`;
  return el("figure", {}, el("figcaption", {}, title), svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label }, axes(across, up, width, x, y), line, limit, dots), el("p", { class: "hint" }, `Best for their memory: ${best.map((point) => `${point.name} (${point.x})`).join(", ")}.`));
}

function front(points) {
  const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const found = [];
  for (const point of sorted) if (!found.length || point.y < found.at(-1).y) found.push(point);
  return found;
}

function axes(across, up, width, x, y) {
  const bottom = HEIGHT - EDGE.bottom;
  const marks = [0, 1, 4, 16, 64, 256, 1024, 4096, 16384].filter((count) => across.at(count + 1) >= EDGE.left - 1 && across.at(count + 1) <= width - EDGE.right + 1);
  const middle = (EDGE.top + bottom) / 2;
  return svg(
    "g",
    {},
    marks.map((count) => svg("text", { x: across.at(count + 1), y: bottom + 16, "text-anchor": "middle" }, count)),
    up.ticks().map((value) => [svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: up.at(value), y2: up.at(value) }), svg("text", { x: EDGE.left - 6, y: up.at(value) + 4, "text-anchor": "end" }, short(value))]),
    svg("text", { x: (EDGE.left + width) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x),
    svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, y),
  );
}
