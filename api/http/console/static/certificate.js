// The certificate in plain words.

import { details, el, terms } from "./dom.js";
import { part, percent, seconds, short } from "./formats.js";

/** Show what was asked and what is certified. */
export function certificateCard(manifest) {
  const { certificate, spec } = manifest;
  return el(
    "section",
    { class: "card", "aria-labelledby": "certificate" },
    el("h2", { id: "certificate" }, "Certificate"),
    el("ul", {}, sentences(certificate, spec).map((text) => el("li", {}, text))),
    certificate.warnings.map((text) => el("p", { class: "error" }, `Warning: ${text}`)),
    terms([
      ["digest", el("code", { class: "digest" }, manifest.digest)],
      ["spec digest", el("code", { class: "digest" }, manifest.spec_digest)],
      ["solver", `${manifest.solver.mechanism}, ${manifest.solver.iterations} iterations, ${seconds(manifest.solver.seconds)}`],
    ]),
    details("All numbers", el("pre", { tabindex: "0" }, JSON.stringify(certificate, null, 2))),
  );
}

/** Return the certificate as sentences. */
export function sentences(certificate, spec) {
  const { sensitivity, loss, residual } = certificate;
  return [sensitive(sensitivity), errors(loss), bounded(certificate, spec), exact(residual), stopped(certificate, spec)].filter(Boolean);
}

function sensitive({ value, kind, rule, participation }) {
  const sure = kind === "exact" ? "exactly" : "at most";
  return `One example changes C times the gradients by ${sure} ${short(value, 6)} times the clip norm. This holds for the participation ${part({ kind: "single", ...participation })}, by the rule "${rule}". The noise has to be scaled to this.`;
}

function errors({ rmse, max_error, last_iterate }) {
  if (rmse === null) return "The error grows without end, as it does for every strategy without end.";
  return `With noise of standard deviation 1 times the sensitivity, the outputs are off by ${short(rmse, 6)} in root mean square, by ${short(max_error, 6)} at worst, and by ${short(last_iterate, 6)} at the last step.`;
}

function bounded({ lower_bound, class_lower_bound, relative_gap, loss }, spec) {
  const objective = part(spec.objective);
  if (!lower_bound) {
    const within = class_lower_bound ? ` Within its class nothing is below ${short(class_lower_bound.objective, 8)} ("${class_lower_bound.rule}").` : "";
    return `No lower bound over all matrices is known here. The objective ${objective} is ${short(loss.objective, 8)}.${within}`;
  }
  return `No matrix has an objective ${objective} below ${short(lower_bound.objective, 8)} ("${lower_bound.rule}"). This one has ${short(loss.objective, 8)}, which is ${percent(relative_gap)} above.`;
}

function exact({ max_abs }) {
  return `A and B C differ by at most ${short(max_abs, 2)} in any entry.`;
}

function stopped({ converged }, spec) {
  const asked = `the relative gap of ${short(spec.tolerance, 2)} that was asked for within its class`;
  return converged ? `The solver reached ${asked}.` : `The solver did not reach ${asked}; the numbers above are honest all the same.`;
}
