// Numbers, times and specs as people read them.

/** Return a number to a few digits. */
export function short(value, digits = 4) {
  if (value === null || value === undefined) return "unknown";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e6 ? String(Number(value.toPrecision(digits))) : Number(value.toPrecision(Math.max(1, digits - 1))).toExponential();
}

function rounded(value, digits, sign) {
  const near = Number(value.toPrecision(digits));
  const unit = 10 ** (Math.floor(Math.log10(value)) - digits + 1);
  return String(sign * (near - value) < 0 ? Number((near + sign * unit).toPrecision(digits)) : near);
}

/** Return a positive number in a few digits that are not below it, as less noise would protect less. */
export function enough(value, digits) {
  return rounded(value, digits, 1);
}

/** Return a positive number in a few digits that are not above it, as a lower bound is shown. */
export function floored(value, digits) {
  return rounded(value, digits, -1);
}

/** Return a ratio above zero in percent. */
export function percent(value) {
  return value === null ? "unknown" : `${short(100 * value, 3)} %`;
}

/** Return a time in the unit that fits it. */
export function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 120) return `${value < 10 ? Number(value.toPrecision(2)) : Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

/** Return a size in the unit that fits it. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) [value, power] = [value / 1024, power + 1];
  return `${power ? value.toPrecision(3) : value} ${units[power]}`;
}

/** Return a time of the service as `2026-01-31 12:00:00` in UTC. */
export function time(text) {
  return `${text.slice(0, 10)} ${text.slice(11, 19)}`;
}

/** Return a part of a spec as `kind(field=value)`. */
export function part(document) {
  const fields = Object.entries(document).filter(([name]) => name !== "kind");
  const named = ([name, value]) => (name === "learning_rates" && Array.isArray(value) && schedule(value)) || brief(value);
  const text = fields.map((field) => `${field[0]}=${named(field)}`).join(", ");
  return text ? `${document.kind}(${text})` : document.kind;
}

function brief(value) {
  if (Array.isArray(value)) return value.length > 4 ? `[${value.length} values]` : JSON.stringify(value);
  if (value !== null && typeof value === "object") return value.kind ? part(value) : "{...}";
  const text = typeof value === "number" ? short(value, 5) : String(value);
  return text.length > 60 ? `${text.slice(0, 12)}...` : text;
}

const CLOSE = 1e-9; // rates of a peak of 1 that are nearer to a schedule's than this bear its name

/** Return the named schedule (docs/spec.md) that has these learning rates, or null; as factorize/format/labels.py does. */
export function schedule(rates) {
  const n = rates.length;
  const flat = rates.findIndex((rate) => rate !== 1);
  const top = rates.indexOf(1);
  if (n < 5 || flat < 0 || top < 0 || rates.some((rate) => rate > 1)) return null;
  const last = rates[n - 1];
  const warmup = rates[Math.min(top + 1, n - 1)] === 1 ? top + 1 : 0;
  const steps = (count, value) => Array.from({ length: count }, (_, i) => value(i));
  const found = [];
  for (const [name, end] of warmup ? [["warmup_cosine", n - warmup]] : [["cosine", n], ["cosine_to_last", n - 1]]) {
    const half = steps(n - warmup, (i) => (1 + Math.cos((Math.PI * i) / end)) / 2);
    const low = half.at(-1) ?? 1;
    const final = low < 1 ? Number(((last - low) / (1 - low)).toFixed(9)) : 0;
    found.push([name, { warmup, final }, [...steps(warmup, (i) => (i + 1) / warmup), ...half.map((part) => final + (1 - final) * part)]]);
  }
  if (flat) {
    const down = steps(n - flat, (i) => 1 - ((1 - last) * (i + 1)) / (n - flat));
    found.push(["linear_cooldown", { steps: n - flat, final: last }, [...Array(flat).fill(1), ...down]]);
    found.push(["step", { every: flat, factor: rates[flat] }, steps(n, (i) => rates[flat] ** Math.floor(i / flat))]);
  }
  const fits = found.find(([, , values]) => values.every((value, i) => Math.abs(value - rates[i]) < CLOSE));
  if (!fits) return null;
  const words = Object.entries(fits[1]).filter(([, value]) => value);
  return words.length ? `${fits[0]}(${words.map(([name, value]) => `${name}=${short(value, 6)}`).join(", ")})` : fits[0];
}

/** Return a spec in one line. */
export function summary(spec) {
  const parts = ["workload", "participation", "objective", "mechanism"].map((name) => part(spec[name]));
  if (spec.optimize_for) parts.push(`optimised for ${part(spec.optimize_for)}`);
  if (spec.sampling) parts.push(`best under ${part(spec.sampling)}`);
  return parts.join(", ");
}
