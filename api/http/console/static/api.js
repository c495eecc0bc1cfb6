// Requests to this service, and its answers: documents, events, bytes, problems.

import { currentKey, keyHeaders } from "./key.js";

/** A refusal, by its problem document. */
export class Problem extends Error {
  constructor(status, document) {
    const more = (document.errors ?? []).map((entry) => `${entry.pointer || "/"}: ${entry.detail}`);
    super(more.length ? `${document.title}. ${more.join("; ")}` : document.detail || document.title);
    this.status = status;
    this.document = document;
    this.violations = document.errors ?? [];
  }
}

/** Return the address of a path of the service, which a proxy may show below a path of its own. */
export const at = (path) => new URL(path.slice(1), document.baseURI).href.split("#")[0];

/** Return the answer to a request. Throws a Problem for a refusal. */
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const typed = sent === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await reached(fetch(at(path), { method, body: sent, headers: { ...typed, ...headers, ...keyHeaders() }, signal, credentials: "omit" }));
  if (answer.ok) return answer;
  const document = await answer.json().catch(() => ({ title: `The service answered ${answer.status}` }));
  const detail = document.detail ?? document.title;
  const refused = `${currentKey() === null ? "This service needs a key" : detail}. Set a key under Key.`;
  throw new Problem(answer.status, { ...document, detail: answer.status === 401 ? refused : detail });
}

/** Return what the network brings. Throws an Error in words of the page where it brings nothing. */
function reached(promise) {
  return promise.catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The service does not answer; is it running?");
  });
}

/** Return a document. */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

/** Yield the events {name, data} of a stream until it ends. */
export async function* events(path, options = {}) {
  const answer = await ask(path, { ...options, headers: { ...options.headers, Accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reached(reader.read());
      if (done) return;
      text += value;
      const frames = text.split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const found = eventOf(frame);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the other side then knows that nobody listens
  }
}

function eventOf(frame) {
  const fields = Object.fromEntries(frame.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
  return fields.event ? { name: fields.event, data: JSON.parse(fields.data) } : null;
}

/** Have the browser save what an address gives. A key goes into a header, so that such a file comes through the page. */
export async function save(path, name) {
  const headers = keyHeaders();
  const address = at(path);
  let href = address;
  if (Object.keys(headers).length) href = URL.createObjectURL(await (await ask(path)).blob());
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  if (href !== address) setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

let asked = null;

/** Return the OpenAPI document, asked for once. */
export function openapi() {
  asked ??= askJson("/openapi.json");
  asked.catch(() => (asked = null));
  return asked;
}

/** Return its schemas. */
export async function schemas() {
  return (await openapi()).components.schemas;
}
