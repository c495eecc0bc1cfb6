// The noise of a step as a filter of fresh noise: its coefficients over time and their power over frequency.

import { ask } from "./api.js";
import { lineChart } from "./charts.js";
import { el } from "./dom.js";
import { powerSpectrum } from "./fft.js";

const MOST_LAGS = 2 ** 18; // of a longer row the newest coefficients are drawn

/** Show the card of noise coefficients for a step that can be chosen. */
export function noiseCard(manifest, signal) {
  const n = typeof manifest.spec.workload.n === "number" ? manifest.spec.workload.n : manifest.spec.workload.shape?.[1] ?? 1024;
  const step = el("input", { id: "noise-step", type: "number", min: "1", max: String(n), value: String(n) });
  const body = el("div", { class: "panels", "aria-live": "polite" });
  const show = async () => {
    const chosen = Math.min(n, Math.max(1, Math.round(Number(step.value) || n)));
    try {
      body.replaceChildren(...pictures(await lags(manifest.digest, chosen, signal), chosen));
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(el("p", { class: "error" }, error.message));
    }
  };
  step.addEventListener("change", show);
  show();
  return el(
    "section",
    { class: "card", "aria-labelledby": "noise" },
    el("h2", { id: "noise" }, "Noise over time and frequency"),
    el("p", {}, "The noise added at step t is a sum of the fresh noise of step t and of earlier steps, with the coefficients of row t of C^-1. Negative ones take back noise of earlier steps."),
    el("div", { class: "field" }, el("label", { for: "noise-step" }, `step t, 1 to ${n}`), step),
    body,
  );
}

async function lags(digest, step, signal) {
  const answer = await ask(`/v1/factorizations/${digest}/matrices/C_inv?rows=${step - 1}:${step}`, { signal });
  const row = new Float64Array(await answer.arrayBuffer()).subarray(0, step);
  return row.subarray(Math.max(0, step - MOST_LAGS)).toReversed();
}

function pictures(coefficients, step) {
  const over = Array.from(coefficients, (value, lag) => [lag + 1, value]);
  const sizes = over.map(([lag, value]) => [lag, Math.abs(value)]);
  return [
    lineChart({ title: `Coefficients of step ${step}`, series: [{ name: "coefficient", points: over.slice(0, 64) }], levels: [{ name: "zero", value: 0 }], x: "steps back, plus 1", y: "coefficient" }),
    lineChart({ title: "Their size", series: [{ name: "size of the coefficient", points: sizes }], x: "steps back, plus 1", y: "size", logX: true, logY: true }),
    lineChart({ title: "Power over frequency", series: [{ name: "power", points: powerSpectrum(coefficients) }], levels: [{ name: "independent noise", value: 1 }], x: "frequency in cycles per step", y: "power", logX: true, logY: true }),
  ];
}
