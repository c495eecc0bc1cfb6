// A form made from a schema of the OpenAPI document: a new kind of the service appears in it by itself.

import { details, el } from "./dom.js";
import { object } from "./fields.js";

/**
 * A form. `changed` is called after each change; the fields of `seldom` are in a box that is opened on request.
 * `labels` name fields in other words than the schema's, and `nothing` says what a choice is where none is made, by its pointer.
 */
export class SchemaForm {
  constructor(schemas, name, { id, changed = () => {}, seldom = [], labels = {}, nothing = {} }) {
    this.schemas = schemas;
    this.controls = new Map();
    this.id = id;
    this.changed = changed;
    this.labels = labels;
    this.nothing = nothing;
    this.field = object(this, schemas[name], "", "");
    const rest = seldom.map((key) => this.field.parts[key]).filter(Boolean);
    this.node = el("div", {}, this.field.node, rest.length ? details("More fields", el("div", { class: "group" }, rest)) : null);
  }

  /** Return the id of the control at a pointer. */
  idOf(path) {
    return `${this.id}${path.replaceAll("/", "-")}`;
  }

  /** Forget the controls below a pointer, which have left the page. */
  forget(prefix) {
    for (const path of [...this.controls.keys()]) if (path.startsWith(prefix)) this.controls.delete(path);
  }

  /** Return what is filled in. */
  read() {
    return this.field.read();
  }

  /** Fill in a document. */
  write(value) {
    this.field.write(value);
    const filled = [...this.node.querySelectorAll("details input, details select")].some((control) => !["", "none", control.getAttribute("placeholder")].includes(control.value) && control.type !== "checkbox" && !control.selectedOptions?.[0].defaultSelected);
    for (const box of this.node.querySelectorAll("details")) box.open = filled;
    this.changed();
  }

  /** Show what is wrong, each at its field or at the nearest one around it; return what has no field. */
  show(violations) {
    for (const { control, error } of this.controls.values()) {
      control.removeAttribute("aria-invalid");
      error.hidden = true;
      error.textContent = "";
    }
    return violations.filter((violation) => !this.showOne(violation));
  }

  showOne({ pointer, detail }) {
    for (let path = pointer; path; path = path.slice(0, path.lastIndexOf("/"))) {
      const found = this.controls.get(path);
      if (!found) continue;
      found.control.setAttribute("aria-invalid", "true");
      found.error.hidden = false;
      for (let box = found.control.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
      const where = path === pointer ? "" : `${pointer.slice(path.length + 1)}: `;
      found.error.textContent = `${found.error.textContent} ${where}${detail}`.trim();
      return true;
    }
    return false;
  }
}

