// Charts as SVG, with their numbers as a table for who does not see them.

import { details, el, svg, table } from "./dom.js";
import { short } from "./formats.js";
import { Scale } from "./scales.js";

const WIDTH = 560;
const HEIGHT = 260;
const EDGE = { left: 62, right: 14, top: 12, bottom: 42 };
const MOST_POINTS = 600;
const MOST_ROWS = 12;

/** Return at most `most` points, the first and the last among them. */
export function thinned(points, most = MOST_POINTS) {
  if (points.length <= most) return points;
  return Array.from({ length: most }, (_, i) => points[Math.round((i * (points.length - 1)) / (most - 1))]);
}

/** Return a figure with lines {name, points} and level lines {name, value}. */
export function lineChart({ title, series, levels = [], x, y, logX = false, logY = false }) {
  const width = Math.min(WIDTH, Math.max(320, document.getElementById("main").clientWidth - 48));
  const drawn = series.map((line) => ({ ...line, points: thinned(line.points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!logX || a > 0) && (!logY || b > 0))) }));
  const across = new Scale(drawn.flatMap((line) => line.points.map(([a]) => a)), [EDGE.left, width - EDGE.right], logX);
  const up = new Scale([...drawn.flatMap((line) => line.points.map(([, b]) => b)), ...levels.map((level) => level.value)], [HEIGHT - EDGE.bottom, EDGE.top], logY);
  const lines = drawn.map((line, i) => curve(line, i, across, up));
  const flat = levels.map((level, i) => svg("line", { class: `level s${(series.length + i) % 6}`, x1: EDGE.left, x2: width - EDGE.right, y1: up.at(level.value), y2: up.at(level.value) }));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": described(title, drawn, levels) }, axes(across, up, width, x, y), flat, lines);
  const names = [...series.map((line) => line.name), ...levels.map((level) => `${level.name}: ${short(level.value, 6)}`)];
  return el("figure", {}, el("figcaption", {}, title), picture, legend(names), numbers(title, drawn, x, y));
}

function curve(line, number, across, up) {
  const places = line.points.map(([a, b]) => [across.at(a).toFixed(1), up.at(b).toFixed(1)]);
  if (places.length === 1) return svg("circle", { class: `dot s${number % 6}`, cx: places[0][0], cy: places[0][1], r: 3 });
  return svg("polyline", { class: `line s${number % 6}`, points: places.map((place) => place.join(",")).join(" ") });
}

function axes(across, up, width, x, y) {
  const bottom = HEIGHT - EDGE.bottom;
  const below = across.ticks(width < 420 ? 4 : 6).map((value) => [
    svg("line", { class: "grid", x1: across.at(value), x2: across.at(value), y1: EDGE.top, y2: bottom }),
    svg("text", { x: across.at(value), y: bottom + 16, "text-anchor": "middle" }, short(value)),
  ]);
  const beside = up.ticks().map((value) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: up.at(value), y2: up.at(value) }),
    svg("text", { x: EDGE.left - 6, y: up.at(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const middle = (EDGE.top + bottom) / 2;
  return svg("g", { class: "axes" }, below, beside, svg("text", { x: (EDGE.left + width) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x), svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, y));
}

function legend(names) {
  if (names.length < 2) return null;
  return el("ul", { class: "legend" }, names.map((name, i) => el("li", { class: `s${i % 6}` }, name)));
}

function described(title, series, levels) {
  const parts = series.filter((line) => line.points.length).map((line) => `${line.name}: from ${short(line.points[0][1])} to ${short(line.points.at(-1)[1])}`);
  return [title, ...parts, ...levels.map((level) => `${level.name}: ${short(level.value)}`)].join(". ");
}

function numbers(title, series, x, y) {
  const rows = series.flatMap((line) => thinned(line.points, MOST_ROWS).map(([a, b]) => el("tr", {}, el("td", {}, line.name), el("td", {}, short(a)), el("td", {}, short(b, 6)))));
  return details("As numbers", table(title, ["line", x, y], rows));
}

/** Return a figure of horizontal bars {name, value, strong}, from the smallest value on. */
export function barChart({ title, bars, unit, log = false }) {
  const width = Math.min(720, Math.max(320, document.getElementById("main").clientWidth - 48));
  const start = Math.min(230, width * 0.45);
  const height = 22 * bars.length + 34;
  const values = bars.map((bar) => bar.value);
  const scale = new Scale(log ? values : [0, ...values], [start, width - 70], log);
  const rows = bars.map((bar, i) => [
    svg("rect", { class: bar.strong ? "bar strong" : "bar", x: start, y: 22 * i + 4, width: Math.max(2, scale.at(bar.value) - start), height: 15 }),
    svg("text", { x: start - 6, y: 22 * i + 16, "text-anchor": "end" }, clipped(bar.name, Math.floor((start - 8) / 7))),
    svg("text", { x: Math.max(start + 2, scale.at(bar.value)) + 5, y: 22 * i + 16 }, short(bar.value)),
  ]);
  const label = `${title}. ${bars.map((bar) => `${bar.name}: ${short(bar.value)}`).join(". ")}`;
  return el("figure", {}, el("figcaption", {}, title), svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, rows, svg("text", { x: (start + width) / 2, y: height - 6, "text-anchor": "middle" }, unit)));
}

function clipped(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
