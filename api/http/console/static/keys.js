// Keys of the service, for callers with the scope admin: the list, another key, the end of a key.

import { askJson, schemas } from "./api.js";
import { agreed } from "./dialog.js";
import { button, el, table, tell } from "./dom.js";
import { time } from "./formats.js";
import { currentKey } from "./key.js";
import { turning } from "./results.js";
import { SchemaForm } from "./schemaform.js";

const PATH = "/v1/keys";
const STATES = ["active", "expired", "revoked"];
const LIMIT = 25;

const known = { key: null, offered: Promise.resolve(false) };

/** Return whether the key of this tab may look after keys; the service is asked once for each key. */
export function mayLookAfterKeys() {
  const key = currentKey();
  if (known.key !== key) {
    known.key = key;
    known.offered = key === null ? Promise.resolve(false) : askJson("/v1/caller").then((caller) => caller.looks_after_keys).catch(() => false);
  }
  return known.offered;
}

/** Show the keys, and the form for another. */
export async function keysPage(main, { signal }) {
  const desk = new Desk(signal);
  await desk.show(); // who may not see the list sees the refusal alone
  const form = new SchemaForm(await schemas(), "KeyRequest", { id: "new-key", seldom: ["quotas"] });
  form.write({});
  const go = el("button", { type: "submit", class: "primary" }, "Make a key");
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    await desk.make(form);
    go.disabled = false;
  };
  main.append(
    el("h1", {}, "Keys"),
    el("p", {}, "A key determines what its holder may do at this service, and until when. Its token is shown once, when you make the key."),
    desk.token,
    el("section", { class: "card", "aria-labelledby": "new-key-title" }, el("h2", { id: "new-key-title" }, "Another key"), el("form", { novalidate: true, submit }, form.node, desk.refusal, el("p", { class: "actions" }, go))),
    el("div", { class: "group" }, desk.filter),
    desk.list,
  );
}

/** The list, and what is done with its keys. */
class Desk {
  constructor(signal) {
    this.signal = signal;
    this.pages = [null];
    this.latest = 0;
    this.token = el("section", { class: "card", tabindex: "-1", "aria-labelledby": "token-title", hidden: true });
    this.refusal = el("p", { class: "error", role: "alert" });
    this.list = el("div", { tabindex: "-1" });
    this.state = el("select", { id: "key-state", input: () => this.anew() }, el("option", { value: "" }, "all"), STATES.map((value) => el("option", { value }, value)));
    this.filter = el("div", { class: "field" }, el("label", { for: "key-state" }, "state"), this.state);
  }

  anew() {
    this.pages.length = 1;
    this.show().catch((error) => error.name === "AbortError" || tell(error.message));
  }

  async show() {
    const request = (this.latest += 1);
    const query = new URLSearchParams({ limit: LIMIT });
    if (this.state.value) query.set("state", this.state.value);
    if (this.pages.at(-1)) query.set("cursor", this.pages.at(-1));
    const found = await askJson(`${PATH}?${query}`, { signal: this.signal });
    if (request !== this.latest) return; // the filter has changed meanwhile
    const heads = ["name", "id", "state", "scopes", "made (UTC)", "ends (UTC)", "quotas", "action"];
    const shown = found.items.length ? table("Keys", heads, found.items.map((key) => this.line(key))) : el("p", {}, "Nothing here.");
    this.list.replaceChildren(shown, turning(this.pages, found.next, () => this.show()));
  }

  line(key) {
    const revoke = key.own ? null : button("Revoke", () => this.revoke(key), { "aria-label": `Revoke ${key.name} ${key.id}` });
    return el(
      "tr",
      { class: key.own ? "strong" : null },
      el("td", {}, key.name, key.own ? el("p", { class: "hint" }, "the key of this tab") : null),
      el("td", {}, el("code", {}, key.id)),
      el("td", {}, el("span", { class: `state ${key.state === "active" ? "done" : "failed"}` }, key.state)),
      el("td", {}, key.scopes.join(", ")),
      el("td", {}, time(key.created)),
      el("td", {}, time(key.expires)),
      el("td", {}, quotasOf(key)),
      el("td", {}, key.state === "revoked" ? null : revoke),
    );
  }

  async make(form) {
    this.refusal.textContent = "";
    form.show([]);
    try {
      await this.changed(await askJson(PATH, { method: "POST", body: form.read() }), "The key is made.");
      form.write({});
    } catch (error) {
      const rest = form.show(error.violations ?? []);
      this.refusal.textContent = error.violations?.length && !rest.length ? "" : error.message;
    }
  }

  async revoke(key) {
    const act = () => askJson(`${PATH}/${key.id}/revoke`, { method: "POST" });
    const text = `Whoever uses ${key.id} is refused within a second. You cannot undo this.`;
    if ((await agreed({ title: `Revoke ${key.name}?`, text, verb: "Revoke it", act })) === null) return;
    tell(`Key ${key.id} is revoked.`);
    await this.show();
    this.list.focus();
  }

  /** Show a token, this once: it goes when the page is left. */
  async changed({ id, name, token }, text) {
    const copy = async () => {
      await navigator.clipboard.writeText(token);
      tell("Copied.");
    };
    const hide = () => {
      this.token.replaceChildren();
      this.token.hidden = true;
      this.list.focus();
    };
    this.token.replaceChildren(
      el("h2", { id: "token-title" }, `Token of ${name}`),
      el("p", {}, `${text} Copy the token of key ${id} now: it is not shown again.`),
      el("pre", { tabindex: "0", "aria-label": "Token" }, token),
      el("p", { class: "actions" }, button("Copy the token", copy, { class: "primary" }), button("I have it, hide it", hide)),
    );
    this.token.hidden = false;
    this.token.focus();
    await this.show();
  }
}

/** Return the quotas of a caller or a key in words. */
export function quotasOf({ quotas }) {
  const set = Object.entries(quotas).filter(([, value]) => value !== null);
  return set.map(([name, value]) => `${value} ${name.replaceAll("_", " ")}`).join(", ") || "none";
}
