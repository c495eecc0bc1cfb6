// Numbers, times and specs as people read them.

/** Return a number to a few digits. */
export function short(value, digits = 4) {
  if (value === null || value === undefined) return "unknown";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e6 ? String(Number(value.toPrecision(digits))) : Number(value.toPrecision(Math.max(1, digits - 1))).toExponential();
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
  const text = fields.map(([name, value]) => `${name}=${brief(value)}`).join(", ");
  return text ? `${document.kind}(${text})` : document.kind;
}

function brief(value) {
  if (Array.isArray(value)) return value.length > 4 ? `[${value.length} values]` : JSON.stringify(value);
  if (value !== null && typeof value === "object") return value.kind ? part(value) : "{...}";
  const text = typeof value === "number" ? short(value, 5) : String(value);
  return text.length > 40 ? `${text.slice(0, 12)}...` : text;
}

/** Return a spec in one line. */
export function summary(spec) {
  const parts = ["workload", "participation", "objective", "mechanism"].map((name) => part(spec[name]));
  if (spec.optimize_for) parts.push(`optimised for ${part(spec.optimize_for)}`);
  if (spec.sampling) parts.push(`best under ${part(spec.sampling)}`);
  return parts.join(", ");
}
