// Numbers as a person reads them. Units are those of the glossary.

const MISSING = "–";

function number(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (digits !== undefined) return group(value.toFixed(digits));
  if (Number.isInteger(value) && size < 1e15) return group(String(value));
  if (size === 0) return "0";
  if (size >= 1000) return group(value.toFixed(0));
  if (size >= 100) return minus(value.toFixed(1));
  if (size >= 1) return minus(value.toFixed(2));
  if (size >= 0.001) return trimmed(value.toPrecision(3));
  return scientific(value);
}

function scientific(value) {
  const [head, power] = value.toExponential(1).split("e");
  return `${head}e${Number(power)}`.replace("-", "−").replace("e-", "e−");
}

function trimmed(text) {
  return minus(text.includes("e") ? text : text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, ""));
}

function minus(text) {
  return text.replace("-", "−");
}

function group(text) {
  const [whole, part] = text.split(".");
  const spaced = whole.replace("-", "").length > 4 ? whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") : whole;
  return minus(part === undefined ? spaced : `${spaced}.${part}`);
}

function percent(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value * 100);
  const places = digits !== undefined ? digits : size >= 1 || size === 0 ? 1 : size >= 0.1 ? 2 : 3;
  return `${minus((value * 100).toFixed(places))}%`;
}

function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value < 0) return minus(`-${seconds(-value)}`);
  if (value < 0.001) return value === 0 ? "0 s" : `${number(value * 1e6, 0)} µs`;
  if (value < 1) return `${trimmed((value * 1000).toPrecision(3))} ms`;
  if (value < 60) return `${trimmed(value.toPrecision(3))} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${number(Math.floor(whole / 3600))} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** A number with many digits left out: 451489 -> 451 k. For axes and small print. */
function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  for (const [limit, letter] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (size >= limit) return `${trimmed((value / limit).toPrecision(3))} ${letter}`;
  }
  return number(value);
}

/** A value of a metric with its unit. */
function measured(value, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (unit === "share") return percent(value);
  if (unit === "seconds") return seconds(value);
  if (unit === "count" || unit === "tokens" || unit === "steps")
    return Math.abs(value) >= 1e6 ? short(value) : number(value);
  if (unit === "MiB") return value >= 10240 ? `${number(value / 1024, 1)} GiB` : `${number(value, 0)} MiB`;
  return number(value);
}

/** Numbers of an axis: as many digits as their distance needs. */
function ticks(splits, unit) {
  const numbers = splits.filter((v) => v !== null);
  const gap = numbers.length > 1 ? Math.abs(numbers[1] - numbers[0]) : 1;
  const most = Math.max(...numbers.map(Math.abs), 0);
  const scale = unit === "share" ? 100 : 1;
  let digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(gap * scale) + 1e-9)));
  if (digits < 6 && Math.abs(gap * scale * 10 ** digits - Math.round(gap * scale * 10 ** digits)) > 1e-6) digits += 1;
  return splits.map((v) => {
    if (v === null) return "";
    if (v === 0 && unit !== "share") return "0";
    if (unit === "share") return `${minus((v * 100).toFixed(digits))}%`;
    if (unit === "seconds" && most > 0 && most < 0.1) return `${trimmed((v * 1000).toPrecision(3))} ms`;
    if (v !== 0 && most < 0.001) return scientific(v);
    if (most >= 10000) return short(v);
    return minus(v.toFixed(digits));
  });
}

/** A moment, in the reader's own time zone. */
function moment(unix) {
  if (unix === null || unix === undefined || !Number.isFinite(unix)) return MISSING;
  const date = new Date(unix * 1000);
  if (Number.isNaN(date.getTime())) return MISSING;
  const two = (n) => String(n).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

function plural(count, word, words) {
  return `${number(count)} ${count === 1 ? word : words || `${word}s`}`;
}

/** How a run stands: its word, sign and colour. Success is more than an end: the page of a run decides. */
const STATES = {
  running: ["running", "▶", "live"],
  finished: ["finished", "✓", ""],
  interrupted: ["interrupted", "‖", "warn"],
  unfilled: ["batch not filled", "◔", "bad"],
  failed: ["failed", "✗", "bad"],
  killed: ["killed", "✗", "bad"],
  unknown: ["state unknown", "?", ""],
};
