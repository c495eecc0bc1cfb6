// A dialog that asks before something is done, does it, and says what went wrong without closing.

import { button, el } from "./dom.js";

/** Ask; return what `act` gives once it was agreed to and has worked, or null. */
export function agreed({ title, text, verb, act }) {
  const error = el("p", { class: "error", role: "alert" });
  const go = el("button", { type: "submit", class: "primary" }, verb);
  let found = null;
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    error.textContent = "";
    try {
      found = await act();
      box.close();
    } catch (problem) {
      error.textContent = problem.message;
      go.disabled = false;
    }
  };
  const inner = el("form", { novalidate: true, submit }, el("h2", { id: "dialog-title" }, title), el("p", { id: "dialog-text" }, text), error, el("p", { class: "actions" }, go, button("Cancel", () => box.close())));
  const box = el("dialog", { class: "card", "aria-labelledby": "dialog-title", "aria-describedby": "dialog-text" }, inner);
  document.getElementById("main").append(box);
  box.showModal();
  return new Promise((resolve) => box.addEventListener("close", () => (box.remove(), resolve(found))));
}
