// A comparison: every mechanism that fits a spec, as bars, as losses against memory, and as a table.

import { askForm } from "./askform.js";
import { compose } from "./compose.js";
import { button, el, tell } from "./dom.js";
import { rowPictures, specOf } from "./rows.js";

const EXAMPLE = { spec: { workload: { kind: "prefix", n: 64 }, participation: { kind: "fixed_epochs", epochs: 4 } }, epsilon: 2, delta: 1e-6, max_seconds: 10 };

const draft = { value: EXAMPLE };

/** Show the form of a comparison, and its pictures. */
export async function comparePage(main, { signal }) {
  const intro = [
    el("h1", {}, "Compare mechanisms"),
    el("p", {}, "Every mechanism that fits the spec is solved and certified; nothing is stored. A long comparison may wait in a queue."),
  ];
  const seldom = ["budgets", "bytes_per_parameter", "samplings", "parameters", "max_seconds", "seconds"];
  await askForm(main, { intro, schema: "CompareRequest", id: "compare", seldom, draft, path: "/v1/compare", text: "Compare", draw: pictures, signal });
}

function pictures(found) {
  const { rows, recommendation } = found;
  const left = (found.refused ?? []).map((entry) => `${entry.mechanism} (${entry.reason})`).join("; ");
  if (!rows.length) return [el("p", {}, "No mechanism fits within these limits."), el("p", { class: "hint" }, left)];
  tell("The comparison is done.");
  const several = (found.recommendations ?? []).filter((one) => one.row !== null);
  const chosen = several.length ? several : recommendation ? [recommendation] : [];
  return [...chosen.map((one) => advised(found, one)), ...rowPictures(found, chosen.map((one) => one.row))];
}

function advised(found, { row, reason, budget }) {
  const within = found.recommendations?.length > 1 ? ` within ${budget} vectors` : "";
  const act = button("Use its spec", () => compose(specOf(found, found.rows[row])), within ? { "aria-label": `Use the spec that is recommended${within}` } : {});
  return el("p", { class: "card" }, el("strong", {}, `Recommended${within}: `), reason, ". ", act);
}
