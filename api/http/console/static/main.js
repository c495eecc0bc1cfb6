// The page's pages, by the part of the address after #.

import { comparePage } from "./compare.js";
import { composePage } from "./compose.js";
import { documentationPage } from "./documentation.js";
import { el, tell } from "./dom.js";
import { factorizationPage } from "./factorization.js";
import { keyPage } from "./keypage.js";
import { keysPage, mayLookAfterKeys } from "./keys.js";
import { recommendPage } from "./recommend.js";
import { resultsPage } from "./results.js";

const PAGES = { compose: composePage, results: resultsPage, recommend: recommendPage, compare: comparePage, key: keyPage, keys: keysPage, documentation: documentationPage, f: factorizationPage };
const TITLES = { compose: "Compose", results: "Jobs and results", recommend: "Recommend", compare: "Compare", key: "Key", keys: "Keys", documentation: "Documentation", f: "Factorization" };

const main = document.getElementById("main");
let leaving = new AbortController();
let first = true;

async function show() {
  leaving.abort(); // what the page before still asks or draws
  leaving = new AbortController();
  const { signal } = leaving;
  const [name, ...rest] = (location.hash.slice(2) || "recommend").split("/");
  const page = PAGES[name] ?? recommendPage;
  const next = el("div", {});
  document.title = `${TITLES[name] ?? "Recommend"} · factorize`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  mayLookAfterKeys().then((may) => (document.getElementById("keys-link").hidden = !may));
  tell("");
  main.replaceChildren(next);
  if (!first) main.focus();
  first = false;
  try {
    await page(next, { signal, name: rest[0] ?? null, again: show });
  } catch (error) {
    if (error.name !== "AbortError") next.append(...(next.querySelector("h1") ? [] : [el("h1", {}, TITLES[name] ?? "factorize")]), el("p", { class: "error", role: "alert" }, error.message));
  }
}

addEventListener("hashchange", show);
show();
