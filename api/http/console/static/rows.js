// The rows of a comparison: as bars, as losses against memory, and as a table.

import { barChart } from "./charts.js";
import { compose } from "./compose.js";
import { button, el, table } from "./dom.js";
import { enough, part, percent, seconds, short } from "./formats.js";
import { scatterChart } from "./scatter.js";

const MOST_BARS = 40;

/** Return the pictures of a comparison and its table; `chosen` are the numbers of the recommended rows. */
export function rowPictures(found, chosen) {
  const { rows, budget } = found;
  const [measure, value] = measureOf(found);
  const bars = rows.map((row, i) => ({ name: nameOf(row), value: value(row), strong: chosen.includes(i) })).filter((bar, i) => i < MOST_BARS || bar.strong);
  const points = rows.map((row, i) => ({ name: nameOf(row), x: row.noise_vectors, y: value(row), strong: chosen.includes(i) }));
  return [
    el("div", { class: "panels" }, barChart({ title: "Mechanisms", bars, unit: measure }), scatterChart({ title: "Error against memory", points, budget, x: "vectors of noise state", y: measure })),
    table("All mechanisms", ["mechanism", measure, "above the bound", "vectors", "sigma of sums", "what the loader does", "solved in", "action"], rows.map((row, i) => line(found, row, value(row), chosen.includes(i)))),
    found.refused?.length ? el("p", { class: "hint" }, `Left out: ${found.refused.map((entry) => `${entry.mechanism} (${entry.reason})`).join("; ")}`) : null,
  ].filter(Boolean);
}

function measureOf({ rows, objective }) {
  if (rows.every((row) => row.rmse_at_privacy !== null && row.rmse_at_privacy !== undefined)) return ["rmse at the privacy asked for", (row) => row.rmse_at_privacy];
  return [`objective ${objective}`, (row) => row.loss.objective];
}

/** Return mechanism, parameters and sampling of a row in one line. */
export function nameOf(row) {
  const more = { normalization: row.normalization === "none" ? null : row.normalization, sampling: row.sampling };
  const fields = { ...row.parameters, ...Object.fromEntries(Object.entries(more).filter(([, value]) => value)) };
  return part({ kind: row.mechanism, ...fields });
}

/** Return the spec of a row. */
export function specOf(found, row) {
  return row.spec ?? { ...found.spec, mechanism: { kind: row.mechanism, ...row.parameters } };
}

function line(found, row, value, strong) {
  const name = nameOf(row);
  const notes = [row.converged ? null : "tolerance not met", ...row.warnings].filter(Boolean);
  return el(
    "tr",
    { class: strong ? "strong" : null },
    el("td", {}, name, notes.map((text) => el("p", { class: "error" }, text))),
    el("td", {}, short(value, 6)),
    el("td", {}, percent(row.relative_gap)),
    el("td", {}, String(row.noise_vectors)),
    el("td", {}, row.sigma_of_sums === undefined || row.sigma_of_sums === null ? "" : enough(row.sigma_of_sums, 5)),
    el("td", {}, row.sampling ?? "fixed order"),
    el("td", {}, seconds(row.seconds)),
    el("td", {}, button("Use its spec", () => compose(specOf(found, row)), { "aria-label": `Use the spec of ${name}` })),
  );
}
