// A recommendation: one mechanism for a training job, its noise, what the loader does, and the lines of code that use it.

import { askForm } from "./askform.js";
import { askJson } from "./api.js";
import { barChart } from "./charts.js";
import { block } from "./code.js";
import { compose } from "./compose.js";
import { button, details, el, table, tell, terms } from "./dom.js";
import { enough, seconds, short } from "./formats.js";
import { rowPictures } from "./rows.js";

const TITLES = { torch: "torch", jax: "JAX", numpy: "numpy", federated: "the server" };
const DATA_SET = {
  schema: "RecommendRequest",
  path: "/v1/recommend",
  draft: { value: { examples: 6400, batch_size: 100, epochs: 1, epsilon: 2, delta: 1e-5, memory: [4] } },
  other: ["#/recommend/fleet", "Federated training? Describe the fleet."],
};
const FLEET = {
  schema: "FleetRequest",
  path: "/v1/recommend/fleet",
  draft: { value: { clients: 2000, clients_a_round: 100, rounds: 200, epsilon: 4, delta: 1e-5, memory: [4] } },
  other: ["#/recommend", "Training on one data set? Describe that."],
};

/** Show the questions about a training job, or with the name `fleet` about federated training, and the advice. */
export async function recommendPage(main, { signal, name }) {
  const { schema, path, draft, other } = name === "fleet" ? FLEET : DATA_SET;
  const intro = [
    el("h1", {}, "Recommend a mechanism"),
    el("p", {}, "Training with differential privacy adds noise. This service finds noise that is correlated from step to step, which harms the model less, and proves what it finds. Describe your training job and the privacy it needs: the service compares the mechanisms that fit your memory, and recommends one with its noise and its code. Nothing is stored until you solve its spec."),
    el("p", {}, el("a", { href: other[0] }, other[1])),
  ];
  const seldom = ["check_in", "offline", "objective", "samplings", "parameters", "seconds"];
  const labels = { workload: "optimizer" };
  const nothing = { "/workload": "SGD with a constant learning rate (running sums)", "/workload/learning_rates": "constant" };
  await askForm(main, { intro, schema, id: "recommend", seldom, labels, nothing, draft, path, text: "Recommend", draw: advice, signal });
}

function advice(found) {
  tell(`Take ${found.mechanism}.`);
  const { table: compared, row } = found;
  const same = (one) => one.spec_digest === row.spec_digest && one.sampling === row.sampling;
  return [
    el("div", { class: "panels" }, takeCard(found), besideCard(found)),
    codeCard(found),
    el("section", { class: "card", "aria-labelledby": "compared" }, el("h2", { id: "compared" }, "What was compared"), rowPictures(compared, [compared.rows.findIndex(same)])),
  ];
}

function takeCard(found) {
  const { sigma, job } = found;
  return el(
    "section",
    { class: "card", "aria-labelledby": "take" },
    el("h2", { id: "take" }, `Take ${found.mechanism}`),
    el("p", {}, `${found.why}.`),
    terms([
      ["steps", String(job.steps)],
      ["sampling", job.clients ? null : found.sampling],
      [job.clients ? "clients" : "what the loader does", found.loader],
      ["secret", found.secret],
      ["sigma of sums", `${enough(sigma.sums, 6)} at clip norm ${sigma.clip_norm} (${sigma.rests_on})`],
      ["sigma of means", `${enough(sigma.means, 6)} with the divisor ${sigma.divisor}`],
      ["learning rate", found.rate.value === null ? null : `${short(found.rate.value, 3)} for ${found.rate.optimizer}: ${found.rate.basis}`],
      ["rmse at this privacy", short(found.rmse_at_privacy, 6)],
      ["memory", `${found.noise_vectors} vectors of the model's size`],
      ["noise of a step", found.seconds_per_step === null ? null : `${seconds(found.seconds_per_step)} for ${job.parameters} parameters, on one core by a model`],
      ["spec digest", el("code", { class: "digest" }, found.spec_digest)],
    ]),
    found.notes.map((text) => el("p", { class: "hint" }, `Note: ${text}.`)),
    el("p", { class: "actions" }, button("Solve this", () => solve(found.spec), { class: "primary" }), button("Open its spec in the form", () => compose(found.spec))),
    details("Spec", el("pre", { tabindex: "0", "aria-label": "Recommended spec" }, JSON.stringify(found.spec, null, 2))),
  );
}

async function solve(spec) {
  const answer = await askJson("/v1/factorizations", { method: "POST", body: spec });
  location.hash = `#/f/${answer.spec_digest}`;
}

/** What it is compared with, and the other memory budgets. */
function besideCard(found) {
  const bars = [
    { name: `this: ${found.mechanism}`, value: found.rmse_at_privacy, strong: true },
    ...found.compared.map((one) => ({ name: one.what, value: one.rmse_at_privacy })),
  ].sort((a, b) => a.value - b.value);
  const others = found.compared.map((one) => el("li", {}, `${one.what}: ${one.mechanism}, ${one.sampling ?? "fixed order"}, ${short(one.rmse_at_privacy)}, ranking error ${short(one.ratio, 3)} times as large; vectors: ${one.noise_vectors}`));
  const within = found.budgets.map((one) => el("tr", {}, el("td", {}, String(one.memory)), el("td", {}, one.mechanism), el("td", {}, one.sampling ?? "fixed order"), el("td", {}, short(one.rmse_at_privacy)), el("td", {}, enough(one.sigma_of_sums, 5))));
  return el(
    "section",
    { class: "card", "aria-labelledby": "beside" },
    el("h2", { id: "beside" }, "Beside others"),
    barChart({ title: "Error at this privacy", bars, unit: "rmse" }),
    others.length ? el("ul", {}, others) : null,
    within.length > 1 ? table("Best within each memory", ["vectors allowed", "mechanism", "sampling", "rmse", "sigma of sums"], within) : null,
  );
}

function codeCard(found) {
  const parts = Object.entries(found.code).map(([name, text]) => block(TITLES[name] ?? name, text));
  return el("section", { class: "card", "aria-labelledby": "code" }, el("h2", { id: "code" }, "Use it"), parts, block("the command line", found.next_command));
}
