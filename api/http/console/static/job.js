// A job: its state, the certified gap as it falls, what time is left, and its end.

import { Problem, askJson, events } from "./api.js";
import { lineChart } from "./charts.js";
import { button, el, tell, terms } from "./dom.js";
import { seconds, short, time } from "./formats.js";

const PAUSE = 2000; // milliseconds before a service that has gone away is asked again

/** Show a job until it is done; `again` then shows what there is. */
export async function jobPage(main, job, { signal, again }) {
  const name = job.spec_digest;
  const state = el("p", { class: `state ${job.state}` }, job.state);
  const numbers = el("div", {});
  const chart = el("div", {});
  const path = `/v1/factorizations/${name}`;
  const cancel = button("Cancel", async () => {
    await askJson(path, { method: "DELETE", signal });
  });
  const retry = button("Try again", async () => {
    await askJson(`${path}/retry`, { method: "POST", signal });
    await again();
  });
  const open = job.state === "queued" || job.state === "running";
  main.append(
    el("h1", {}, "Job"),
    el("p", {}, "Spec ", el("code", { class: "digest" }, name)),
    el("p", { class: "hint" }, `Submitted ${time(job.submitted)} UTC. The solve goes on when this page is closed.`),
    ...(job.notes ?? []).map((text) => el("p", { class: "hint" }, `Note: ${text}.`)),
    el("div", { class: "card" }, state, numbers, chart, el("p", { class: "actions" }, open ? cancel : retry)),
  );
  if (!open) {
    numbers.append(el("p", { class: "error" }, job.error?.message ?? "It was cancelled."));
    return;
  }
  const trace = new Trace();
  let phase = "";
  for await (const event of followed(`${path}/events`, signal, state)) {
    if (event.name === "state") {
      state.textContent = event.data.state;
      continue;
    }
    if (event.name !== "progress") break;
    const news = event.data;
    trace.add(news);
    state.textContent = news.phase ? `running: ${news.phase}` : "running";
    if (news.phase && news.phase !== phase) tell(`The job is in its phase ${news.phase}.`);
    phase = news.phase;
    numbers.replaceChildren(progressTerms(news));
    if (trace.series.length) chart.replaceChildren(trace.chart());
  }
  tell("The job has ended.");
  await again();
}

/** Yield the events of a job up to its last; where the service goes away in between, say so and ask again. */
async function* followed(path, signal, state) {
  for (let away = false; ; away = true) {
    try {
      for await (const event of events(path, { signal })) {
        if (away) tell("The service answers again.");
        away = false;
        yield event;
      }
    } catch (error) {
      if (error.name === "AbortError" || (error instanceof Problem && error.status < 500 && error.status !== 429)) throw error;
    }
    if (!away) tell((state.textContent = "The service does not answer. This page asks again until it does."));
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

function progressTerms(news) {
  const gap = news.relative_gap ?? news.class_gap;
  return terms([
    news.phase === "compile" ? ["now", "compiling, once on this machine"] : ["iteration", String(news.iteration)],
    [news.relative_gap === null && news.class_gap !== null ? "gap within the class" : "certified gap", gap === null ? "none known yet" : short(gap, 3)],
    ["so far", seconds(news.seconds)],
    ["left, by the estimate", news.seconds_left === undefined || news.seconds_left === null ? "unknown" : seconds(news.seconds_left)],
  ]);
}

/** Gaps as they came, one line for each phase and kind of gap. */
class Trace {
  constructor() {
    this.series = [];
    this.offset = 0;
    this.last = 0;
  }

  add({ iteration, relative_gap, class_gap, phase }) {
    const gap = relative_gap ?? class_gap;
    if (iteration + this.offset < this.last) this.offset = this.last; // a phase that counts from the beginning
    this.last = iteration + this.offset;
    if (gap === null || !(gap > 0)) return;
    const name = `${phase ?? "solve"}${relative_gap === null ? ", within the class" : ""}`;
    if (this.series.at(-1)?.name !== name) this.series.push({ name, points: [] });
    const { points } = this.series.at(-1);
    if (points.at(-1)?.[0] === this.last) points.at(-1)[1] = gap;
    else points.push([this.last, gap]);
  }

  chart() {
    return lineChart({ title: "Gap to the bound over iterations", series: this.series, x: "iteration", y: "relative gap", logY: true });
  }
}
