// Which numbers share a chart, and what the chart says in one line.
// Charts whose numbers a run does not have are left out; of a chart that says nothing without one of them, `needs` names it.

/** A series of a chart: the metric's key, its name in the legend, and more. */
function s(key, label, more) {
  return { key, label, ...more };
}

/** The colour of a phase, the same in the chart of seconds and in the timeline. */
function phaseColour(name) {
  const known = ["generate", "learn", "score", "evaluate", "publish", "shape", "save", "report"];
  if (name === "judge") return "--c8";
  if (name === "engines busy") return "--c1"; // as generate
  if (name === "learner busy") return "--c2"; // as learn
  return known.includes(name) ? `--c${known.indexOf(name) + 1}` : "--other";
}

function validationCharts(keys) {
  const sets = [];
  for (const key of keys) {
    const match = /^validation\/(.+)\/accuracy$/.exec(key);
    if (match) sets.push(match[1]);
  }
  const places =
    sets.length > 1 || !keys.has("validation/accuracy")
      ? sets.map((name) => [`validation/${name}/`, ` · ${name}`])
      : [];
  if (keys.has("validation/accuracy")) places.unshift(["validation/", sets.length > 1 ? " · mean of the sets" : ""]);
  const charts = keys.has("validation/loss")
    ? [
        {
          id: "validation/loss",
          group: "Held out",
          title: "Held-out loss",
          unit: "nats",
          says: "Of a supervised run: where it rises while the training loss falls, there are too few examples.",
          series: [s("validation/loss", "held out"), s("train/loss", "training")],
        },
      ]
    : [];
  for (const [prefix, of] of places) {
    const ks = [...keys].filter((key) => key.startsWith(prefix) && /^(pass|maj)@\d+$/.test(key.slice(prefix.length)));
    const order = (key) => (key.includes("maj@") ? 1e6 : 0) + Number(key.split("@").pop());
    ks.sort((a, b) => order(a) - order(b));
    charts.push(
      {
        id: `${prefix}accuracy`,
        group: "Held out",
        title: `Held-out accuracy${of}`,
        unit: "share",
        says:
          "Problems that training never sees. The band is the 95% interval (over seeds: least and greatest); " +
          "greedy is one answer a problem without chance.",
        series: [
          s(`${prefix}accuracy`, "sampled (avg@k)", { low: `${prefix}accuracy_low`, high: `${prefix}accuracy_high` }),
          s(`${prefix}greedy_accuracy`, "greedy"),
        ],
      },
      {
        id: `${prefix}pass`,
        group: "Held out",
        title: `pass@k and maj@k${of}`,
        unit: "share",
        says: "pass@k: one of k samples is right. maj@k: the most frequent answer of k is right.",
        series: ks.filter((key) => !key.endsWith("pass@1")).map((key) => s(key, key.slice(prefix.length))),
      },
      {
        id: `${prefix}length`,
        group: "Held out",
        title: `Held-out length${of}`,
        unit: "tokens",
        says: "Mean length of the answers to held-out problems.",
        series: [s(`${prefix}length_mean`, "sampled"), s(`${prefix}greedy_length_mean`, "greedy")],
      },
      {
        id: `${prefix}truncated`,
        group: "Held out",
        title: `Held-out answers cut off${of}`,
        unit: "share",
        optional: true,
        says: "Answers that met the length limit; they are scored as they are.",
        series: [s(`${prefix}truncated_share`, "sampled"), s(`${prefix}greedy_truncated_share`, "greedy")],
      },
    );
  }
  return charts;
}

/** Charts by data source, of runs that train on several. */
function sourceCharts(keys) {
  const of = (what) => {
    const found = [];
    for (const key of keys) {
      const match = /^source\/(.+)\/(\w+)$/.exec(key);
      if (match && match[2] === what) found.push(s(key, match[1]));
    }
    return found;
  };
  const chart = (what, title, unit, says) => ({
    id: `source-${what}`,
    group: "Training",
    title,
    unit,
    says,
    series: of(what),
  });
  return [
    chart("accuracy", "Training accuracy by source", "share", "Mean accuracy of all that was judged, by data source."),
    chart("kept_share", "Groups kept, by source", "share", "Of the groups judged, those with right and wrong responses."),
    chart("groups", "Groups judged, by source", "count", "What each source brought, rejected groups included."),
    chart("level", "Level by source", "count", "Levels follow the accuracy (data.curriculum)."),
  ];
}

function rewardCharts(keys) {
  const known = /^(raw(_min|_max)?|clamped|accuracy|shaped_(mean|std)|advantage_abs_mean|unscored)(_kept)?$/;
  const names = [];
  for (const key of keys) {
    const match = /^reward\/([^/]+)$/.exec(key);
    if (match && !known.test(match[1]) && !match[1].endsWith("_kept")) names.push(match[1]);
  }
  const reasons = [...keys].filter((key) => key.startsWith("reward/unscored/"));
  return [
    {
      id: "training-accuracy",
      group: "Training",
      title: "Training accuracy, raw and kept",
      unit: "share",
      says:
        "Raw: all that was judged, the policy on its training prompts. " +
        "Kept: groups kept in the step; only mixed ones are, so it is pulled towards 50 %.",
      series: [s("reward/accuracy", "raw"), s("reward/accuracy_kept", "kept")],
    },
    {
      id: "reward",
      group: "Training",
      title: "Reward, raw, kept and shaped",
      unit: "reward",
      says: "Before scaling and penalty (raw, kept), and after them for the groups that trained (shaped).",
      series: [s("reward/raw", "raw"), s("reward/raw_kept", "kept"), s("reward/shaped_mean", "shaped")],
    },
    ...names.map((name) => ({
      id: `reward/${name}`,
      group: "Training",
      title: `Reward: ${name}`,
      unit: "reward",
      says: "One part of the reward, before it is weighted.",
      series: [s(`reward/${name}`, "raw"), s(`reward/${name}_kept`, "kept")],
    })),
    {
      id: "clamped",
      group: "Training",
      title: "Rewards that scaling clamps",
      unit: "share",
      optional: true,
      says: "Trained responses whose reward lay outside the source interval: what differs beyond it teaches nothing.",
      series: [s("reward/clamped", "clamped")],
    },
    {
      id: "advantage",
      group: "Training",
      title: "Spread of rewards and advantages",
      unit: "reward",
      says: "What the gradient has to work with: without spread there is none.",
      series: [s("reward/shaped_std", "std of shaped reward"), s("reward/advantage_abs_mean", "mean |advantage|")],
    },
    {
      id: "loss",
      group: "Training",
      title: "Loss",
      unit: "1",
      says: "The surrogate of policy gradients: its level says little, its jumps do.",
      series: keys.has("validation/loss") ? [] : [s("train/loss", "loss")], // that of a supervised run: beside its held-out one
    },
    {
      id: "unscored",
      group: "Training",
      title: "Responses without a score",
      unit: "count",
      optional: true,
      says: "Verifier failures: they neither vote nor train.",
      series: [s("reward/unscored", "all"), ...reasons.map((key) => s(key, key.slice("reward/unscored/".length)))],
    },
    ...[...keys]
      .filter((key) => key.startsWith("custom/"))
      .map((key) => ({
        id: key,
        group: "Your own",
        title: key.slice("custom/".length),
        unit: "1",
        says: "Share of the tokens with loss that this flag of your loss marks.",
        series: [s(key, "value")],
      })),
  ];
}

/** All charts of a section ("learning", "health", "cost") for runs that have these keys. */
function catalogue(section, keys) {
  const charts = {
    learning: () => [...validationCharts(keys), ...rewardCharts(keys), ...sourceCharts(keys)],
    health: () => HEALTH,
    cost: () => COST,
  }[section]();
  return charts.filter((chart) => !chart.needs || keys.has(chart.needs)).map((chart) => ({ section, ...chart }));
}

const FIRST = ["training-accuracy", "acceptance", "entropy", "length", "gap"];
const FIRST_SUPERVISED = ["validation/loss", "loss", "entropy", "grad", "examples", "rate"];

/** The charts that are drawn first. Of several runs each has one line a run, and is `narrowed` where that leaves out some. */
function firstCharts(keys, several) {
  const all = ["learning", "health", "cost"].flatMap((section) => catalogue(section, keys));
  const heldOut =
    all.find(({ id }) => id === "validation/accuracy") || all.find(({ id }) => /^validation\/.*accuracy$/.test(id));
  const wanted = keys.has("sft/epoch") ? FIRST_SUPERVISED : heldOut ? [heldOut.id, ...FIRST] : FIRST;
  const charts = wanted.map((id) => all.find((spec) => spec.id === id)).filter(Boolean);
  if (!several) return charts;
  return charts.map((spec) => {
    if (spec.series.length < 2) return spec;
    const main = spec.series.find(({ key }) => key === "response/length_mean") || spec.series[0];
    const title = spec.kind === "stack" ? "Groups kept" : spec.title.split(",")[0];
    return { ...spec, id: `first/${spec.id}`, title, says: "", kind: "line", full: false, series: [main], narrowed: true };
  });
}
