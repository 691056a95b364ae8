// The first screen: how each run stands or ended, what came of it in words and numbers, and what is wrong.

const STATES = {
  running: ["running", "▶", "live"],
  finished: ["finished", "✓", "good"],
  interrupted: ["interrupted", "‖", "warn"],
  unfilled: ["batch not filled", "◔", "bad"],
  failed: ["failed", "✗", "bad"],
  killed: ["killed", "✗", "bad"],
  unknown: ["state unknown", "?", ""],
};
const TONES = { good: "✓ ", bad: "✗ ", warn: "! ", "": "" };

function badge(status) {
  const [word, sign, tone] = own(STATES, status.state) || STATES.unknown;
  return el(
    "span",
    { class: `badge ${tone}`, "data-state": status.state },
    el("span", { "aria-hidden": "true" }, `${sign} `),
    word,
  );
}

function definition(page, key) {
  const line = key ? own(page.bundle.glossary, key) : null;
  return line ? `${key} (${unitName(line.unit)}): ${line.meaning}` : "";
}

function header(page, root) {
  const name = el("div", { class: "names" });
  put(
    root,
    el(
      "div",
      { class: "bar" },
      page.live ? null : el("span", { class: "mark", "aria-hidden": "true" }, "dapo"),
      name,
      el("div", { class: "side" }, page.freshness, theme.control()),
    ),
    page.nav,
  );
  return () => {
    const runs = page.bundle.runs;
    const title = runs.length === 1 ? [inline(runs[0].label, 80)] : [`${runs.length} runs`];
    put(
      name,
      el("h1", {}, title),
      runs.length === 1
        ? [badge(runs[0].status), alarm(runs[0])]
        : el(
            "ul",
            { class: "runs" },
            runs.map((run) => el("li", {}, inline(run.label, 40), " ", badge(run.status), alarm(run))),
          ),
    );
  };
}

/** Beside the state: a run can finish and be badly wrong. */
function alarm(run) {
  const count = urgentOf(run).length;
  return count
    ? el("a", { href: "#warnings", class: "badge bad alarm" }, `✗ ${plural(count, "thing")} badly wrong`)
    : null;
}

/** "step 40 of 60 · steps took 23 s · ended 2026-01-01 12:00". A resumed run rests between its sessions. */
function facts(run) {
  const { step, steps, started, updated, state } = run.status;
  const parts = [steps ? `step ${number(step)} of ${number(steps)}` : `step ${number(step)}`];
  const took = run.tiles.find((one) => one.key === "time/step" && /^time in steps/i.test(one.label));
  if (took) parts.push(`steps took ${oneLine(took.value, 40)}`);
  if (started !== null) parts.push(`started ${moment(started)}`);
  if (updated !== null) parts.push(`${state === "running" ? "last heard of" : "ended"} ${moment(updated)}`);
  if (run.seed !== null) parts.push(`seed ${run.seed}`);
  return parts.join(" · ");
}

function progress(run) {
  const { status } = run;
  if (!status.steps) return null;
  const share = Math.max(0, Math.min(1, status.step / status.steps));
  const [, , usual] = own(STATES, status.state) || STATES.unknown;
  const tone = usual === "good" && urgentOf(run).length ? "" : usual;
  return el(
    "div",
    {
      class: `progress ${tone}`,
      role: "progressbar",
      "aria-valuemin": 0,
      "aria-valuemax": status.steps,
      "aria-valuenow": status.step,
      "aria-label": "Steps done",
    },
    el("span", { style: { width: `${(share * 100).toFixed(1)}%` } }),
  );
}

/** What went wrong, where the run did not end well. */
function banner(run, several) {
  const { state, title, said, log } = run.status;
  if (state === "finished" || (state === "running" && !said)) return null;
  const [, sign, tone] = own(STATES, state) || STATES.unknown;
  const lines = log.join("\n");
  return el(
    "div",
    { class: `banner ${tone}`, role: tone === "bad" ? "alert" : "note" },
    el("p", { class: "title" }, el("span", { "aria-hidden": "true" }, `${sign} `), visible(title)),
    said ? el("p", { class: "said" }, worded(said)) : null,
    lines.trim()
      ? el(
          "details",
          {
            open: (state === "failed" || state === "killed") && !several,
            "data-key": `log-${run.label}`,
            on: { toggle: (event) => toItsEnd(event.currentTarget) },
          },
          el("summary", {}, `The end of its log (${plural(log.length, "line")})`),
          textBlock(lines, "The end of the run's log", "log"),
        )
      : null,
  );
}

/** The last lines of a log say what ended the run. */
function toItsEnd(details) {
  const block = details.querySelector("pre");
  if (details.open && block) block.scrollTop = block.scrollHeight;
}

/** A number and its unit stay on one line. */
function kept(value) {
  return value.replace(/(\d) (?=[^\d\s(])/g, "$1\u00a0").replace(/(→|->) (?=\d)/g, "$1\u00a0");
}

function tile(page, one) {
  const meaning = definition(page, one.key);
  return el(
    "div",
    { class: `tile ${one.tone}` },
    el(
      "dt",
      {},
      visible(one.label),
      meaning
        ? el(
            "details",
            { class: "meaning", "data-key": `tile-${one.label}` },
            el("summary", { "aria-label": `What ${one.label} means` }, "?"),
            el("p", {}, visible(meaning)),
          )
        : null,
    ),
    el(
      "dd",
      {},
      el(
        "b",
        {},
        one.tone && one.tone !== "good" ? el("span", { "aria-hidden": "true" }, TONES[one.tone]) : null,
        visible(kept(one.value)),
      ),
      one.detail ? el("small", {}, visible(one.detail)) : null,
    ),
  );
}

/** Whether a sentence says again what was just said. */
function repeats(sentence, said) {
  const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) || [];
  const known = new Set(words(said));
  const own = words(sentence);
  return own.length > 0 && own.filter((word) => known.has(word)).length >= own.length * 0.7;
}

function notes(run) {
  if (!run.notes.length) return null;
  return el(
    "details",
    { class: "notes", "data-key": `notes-${run.label}` },
    el("summary", {}, `${plural(run.notes.length, "note")} on what could not be read`),
    el(
      "ul",
      {},
      run.notes.map((note) => el("li", {}, visible(note))),
    ),
  );
}

/** Whether the banner of a run has told this sentence. */
function tells(run, sentence) {
  return banner(run) !== null && repeats(sentence, `${run.status.title} ${run.status.said} the run of`);
}

function outcomeOfOne(page, run) {
  const above = banner(run);
  // What the banner has told is left out, and the first thing after it is whether the run learned.
  const [lead, ...rest] = run.sentences.filter((one, i) => i > 0 || !above || !tells(run, one));
  return [
    above,
    lead ? el("p", { class: "lead" }, worded(lead)) : null,
    el("p", { class: "facts" }, facts(run)),
    progress(run),
    urgent(page, run),
    rest.length
      ? el(
          "div",
          { class: "sentences" },
          rest.map((one) => el("p", {}, worded(one))),
        )
      : null,
    notes(run),
  ];
}

function comparison(page, runs) {
  const labels = new Map();
  for (const run of runs) for (const one of run.tiles) if (!labels.has(one.label)) labels.set(one.label, one.key);
  const cell = (run, label) => {
    const one = run.tiles.find((other) => other.label === label);
    return el(
      "td",
      { class: one ? one.tone : "" },
      one ? [el("b", {}, visible(one.value)), one.detail ? el("small", {}, visible(one.detail)) : null] : MISSING,
    );
  };
  const rows = [...labels.keys()];
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "The runs side by side" },
    el(
      "table",
      { class: "compare" },
      el("caption", {}, "The runs side by side"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Run"),
          rows.map((label) => el("th", { scope: "col", title: definition(page, labels.get(label)) }, visible(label))),
        ),
      ),
      el(
        "tbody",
        {},
        runs.map((run) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, runMark(page, run), inline(run.label, 60), " ", badge(run.status)),
            rows.map((label) => cell(run, label)),
          ),
        ),
      ),
    ),
  );
}

/** The mark that a run's lines carry in the charts. */
function runMark(page, run) {
  const entity = page.entities.find((one) => one.run === run.label || (one.members || []).includes(run.label));
  if (!entity || page.entities.length < 2) return null;
  return swatch(
    {
      colour: COLOURS[entity.index % COLOURS.length],
      dash: DASHES[entity.index % DASHES.length],
      marker: MARKERS[entity.index % MARKERS.length],
    },
    false,
  );
}

class Outcome {
  constructor(root, page) {
    this.page = page;
    this.words = el("div", { class: "words" });
    this.hero = el("div", { class: "hero" });
    root.append(el("div", { class: "opening" }, this.words, this.hero));
    this.under = el("div", {});
    root.append(this.under);
    this.chart = null;
  }

  update(keys, x) {
    const { page } = this;
    const runs = page.bundle.runs;
    if (runs.length < 2)
      put(
        this.under,
        runs.length && runs[0].tiles.length
          ? el(
              "dl",
              {
                class: "tiles",
                style: { "--columns": Math.ceil(runs[0].tiles.length / Math.ceil(runs[0].tiles.length / 7)) },
              },
              runs[0].tiles.map((one) => tile(page, one)),
            )
          : null,
      );
    if (!runs.length) put(this.words, el("p", { class: "lead" }, "This page holds no run."));
    else if (runs.length === 1) put(this.words, outcomeOfOne(page, runs[0]));
    else {
      put(
        this.words,
        runs.map((run) =>
          el(
            "article",
            { class: "ofrun" },
            el("h3", {}, runMark(page, run), inline(run.label, 80), " ", badge(run.status)),
            banner(run, true),
            run.sentences
              .slice(0, 1)
              .filter((one) => !tells(run, one))
              .map((one) => el("p", { class: "lead" }, worded(one))),
            el("p", { class: "facts" }, facts(run)),
            urgentInShort(page, run),
            run.sentences.length > 1
              ? el(
                  "details",
                  { "data-key": `words-${run.label}` },
                  el("summary", {}, "More"),
                  run.sentences.slice(1).map((one) => el("p", {}, worded(one))),
                )
              : null,
            notes(run),
          ),
        ),
      );
      put(this.under, comparison(page, runs));
    }
    const specs = [...catalogue("learning", keys)];
    const spec =
      specs.find((one) => one.id === "validation/accuracy") ||
      specs.find((one) => one.id.endsWith("/accuracy")) ||
      specs.find((one) => one.id === "training-accuracy");
    const usable = [
      spec,
      specs.find((one) => one.id === "training-accuracy"),
      catalogue("health", keys).find((one) => one.id === "acceptance"),
    ].filter(Boolean);
    const first = usable
      .map((one) => ({ spec: one, rows: rowsOf(one, page.entities, x) }))
      .find(({ rows }) => rows.length);
    this.hero.hidden = !first;
    if (!first) return;
    if (this.chart && this.chart.spec.id === `hero:${first.spec.id}`) this.chart.take(first.rows, x);
    else {
      if (this.chart) this.chart.remove();
      this.chart = new Chart(
        {
          ...first.spec,
          id: `hero:${first.spec.id}`,
          kind: first.spec.kind === "stack" && page.entities.length > 1 ? "line" : first.spec.kind,
        },
        first.rows,
        x,
        page,
        250,
        "h3",
      );
      this.hero.append(this.chart.root);
      this.chart.fit();
    }
  }
}
