// The key of this tab, and what its holder may use.

import { askJson } from "./api.js";
import { el, terms } from "./dom.js";
import { currentKey, keyForm } from "./key.js";
import { quotasOf } from "./keys.js";

/** Show the page on which a key is typed; with a key, whose it is and its quotas. */
export async function keyPage(main, { signal, again }) {
  main.append(el("h1", {}, "Key"), keyForm(again));
  if (currentKey() === null) return;
  const caller = await askJson("/v1/caller", { signal });
  main.append(
    el(
      "section",
      { class: "card", "aria-labelledby": "caller" },
      el("h2", { id: "caller" }, "Your key"),
      terms([
        ["name", caller.name],
        ["scopes", caller.scopes.join(", ")],
        ["quotas", quotasOf(caller)],
      ]),
    ),
  );
}
