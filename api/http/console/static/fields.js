// Fields of a form, made from a JSON schema. Each has a node, read() and write(value); what is empty reads as undefined.

import { el } from "./dom.js";

/** Return the field of a schema. `path` is its JSON pointer; the form knows the schemas and collects the controls. */
export function field(form, schema, path, label, optional = false) {
  const kinds = alternatives(form, schema);
  const real = kinds.filter((kind) => kind.schema !== null);
  const left = optional || real.length < kinds.length;
  if (real.every((kind) => isScalar(kind.schema))) return scalar(form, path, label, real.map((kind) => kind.schema), left, preset(schema));
  const items = real.length === 1 && real[0].schema.items ? settled(form, real[0].schema.items) : null;
  if (items?.enum) return several(form, path, label, { ...items, description: items.description ?? schema.description }, preset(schema));
  if (real.length === 1 && real[0].schema.type === "array") return list(form, path, label, real[0].schema, left);
  if (real.length === 1 && !left) return object(form, real[0].schema, path, label);
  return choice(form, path, label, left ? [{ label: "none", schema: null }, ...real] : real, preset(schema));
}

/** Return what a field is where nothing is said. Objects stand beside the schema's own default, which clients' generators do not take. */
function preset(schema) {
  return schema.default ?? schema["x-default"];
}

function settled(form, schema) {
  let found = schema;
  while (found.$ref) found = form.schemas[found.$ref.split("/").at(-1)];
  return found;
}

function alternatives(form, schema) {
  const found = settled(form, schema);
  const options = found.anyOf ?? found.oneOf;
  // An optimizer and a workload may have one name, as "adam": the first is meant.
  if (options) return options.flatMap((option) => alternatives(form, option)).filter((one, at, all) => all.findIndex((other) => other.label === one.label) === at);
  if (found.type === "null") return [{ label: "none", schema: null }];
  return [{ label: found.properties?.kind?.const ?? (found.type === "array" ? "list" : found.title), schema: found }];
}

function isScalar(schema) {
  return schema.type !== "array" && schema.type !== "object";
}

/** Keep a control with the place for what is wrong with it. */
function kept(form, path, control, hint) {
  const id = form.idOf(path);
  const error = el("p", { class: "error", id: `${id}-error`, hidden: true });
  control.id = id;
  control.setAttribute("aria-describedby", [hint ? `${id}-hint` : "", `${id}-error`].join(" ").trim());
  control.addEventListener("input", () => form.changed());
  form.controls.set(path, { control, error });
  return error;
}

function row(form, path, label, control, hint, inline = false) {
  const error = kept(form, path, control, hint);
  const note = hint ? el("p", { class: "hint", id: `${form.idOf(path)}-hint` }, hint) : null;
  const name = el("label", { for: form.idOf(path) }, label);
  return el("div", { class: inline ? "field inline" : "field" }, inline ? [control, name] : [name, control], note, error);
}

/** Limits from here on are guards that nobody reaches, and are not shown. */
const UNREACHED = 1e6;

function limits(schemas) {
  const words = { minimum: "at least", exclusiveMinimum: "above", maximum: "at most", exclusiveMaximum: "below" };
  const texts = schemas.map((schema) => {
    if (schema.enum) return schema.enum.map((value) => `or "${value}"`).join(" ");
    return Object.entries(words).filter(([name]) => schema[name] !== undefined).filter(([name]) => Math.abs(schema[name]) < UNREACHED).map(([name, word]) => `${word} ${schema[name]}`).join(", ");
  });
  return texts.filter(Boolean).join(" ");
}

function scalar(form, path, label, schemas, optional, preset) {
  const [first] = schemas;
  if (schemas.length === 1 && first.type === "boolean") {
    const control = el("input", { type: "checkbox" });
    control.checked = preset === true;
    const node = row(form, path, label, control, "", true);
    return { node, read: () => (control.checked ? true : undefined), write: (value) => (control.checked = value === true) };
  }
  if (schemas.length === 1 && (first.enum || first.const !== undefined)) {
    const values = first.enum ?? [first.const];
    const control = el("select", {}, optional ? el("option", { value: "" }, "default") : [], values.map((value) => el("option", { value, selected: value === preset }, value)));
    return { node: row(form, path, label, control, ""), read: () => control.value || undefined, write: (value) => (control.value = value ?? preset ?? "") };
  }
  const whole = schemas.some((schema) => schema.type === "integer");
  const numeric = whole || schemas.some((schema) => schema.type === "number");
  const names = schemas.flatMap((schema) => schema.examples ?? []);
  const offered = names.length ? el("datalist", { id: `${form.idOf(path)}-names` }, names.map((name) => el("option", { value: name }))) : null;
  const control = el("input", { type: "text", list: offered?.id, inputmode: numeric ? (whole ? "numeric" : "decimal") : "text", autocomplete: "off", spellcheck: "false", required: !optional, placeholder: preset ?? (optional ? "not set" : null) });
  const read = () => {
    const text = control.value.trim();
    if (text === "") return undefined;
    return numeric && Number.isFinite(Number(text)) ? Number(text) : text; // the service says what is wrong with it
  };
  const node = row(form, path, label, control, limits(schemas));
  if (offered) node.append(offered);
  return { node, read, write: (value) => (control.value = value ?? "") };
}

/** Boxes to tick, one for each value; those of the preset read as nothing said. What is wrong with any of them stands below the first. */
function several(form, path, label, { enum: values, description }, preset = []) {
  const boxes = values.map((value) => el("input", { type: "checkbox", id: `${form.idOf(path)}-${value}`, value, input: () => form.changed() }));
  const error = kept(form, path, boxes[0], description);
  const rows = boxes.map((box) => el("div", { class: "field inline" }, box, el("label", { for: box.id }, box.value)));
  const node = el("fieldset", {}, el("legend", {}, label), el("div", { class: "ticks" }, rows), description ? el("p", { class: "hint", id: `${form.idOf(path)}-hint` }, description.replaceAll("`", "")) : null, error);
  const write = (value) => boxes.forEach((box) => (box.checked = (value ?? preset).includes(box.value)));
  write(undefined);
  const read = () => {
    const ticked = boxes.filter((box) => box.checked).map((box) => box.value);
    return `${ticked}` === `${preset}` ? undefined : ticked;
  };
  return { node, read, write };
}

function list(form, path, label, schema, optional) {
  const numbers = schema.items?.type === "number" || schema.items?.type === "integer";
  const nested = schema.items?.type === "array";
  const control = el("textarea", { rows: nested ? 4 : 2, spellcheck: "false", required: !optional });
  const written = nested ? "rows of numbers as JSON, such as [[1, 0], [1, 1]]" : numbers ? "numbers with commas or spaces between" : "names with commas between";
  const hint = [schema.description?.replace(/\.$/, ""), written].filter(Boolean).join("; ");
  const read = () => {
    const text = control.value.trim();
    if (text === "") return undefined;
    if (nested) return parsed(text);
    const items = text.split(/[\s,]+/).filter(Boolean);
    return numbers ? items.map((item) => (Number.isFinite(Number(item)) ? Number(item) : item)) : items;
  };
  const write = (value) => (control.value = value === undefined || value === null ? "" : nested ? JSON.stringify(value) : value.join(", "));
  return { node: row(form, path, label, control, hint), read, write };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Return the fields of an object; without a label they stand where they are. */
export function object(form, schema, path, label) {
  const needed = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties).filter((name) => name !== "kind");
  names.sort((a, b) => Number(needed.has(b)) - Number(needed.has(a)));
  const fields = names.map((name) => [name, field(form, schema.properties[name], `${path}/${name}`, form.labels[name] ?? name.replaceAll("_", " "), !needed.has(name) && preset(schema.properties[name]) === undefined)]);
  const kind = schema.properties.kind?.const;
  const nodes = fields.map(([, inner]) => inner.node);
  const read = () => {
    const found = Object.fromEntries(fields.map(([name, inner]) => [name, inner.read()]).filter(([, value]) => value !== undefined));
    return kind === undefined ? found : { kind, ...found };
  };
  const write = (value) => fields.forEach(([name, inner]) => inner.write(value?.[name]));
  const node = label ? el("fieldset", {}, el("legend", {}, label), nodes) : el("div", { class: "group" }, nodes);
  return { node, read, write, parts: Object.fromEntries(fields.map(([name, inner]) => [name, inner.node])) };
}

function choice(form, path, label, kinds, preset) {
  const control = el("select", {}, kinds.map((kind) => el("option", { value: kind.label }, (kind.schema === null && form.nothing[path]) || kind.label)));
  const body = el("div", { class: "body" });
  const hint = el("p", { class: "hint", id: `${form.idOf(path)}-hint` });
  let inner = null;
  const show = () => {
    const { schema } = kinds.find((kind) => kind.label === control.value);
    form.forget(`${path}/`);
    hint.textContent = (schema?.description ?? "").split("\n")[0].replaceAll("`", "");
    if (schema === null) inner = null;
    else if (schema.type === "object") inner = object(form, schema, path, "");
    else inner = field(form, schema, `${path}/items`, `${label} as a list`);
    body.replaceChildren(...(inner ? [inner.node] : []));
  };
  const labelOf = (value) => {
    if (value === undefined || value === null) return kinds.find((kind) => kind.schema === null)?.label ?? preset?.kind ?? kinds[0].label;
    return Array.isArray(value) ? "list" : value.kind ?? kinds.at(-1).label;
  };
  const write = (value) => {
    control.value = labelOf(value);
    show();
    inner?.write(value);
  };
  const error = kept(form, path, control, "hint");
  control.addEventListener("input", show, { capture: true });
  write(preset ?? undefined);
  const node = el("fieldset", {}, el("legend", {}, label), el("div", { class: "field" }, el("label", { for: form.idOf(path) }, `kind of ${label}`), control, hint, error), body);
  return { node, read: () => inner?.read(), write };
}
