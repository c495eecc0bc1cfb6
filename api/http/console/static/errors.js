// The error of each query against the lower bound.

import { askJson } from "./api.js";
import { lineChart } from "./charts.js";
import { el } from "./dom.js";

/** Show the card of errors, whose numbers the service computes. */
export function errorsCard(manifest, signal) {
  const body = el("div", { "aria-live": "polite" }, el("p", { class: "hint" }, "Reading the rows of B."));
  const card = el("section", { class: "card", "aria-labelledby": "errors" }, el("h2", { id: "errors" }, "Error of each query"), body);
  askJson(`/v1/factorizations/${manifest.digest}/errors`, { signal }).then(
    (found) => body.replaceChildren(...pictures(found)),
    (error) => error.name === "AbortError" || body.replaceChildren(el("p", { class: "error" }, error.message)),
  );
  return card;
}

function pictures({ queries, errors, independent, rmse, lower_bound }) {
  const points = (values) => queries.map((query, i) => [query, values[i]]);
  const ours = { name: "this factorization", points: points(errors) };
  const levels = [{ name: "its root mean square", value: rmse }];
  if (lower_bound !== null) levels.push({ name: "lower bound on any matrix's root mean square", value: lower_bound });
  const axes = { x: "query", y: "standard deviation" };
  return [
    el("p", { class: "hint" }, "At noise of standard deviation 1 times the sensitivity."),
    lineChart({ title: "Against the certified bound", series: [ours], levels, ...axes }),
    lineChart({ title: "Beside independent noise", series: [ours, { name: "independent noise, C = I", points: points(independent) }], logY: true, ...axes }),
  ];
}
