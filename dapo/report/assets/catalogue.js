// Which charts the page draws: those that came with its data, made from dapo/metrics/charts.yaml.

const FIRST = ["training-accuracy", "acceptance", "entropy", "length", "gap"];
const FIRST_SUPERVISED = ["validation/loss", "loss", "entropy", "grad", "examples", "rate"];

/** The charts that are drawn first. Of several runs each has one line a run, and is `narrowed` where that leaves out some. */
function firstCharts({ charts, runs }, several) {
  const heldOut = charts.find(({ id }) => /^validation\/(.*\/)?accuracy$/.test(id)); // that of all sets comes first
  const wanted = runs.some((run) => run.supervised) ? FIRST_SUPERVISED : heldOut ? [heldOut.id, ...FIRST] : FIRST;
  const first = wanted.map((id) => charts.find((spec) => spec.id === id)).filter(Boolean);
  if (!several) return first;
  return first.map((spec) => {
    if (spec.series.length < 2) return spec;
    const main = spec.series.find(({ key }) => key === "response/length_mean") || spec.series[0];
    const title = spec.kind === "stack" ? "Groups kept" : spec.title.split(",")[0];
    return { ...spec, id: `first/${spec.id}`, title, says: "", kind: "line", series: [main], narrowed: true };
  });
}
