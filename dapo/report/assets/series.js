// From runs to the columns of a chart: one x for all charts, a row per line, colours and dashes that tell rows apart.

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2], [1, 4], [12, 4], [6, 2, 2, 2, 2, 2]];
const JOINED = 3; // Missing numbers in a row that a line goes over.
const MARKERS = ["circle", "square", "triangle", "diamond", "cross"];

/** What is drawn as one: a run, or the seeds of one recipe as a band. */
function entitiesOf(bundle, seeds) {
  const entities = [];
  const families = new Set();
  for (const run of bundle.runs) {
    const band = own(bundle.bands, run.family);
    if (!band || seeds === "single") {
      entities.push({ label: run.label, run: run.label, curve: (key) => curveOf(run, key) });
    } else if (!families.has(run.family)) {
      families.add(run.family);
      const members = bundle.runs.filter((other) => other.family === run.family);
      const named = bundle.families.find((one) => one.family === run.family);
      const label =
        named && named.name
          ? `${named.name} (${plural(members.length, "seed")})`
          : `${members[0].label} and ${plural(members.length - 1, "other seed")}`;
      entities.push({ label, run: null, members: members.map((one) => one.label), curve: (key) => bandOf(band, key) });
    }
  }
  return entities.map((entity, index) => ({ ...entity, index }));
}

function curveOf(run, key) {
  const values = own(run.curves.values, key);
  if (!values || !values.some((v) => v !== null)) return null;
  return {
    steps: run.curves.steps,
    values,
    low: own(run.curves.low, key) || null,
    high: own(run.curves.high, key) || null,
  };
}

function bandOf(band, key) {
  const found = own(band, key);
  return found && found.mean.some((v) => v !== null)
    ? { steps: found.steps, values: found.mean, low: found.low, high: found.high }
    : null;
}

function allKeys(bundle) {
  const keys = new Set();
  for (const run of bundle.runs) {
    for (const [key, values] of Object.entries(run.curves.values)) if (values.some((v) => v !== null)) keys.add(key);
  }
  return keys;
}

function unionOfSteps(bundle) {
  const steps = new Set();
  for (const run of bundle.runs) for (const step of run.curves.steps) steps.add(step);
  for (const family of Object.values(bundle.bands)) {
    for (const band of Object.values(family)) for (const step of band.steps) steps.add(step);
  }
  return [...steps].sort((a, b) => a - b);
}

/** `values` given at `steps`, laid onto `x`: undefined where there is no such step (the line goes on). */
function aligned(x, steps, values) {
  if (x.length === steps.length) return values;
  const out = new Array(x.length);
  let i = 0;
  for (let j = 0; j < x.length; j += 1) {
    while (i < steps.length && steps[i] < x[j]) i += 1;
    if (i < steps.length && steps[i] === x[j]) out[j] = values[i];
  }
  return out;
}

/** Whether numbers come at even distances, such as every tenth step. */
function regular(values) {
  const at = [];
  values.forEach((v, i) => v !== null && at.push(i));
  const gaps = at.slice(1).map((i, n) => i - at[n]);
  const usual = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)];
  return gaps.length > 1 && gaps.filter((gap) => gap === usual).length >= gaps.length * 0.8 && usual > JOINED;
}

/** A line goes on over a few missing numbers (they become undefined) and ends before more (they stay null). */
function joined(values, spans) {
  if (spans) return values;
  const out = [...values];
  let last = -1;
  values.forEach((v, i) => {
    if (v === null || v === undefined) return;
    if (last >= 0 && i - last <= JOINED + 1) for (let k = last + 1; k < i; k += 1) out[k] = undefined;
    last = i;
  });
  return out;
}

/** The rows of a chart, or [] where the runs have none of its numbers. */
function rowsOf(spec, entities, x) {
  const rows = [];
  const several = entities.length > 1;
  spec.series.forEach((series, number) => {
    for (const entity of entities) {
      const curve = entity.curve(series.key);
      if (!curve) continue;
      if ((series.optional || spec.optional) && curve.values.every((v) => v === null || v === 0)) continue;
      const interval =
        entity.run !== null && series.low ? [entity.curve(series.low), entity.curve(series.high)] : [null, null];
      const low = interval[0] ? interval[0].values : curve.low;
      const high = interval[1] ? interval[1].values : curve.high;
      const measured = curve.values.filter((v) => v !== null).length;
      const spans = series.key.startsWith("validation/") || regular(curve.values);
      rows.push({
        key: series.key,
        entity: several && spec.series.length > 1 ? entity.label : null,
        series: series.label,
        label: several ? (spec.series.length > 1 ? `${entity.label} · ${series.label}` : entity.label) : series.label,
        colour: !several && series.colour ? series.colour : COLOURS[(several ? entity.index : number) % COLOURS.length],
        dash: DASHES[(several && spec.series.length === 1 ? entity.index : number) % DASHES.length],
        marker: several ? MARKERS[entity.index % MARKERS.length] : MARKERS[number % MARKERS.length],
        sparse: measured * 2 < curve.values.length || series.key.startsWith("validation/"),
        spans,
        values: joined(aligned(x, curve.steps, curve.values), spans),
        low: low && high ? joined(aligned(x, curve.steps, low), spans) : null,
        high: low && high ? joined(aligned(x, curve.steps, high), spans) : null,
        interval: interval[0] ? "interval" : curve.low ? (entity.run === null ? "seeds" : "thinned") : "",
      });
    }
  });
  return rows;
}

/** Charts of one spec: stacks cannot be laid over one another, so each run gets its own. */
function chartsOf(spec, entities, x) {
  if (spec.kind !== "stack" || entities.length === 1) return [{ spec, rows: rowsOf(spec, entities, x) }];
  return entities.map((entity) => ({
    spec: {
      ...spec,
      id: `${spec.id}@${entity.index}`,
      title: `${spec.title} · ${entity.label}`,
      of: entity.members || [entity.run],
    },
    rows: rowsOf(spec, [entity], x),
  }));
}

/** Running sums of the rows, for a stack. A missing number counts as nothing where others are there. */
function stacked(rows) {
  if (!rows.length) return [];
  const sums = new Array(rows[0].values.length).fill(0);
  return rows.map((row) =>
    row.values.map((value, i) => {
      if (value === null || value === undefined)
        return rows.every((other) => other.values[i] === null || other.values[i] === undefined) ? null : sums[i];
      sums[i] += value;
      return sums[i];
    }),
  );
}

/** In words, for those who do not see the chart. */
function inWords(spec, rows, x) {
  const parts = rows.map((row) => {
    const at = [];
    row.values.forEach((v, i) => v !== null && v !== undefined && at.push(i));
    if (!at.length) return `${row.label}: nothing measured`;
    const all = at.map((i) => row.values[i]);
    const show = (v) => measured(v, spec.unit);
    const [first, last] = [at[0], at[at.length - 1]];
    const ends = [
      `first ${show(row.values[first])} at step ${x[first]}`,
      `last ${show(row.values[last])} at step ${x[last]}`,
    ];
    return `${row.label}: ${ends.join(", ")}, least ${show(Math.min(...all))}, greatest ${show(Math.max(...all))}`;
  });
  return `${spec.title}. ${parts.join(". ")}.`;
}
