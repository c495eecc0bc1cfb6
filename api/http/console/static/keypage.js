// The key of this tab.

import { el } from "./dom.js";
import { keyForm } from "./key.js";

/** Show the page on which a key is typed. */
export async function keyPage(main, { again }) {
  main.append(el("h1", {}, "Key"), keyForm(again));
}
