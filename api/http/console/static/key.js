// The API key: typed in the page, kept for this tab only, sent in a header and never in an address.

import { button, el, tell } from "./dom.js";

const NAME = "factorize-key";

/** Return the key of this tab, or null. */
export function currentKey() {
  return sessionStorage.getItem(NAME);
}

/** Return the headers by which a request says who asks. */
export function keyHeaders() {
  const key = currentKey();
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

/** Keep another key for this tab; null forgets the one there is. */
export function keepKey(value) {
  if (value) sessionStorage.setItem(NAME, value);
  else sessionStorage.removeItem(NAME);
}

/** Show the form in which a key is typed; `changed` is called when there is another. */
export function keyForm(changed) {
  const input = el("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", maxlength: "400" });
  const set = (value, text) => {
    if (/[^!-~]/.test(value ?? "")) return tell("A key has no spaces, quotation marks or letters with accents; copy it again.");
    keepKey(value);
    input.value = "";
    tell(text);
    changed();
  };
  return el(
    "form",
    { class: "card", submit: (event) => (event.preventDefault(), input.value && set(input.value.trim(), "The key is kept for this tab.")) },
    el("label", { for: "key" }, "API key"),
    el("p", { class: "hint" }, "This tab keeps the key until you close it, and sends it in a header. Only a service with keys needs one."),
    input,
    el("p", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Use this key"), button("Forget it", () => set(null, "The key is forgotten."))),
    el("p", {}, currentKey() === null ? "No key is set." : "A key is set."),
  );
}
