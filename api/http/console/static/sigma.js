// The noise scale for a privacy target and a sampling, from the service's calibrations.

import { Problem, events, schemas } from "./api.js";
import { el, tell, terms } from "./dom.js";
import { SchemaForm } from "./schemaform.js";

const PRESET = { epsilon: 2, delta: 1e-6 };
const LABELS = { sigma_of_sums: "sigma of sums", sigma_of_means: "sigma of means", divisor: "divisor", noise_multiplier: "noise multiplier", epsilon: "epsilon", delta: "delta", epsilon_without_secrecy: "epsilon without secrecy", deterministic_sigma: "sigma of sums without a claim", rho: "rho (zCDP)", mu: "mu (GDP)", attack_advantage: "attack advantage", sensitivity: "sensitivity", clip_norm: "clip norm", adjacency: "adjacency", sampling: "sampling", method: "method" };

/** Show the form of a calibration and its answer. */
export function sigmaCard(manifest, signal) {
  const body = el("div", {});
  const card = el("section", { class: "card", "aria-labelledby": "sigma" }, el("h2", { id: "sigma" }, "Noise for a privacy target"), body);
  schemas().then(
    (found) => body.append(calibration(found, manifest, signal)),
    (error) => body.append(el("p", { class: "error" }, error.message)),
  );
  return card;
}

function calibration(found, manifest, signal) {
  const form = new SchemaForm(found, "CalibrationRequest", { id: "calibration", seldom: ["rho", "mu", "sigma", "spent_mu", "steps", "clip_norm", "divisor", "adjacency", "bins", "method", "work"] });
  form.write(PRESET);
  const answer = el("div", { "aria-live": "polite" });
  const submit = async (event) => {
    event.preventDefault();
    answer.replaceChildren(el("p", {}, "Working it out. A claim takes seconds, and more for many bins."));
    try {
      answer.replaceChildren(...shown(await calibrated(manifest.digest, form.read(), signal)));
      form.show([]);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error instanceof Problem) form.show(error.violations);
      answer.replaceChildren(el("p", { class: "error" }, error.message));
    }
  };
  return el("form", { novalidate: true, submit }, form.node, el("p", { class: "hint" }, "Without a sampling, the order is fixed and public. Poisson samplings need the data set's size and the batch size, which divides nothing."), el("p", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Compute sigma")), answer);
}

async function calibrated(digest, request, signal) {
  for await (const { name, data } of events(`/v1/factorizations/${digest}/calibrations`, { method: "POST", body: request, signal })) {
    if (name === "done") return data;
    if (name === "failed") throw new Problem(data.status, data);
  }
  throw new Error("The answer broke off; ask again.");
}

function shown(document) {
  const rows = Object.entries(LABELS).filter(([name]) => document[name] !== undefined && document[name] !== null);
  tell(`Sigma of sums is ${document.sigma_of_sums}.`);
  const means = document.divisor ? ` For means, sums over ${document.divisor}, it is ${document.sigma_of_means}.` : "";
  return [
    el("p", {}, "For sums of clipped gradients, the standard deviation of each entry of Z is ", el("strong", {}, String(document.sigma_of_sums)), `.${means}`),
    terms(rows.map(([name, label]) => [label, String(document[name])])),
  ];
}
