// A comparison: every mechanism that fits a spec, as bars, as losses against memory, and as a table.

import { Problem, events, schemas } from "./api.js";
import { barChart } from "./charts.js";
import { compose } from "./compose.js";
import { button, el, table, tell } from "./dom.js";
import { part, percent, seconds, short } from "./formats.js";
import { scatterChart } from "./scatter.js";
import { SchemaForm } from "./schemaform.js";

const EXAMPLE = { spec: { workload: { kind: "prefix", n: 64 }, participation: { kind: "fixed_epochs", epochs: 4 } }, epsilon: 2, delta: 1e-6, max_seconds: 10 };
const MOST_BARS = 40;

let draft = EXAMPLE;

/** Show the form of a comparison, and its pictures. */
export async function comparePage(main, { signal }) {
  const form = new SchemaForm(await schemas(), "CompareRequest", { id: "compare", seldom: ["bytes_per_parameter", "samplings", "max_seconds"] });
  form.write(draft);
  const answer = el("div", { "aria-live": "polite" });
  const go = el("button", { type: "submit", class: "primary" }, "Compare");
  let running = null;
  const stop = button("Stop", () => running?.abort(), { disabled: true });
  const submit = async (event) => {
    event.preventDefault();
    draft = form.read();
    running = new AbortController();
    signal.addEventListener("abort", () => running.abort());
    [go.disabled, stop.disabled] = [true, false];
    try {
      form.show([]);
      await run(draft, answer, running.signal);
    } catch (error) {
      if (error instanceof Problem) form.show(error.violations);
      answer.replaceChildren(el("p", { class: "error", role: "alert" }, error.name === "AbortError" ? "The comparison was stopped." : error.message));
    }
    [go.disabled, stop.disabled] = [false, true];
  };
  main.append(
    el("h1", {}, "Compare mechanisms"),
    el("p", {}, "Every mechanism that fits the spec is solved and certified; nothing is stored. One comparison runs at a time."),
    el("form", { class: "card", novalidate: true, submit }, form.node, el("p", { class: "actions" }, go, stop)),
    answer,
  );
}

async function run(request, answer, signal) {
  answer.replaceChildren(el("p", {}, "The comparison begins."));
  for await (const { name, data } of events("/v1/compare", { method: "POST", body: request, signal })) {
    if (name === "progress") answer.replaceChildren(el("p", {}, `${data.done} rows in ${seconds(data.seconds)}.`));
    else if (name === "failed") throw new Error(data.detail);
    else return answer.replaceChildren(...pictures(data));
  }
  throw new Error("The service ended the comparison without an answer.");
}

function pictures(found) {
  const { rows, recommendation, budget } = found;
  const left = found.refused?.length ? el("p", { class: "hint" }, `Left out: ${found.refused.map((entry) => `${entry.mechanism} (${entry.reason})`).join("; ")}`) : null;
  if (!rows.length) return [el("p", {}, "No mechanism fits within these limits."), left].filter(Boolean);
  const chosen = recommendation?.row ?? null;
  const [measure, value] = measureOf(found);
  const bars = rows.slice(0, MOST_BARS).map((row, i) => ({ name: nameOf(row), value: value(row), strong: i === chosen }));
  const points = rows.map((row, i) => ({ name: nameOf(row), x: row.noise_vectors, y: value(row), strong: i === chosen }));
  tell("The comparison is done.");
  return [
    recommendation ? el("p", { class: "card" }, el("strong", {}, "Recommended: "), recommendation.reason, ". ", button("Use its spec", () => compose(specOf(found, rows[chosen])))) : null,
    el("div", { class: "panels" }, barChart({ title: "Mechanisms", bars, unit: measure }), scatterChart({ title: "Error against memory", points, budget, x: "vectors of noise state", y: measure })),
    table("All mechanisms", ["mechanism", measure, "above the bound", "vectors", "sigma", "what the loader does", "solved in", "action"], rows.map((row, i) => line(found, row, value(row), i === chosen))),
    left,
  ].filter(Boolean);
}

function measureOf({ rows, objective }) {
  if (rows.every((row) => row.rmse_at_privacy !== null && row.rmse_at_privacy !== undefined)) return ["rmse at the privacy asked for", (row) => row.rmse_at_privacy];
  return [`objective ${objective}`, (row) => row.loss.objective];
}

function nameOf(row) {
  const more = { normalization: row.normalization === "none" ? null : row.normalization, sampling: row.sampling };
  const fields = { ...row.parameters, ...Object.fromEntries(Object.entries(more).filter(([, value]) => value)) };
  return part({ kind: row.mechanism, ...fields });
}

function specOf(found, row) {
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
    el("td", {}, row.sigma === undefined || row.sigma === null ? "" : `${short(row.sigma, 5)} for ${row.sigma_for ?? "sums"}`),
    el("td", {}, row.sampling ?? "fixed order"),
    el("td", {}, seconds(row.seconds)),
    el("td", {}, button("Use its spec", () => compose(specOf(found, row)), { "aria-label": `Use the spec of ${name}` })),
  );
}
