// Composing a spec: the form, what the service understands by it, what it takes, and its submission.

import { Problem, askJson, schemas } from "./api.js";
import { button, details, el, tell, terms } from "./dom.js";
import { bytes, seconds, summary } from "./formats.js";
import { SchemaForm } from "./schemaform.js";

const EXAMPLE = { workload: { kind: "prefix", n: 512 }, participation: { kind: "fixed_epochs", epochs: 4 } };
const PAUSE = 250; // milliseconds without a change before the service is asked

let draft = EXAMPLE;

/** Have the form open with this spec the next time. */
export function compose(spec) {
  draft = spec;
  location.hash = "#/compose";
}

/** Show the page on which a spec is composed. */
export async function composePage(main, { signal }) {
  const form = new SchemaForm(await schemas(), "Spec", { id: "spec", seldom: ["tolerance", "optimize_for", "sampling"], changed: () => view.later() });
  const view = new Understood(form, signal);
  form.write(draft);
  const text = el("textarea", { id: "spec-json", rows: "10", spellcheck: "false", "aria-label": "The spec as JSON" });
  const take = async () => {
    const given = JSON.parse(text.value);
    await askJson("/v1/canonicalize", { method: "POST", body: given, signal }); // the form has no place for a field that is misspelt
    form.write(given);
  };
  const json = details(
    "As JSON",
    text,
    el("p", { class: "actions" }, button("Write the form into it", () => (text.value = JSON.stringify(form.read(), null, 2))), button("Read the form from it", take)),
  );
  const submit = (event) => {
    event.preventDefault();
    view.submit();
  };
  main.append(
    el("h1", {}, "Compose a spec"),
    el("p", {}, "A spec names the workload to factor, how often an example takes part, the error to minimise, and the family of matrices."),
    el("form", { class: "columns", novalidate: true, submit }, el("div", { class: "card" }, form.node, json), view.node),
  );
}

/** What the service makes of the form's spec, asked for again after each change. */
class Understood {
  constructor(form, signal) {
    this.form = form;
    this.signal = signal;
    this.timer = null;
    this.asked = 0;
    this.shown = el("div", { "aria-live": "polite" });
    this.go = el("button", { type: "submit", class: "primary", disabled: true }, "Solve");
    this.node = el("aside", { class: "card", "aria-label": "What the service understands" }, el("h2", {}, "What will be solved"), this.shown, el("p", { class: "actions" }, this.go));
  }

  later() {
    clearTimeout(this.timer);
    this.asked++; // an answer that is still on its way is to what the form no longer says
    this.go.disabled = true;
    this.timer = setTimeout(() => this.ask(), PAUSE);
  }

  async ask() {
    const number = ++this.asked;
    draft = this.form.read();
    try {
      const answer = await askJson("/v1/canonicalize", { method: "POST", body: draft, signal: this.signal });
      if (number === this.asked) this.show(answer);
    } catch (error) {
      if (error.name === "AbortError" || number !== this.asked) return;
      this.refuse(error);
    }
  }

  show({ spec, spec_digest, known, estimate, notes }) {
    this.form.show([]);
    this.go.disabled = false;
    this.go.textContent = known ? "Show the result" : "Solve";
    this.shown.replaceChildren(
      el("p", {}, summary(spec)),
      ...notes.map((text) => el("p", { class: "hint" }, `Note: ${text.replace("POST /v1/recommend with a memory", "the page Recommend")}.`)),
      terms([
        ["spec digest", el("code", { class: "digest" }, spec_digest)],
        ["known", known ? "yes, it is stored" : "no, it has to be solved"],
        ["until it is done", known ? "at once" : `about ${seconds(estimate.seconds)}`],
        ["memory", known ? null : bytes(Math.round(estimate.bytes))],
      ]),
      details("Canonical spec", el("pre", { tabindex: "0" }, JSON.stringify(spec, null, 2))),
    );
  }

  refuse(error) {
    const rest = error instanceof Problem ? this.form.show(error.violations) : [];
    const texts = error instanceof Problem && error.violations.length ? rest.map((entry) => [entry.pointer, entry.detail].filter(Boolean).join(": ")) : [error.message];
    this.shown.replaceChildren(el("p", { class: "error" }, texts.length ? texts.join("; ") : "Some fields need another value; each says which."));
  }

  async submit() {
    if (this.go.disabled) return;
    try {
      const answer = await askJson("/v1/factorizations", { method: "POST", body: this.form.read() });
      location.hash = `#/f/${answer.spec_digest}`;
    } catch (error) {
      tell(error.message);
      this.refuse(error);
    }
  }
}
