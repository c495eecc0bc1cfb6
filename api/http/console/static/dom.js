// Elements, made without markup: what is text stays text.

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element. Attributes whose value is a function listen; null, undefined and false are left out. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return a button that says so if what it does fails. */
export function button(text, action, attributes = {}) {
  const node = el("button", { type: "button", ...attributes }, text);
  node.addEventListener("click", async () => {
    try {
      tell("");
      await action(node);
    } catch (error) {
      if (error.name !== "AbortError") tell(error.message);
    }
  });
  return node;
}

/** Return a list of terms with what each is. Pairs whose second value is null are left out. */
export function terms(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el("dl", { class: "terms" }, shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Return a table that scrolls within its own box; the box can be reached by the keyboard. */
export function table(caption, heads, rows) {
  const head = el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text))));
  const inner = el("table", {}, el("caption", {}, caption), head, el("tbody", {}, rows));
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, inner);
}

/** Return a box that is opened on request. */
export function details(summary, ...children) {
  return el("details", {}, el("summary", {}, summary), children);
}

/** Show one line to everyone, those who listen included. */
export function tell(text) {
  document.getElementById("status").textContent = text;
}
