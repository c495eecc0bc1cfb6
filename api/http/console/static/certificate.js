// The certificate in plain words.

import { details, el, terms } from "./dom.js";
import { enough, floored, part, percent, seconds, short } from "./formats.js";

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
  const sure = kind === "exact" ? "exact" : "an upper bound";
  return `One example can change what is released by at most ${enough(value, 6)} times the clip norm (${sure}, by the rule "${rule}"), under the participation ${part({ kind: "single", ...participation })}. Scale the noise to this number.`;
}

function errors({ rmse, max_error, last_iterate }) {
  if (rmse === null) return "The error grows without limit, as for every strategy without a last step.";
  return `With noise of standard deviation 1 times the sensitivity, the outputs are off by ${short(rmse, 6)} in root mean square, by ${short(max_error, 6)} at worst, and by ${short(last_iterate, 6)} at the last step.`;
}

function bounded({ lower_bound, class_lower_bound, relative_gap, loss }, spec) {
  if (loss.objective === null) return null; // without a last step there is nothing to bound
  const objective = part(spec.objective);
  if (!lower_bound) {
    const within = class_lower_bound ? ` No matrix of its class is below ${floored(class_lower_bound.objective, 8)} ("${class_lower_bound.rule}").` : "";
    return `No lower bound over all matrices is known here. The objective ${objective} is ${short(loss.objective, 8)}.${within}`;
  }
  return `No matrix has an objective ${objective} below ${floored(lower_bound.objective, 8)} ("${lower_bound.rule}"). This one has ${short(loss.objective, 8)}, which is ${percent(relative_gap)} above.`;
}

function exact({ max_abs }) {
  return `A and B C differ by at most ${short(max_abs, 2)} in any entry.`;
}

function stopped({ converged }, spec) {
  const asked = `the requested relative gap of ${short(spec.tolerance, 2)} within its class`;
  return converged ? `The solver reached ${asked}.` : `The solver did not reach ${asked}; the numbers above hold all the same.`;
}
