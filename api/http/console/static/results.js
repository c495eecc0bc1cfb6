// Jobs and results: a list with filters and pages.

import { askJson, schemas } from "./api.js";
import { button, el, table, tell } from "./dom.js";
import { short, time } from "./formats.js";

const STATES = ["queued", "running", "done", "failed", "cancelled"];
const LIMIT = 25;

/** Show the list, newest first. */
export async function resultsPage(main, { signal }) {
  const state = select("state", STATES);
  const workload = select("workload", workloads(await schemas()));
  const search = el("input", { id: "filter-search", name: "search", type: "search", maxlength: "200", placeholder: "momentum n=2048" });
  const box = el("div", {});
  const pages = [null];
  let latest = 0;
  const show = async () => {
    const request = (latest += 1);
    const query = new URLSearchParams({ limit: LIMIT });
    for (const control of [state, workload, search]) if (control.value) query.set(control.name, control.value);
    if (pages.at(-1)) query.set("cursor", pages.at(-1));
    const found = await askJson(`/v1/factorizations?${query}`, { signal });
    if (request !== latest) return; // the filters have changed meanwhile
    box.replaceChildren(listed(found.items, show, signal), turning(pages, found.next, show));
  };
  const anew = () => {
    pages.length = 1;
    show().catch((error) => tell(error.message));
  };
  state.addEventListener("input", anew);
  workload.addEventListener("input", anew);
  search.addEventListener("change", anew); // Enter, or the field is left
  const filters = [state, workload, search].map((control) => el("div", { class: "field" }, el("label", { for: control.id }, control.name), control));
  main.append(el("h1", {}, "Jobs and results"), el("p", {}, "Newest first: jobs of this service, and results that came into its store in other ways."), el("div", { class: "group" }, filters), box);
  await show();
}

function select(name, values) {
  return el("select", { id: `filter-${name}`, name }, el("option", { value: "" }, "all"), values.map((value) => el("option", { value }, value)));
}

function workloads(found) {
  const { discriminator } = found.Spec.properties.workload;
  return Object.keys(discriminator.mapping);
}

function listed(items, show, signal) {
  if (!items.length) return el("p", {}, "Nothing here.");
  return table("Jobs and results", ["spec, digest", "state", "submitted (UTC)", "action"], items.map((item) => line(item, show, signal)));
}

function line(item, show, signal) {
  const open = item.state === "queued" || item.state === "running";
  const cancel = async () => {
    await askJson(`/v1/factorizations/${item.spec_digest}`, { method: "DELETE", signal });
    tell("The job is cancelled.");
    await show();
  };
  return el(
    "tr",
    {},
    el("td", {}, el("a", { href: `#/f/${item.spec_digest}` }, item.summary), pinned(item)),
    el("td", {}, el("span", { class: `state ${item.state}` }, item.state), note(item)),
    el("td", {}, time(item.submitted)),
    el("td", {}, open ? button("Cancel", cancel, { "aria-label": `Cancel ${item.summary}` }) : null),
  );
}

/** Return the digest that a job pins, once there is a result. */
function pinned({ digest }) {
  return digest ? el("p", { class: "hint" }, el("code", { class: "digest" }, digest)) : null;
}

function note({ state, progress, error }) {
  if (error) return el("p", { class: "error" }, error.message.slice(0, 200));
  const gap = progress?.relative_gap ?? progress?.class_gap ?? null;
  if (state !== "running" || !progress) return null;
  return el("p", { class: "hint" }, `step ${progress.iteration}${gap === null ? "" : `, gap ${short(gap, 2)}`}`);
}

/** Return the buttons that turn pages: `pages` has the cursor of each page up to the one that is shown. */
export function turning(pages, next, show) {
  const older = button("Older", async () => (pages.push(next), await show()), { disabled: !next });
  const newer = button("Newer", async () => (pages.pop(), await show()), { disabled: pages.length === 1 });
  return el("p", { class: "actions" }, newer, older, button("Refresh", show), el("span", {}, `Page ${pages.length}`));
}
