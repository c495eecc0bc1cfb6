// A form whose question the service works out for a while: made from a schema, with news on the way and a button that stops it.

import { Problem, events, schemas } from "./api.js";
import { button, el } from "./dom.js";
import { seconds } from "./formats.js";
import { SchemaForm } from "./schemaform.js";

/** Show `intro`, the form, and below it what `draw` makes of the answer. `draft` is {value}, kept for the next time; `options` are the form's. */
export async function askForm(main, { intro, schema, draft, path, text, draw, signal, ...options }) {
  const form = new SchemaForm(await schemas(), schema, options);
  form.write(draft.value);
  const answer = el("div", {});
  const news = el("span", { role: "status" });
  const go = el("button", { type: "submit", class: "primary" }, text);
  let running = null;
  const stop = button("Stop", () => running?.abort(), { disabled: true });
  const submit = async (event) => {
    event.preventDefault();
    draft.value = form.read();
    running = new AbortController();
    signal.addEventListener("abort", () => running.abort());
    [go.disabled, stop.disabled] = [true, false];
    try {
      form.show([]);
      answer.replaceChildren();
      answer.replaceChildren(...draw(await worked(path, draft.value, news, running.signal)));
      news.textContent = "The answer is below.";
    } catch (error) {
      if (error instanceof Problem) form.show(error.violations);
      news.textContent = "See below.";
      answer.replaceChildren(el("p", { class: "error", role: "alert" }, error.name === "AbortError" ? "It was stopped." : error.message));
    }
    [go.disabled, stop.disabled] = [false, true];
  };
  main.append(...intro, el("form", { class: "card", novalidate: true, submit }, form.node, el("p", { class: "actions near" }, go, stop, news)), answer);
}

async function worked(path, request, news, signal) {
  news.textContent = "The comparison begins.";
  for await (const { name, data } of events(path, { method: "POST", body: request, signal })) {
    if (name === "done") return data;
    if (name === "failed") throw new Error(data.detail);
    const compiling = data.done ? "" : ", which may compile once on this machine";
    news.textContent = `${data.done} of ${data.total} in ${seconds(data.seconds)}, now ${data.mechanism}${compiling}.`;
  }
  throw new Error("The service ended the comparison without an answer; ask again.");
}
