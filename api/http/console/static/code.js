// The lines of code that use a result, pinned to its digest.

import { button, el, tell } from "./dom.js";

/** Show code for numpy, torch and the command line. */
export function codeCard({ digest, spec }) {
  const url = location.origin;
  const numpy = `from factorize.client import load

factors = load("${digest}", url="${url}")
scale = factors.calibrate(epsilon=2.0, delta=1e-6, clip_norm=1.0)
noise = factors.noise(scale, weights.shape, seed=secret_seed)

for batch in batches:  # in the order that the participation describes
    total = sum_of_clipped_gradients(weights, batch)
    weights -= rate * noise.add_to_sum(total).astype(weights.dtype)`;
  const torch = `from factorize.adapters.private import make_private

model, optimizer, loader, statement = make_private(
    model, optimizer, DataLoader(data, batch_size=256), "${digest}",
    epsilon=2.0, delta=1e-6, epochs=${spec.participation.epochs ?? 1}, clip_norm=1.0,
    url="${url}", seed=secret_seed)`;
  const shell = `factorize get ${digest} --to factors.safetensors --service ${url}
factorize verify factors.safetensors
factorize calibrate factors.safetensors --epsilon 2 --delta 1e-6`;
  return el(
    "section",
    { class: "card", "aria-labelledby": "code" },
    el("h2", { id: "code" }, "Use it"),
    block("numpy", numpy),
    block("torch and Opacus", torch),
    block("command line", shell),
  );
}

/** Return lines of code with a button that copies them. */
export function block(name, text) {
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  };
  return [el("h3", {}, name), el("pre", { tabindex: "0", "aria-label": `Code for ${name}` }, text), button("Copy", copy, { "aria-label": `Copy the code for ${name}` })];
}
