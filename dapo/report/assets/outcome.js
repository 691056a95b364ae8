// The first screen: how each run stands or ended, what came of it in words and numbers, and what is wrong.

const TONES = { good: "✓ ", bad: "✗ ", warn: "! ", "": "" };

/** Whether the run did what it was made for: held-out accuracy rose by more than chance, and nothing is badly wrong. */
function succeeded(run) {
  return run.tiles.some((one) => one.tone === "good") && !urgentOf(run).length;
}

/** The colour of a run's state. One that reached its end has that of success only where it learned. */
function toneOf(run) {
  const [, , tone] = own(STATES, run.status.state) || STATES.unknown;
  return run.status.state === "finished" && succeeded(run) ? "good" : tone;
}

function badge(run) {
  const { status } = run;
  const [word, sign] = own(STATES, status.state) || STATES.unknown;
  const tone = toneOf(run);
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
        ? [badge(runs[0]), alarm(runs[0])]
        : el(
            "ul",
            { class: "runs" },
            runs.map((run) => el("li", {}, inline(run.label, 40), " ", badge(run), alarm(run))),
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
  const tone = toneOf(run);
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

/** The sentences of a run that its banner does not begin with. */
function further(run) {
  return run.sentences.filter((one) => !banner(run) || !run.status.said.startsWith(one));
}

function outcomeOfOne(page, run) {
  const [lead, ...rest] = further(run);
  return [
    banner(run),
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

/** The recipes against one another, a sentence each. */
function families(page) {
  return el(
    "ul",
    { class: "families" },
    page.bundle.families
      .filter((family) => family.said)
      .map((family) =>
        el(
          "li",
          { class: family.tone },
          el("b", {}, family.name ? inline(family.name, 160) : plural(family.runs.length, "seed"), ": "),
          visible(family.said),
        ),
      ),
  );
}

/** A run's name, which a narrow column breaks between its words. */
function inParts(label) {
  return label.split(/(?<=[_/.-])/).map((part, i) => [i ? el("wbr") : null, inline(part, 60)]);
}

/** A column a run, a row a number. What stands under a number on a run's own page is its title here. */
function comparison(page, runs) {
  const labels = new Map();
  for (const run of runs) for (const one of run.tiles) if (!labels.has(one.label)) labels.set(one.label, one.key);
  const cell = (run, label) => {
    const one = run.tiles.find((other) => other.label === label);
    return el("td", { class: one ? one.tone : "", title: one ? one.detail : null }, one ? visible(kept(one.value)) : MISSING);
  };
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "The runs side by side" },
    el(
      "table",
      { class: "compare" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Run"),
          runs.map((run) => el("th", { scope: "col" }, runMark(page, run), inParts(run.label), " ", badge(run))),
        ),
      ),
      el(
        "tbody",
        {},
        [...labels].map(([label, key]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", title: definition(page, key) }, visible(label)),
            runs.map((run) => cell(run, label)),
          ),
        ),
      ),
    ),
  );
}

/** A run among several: what happened to it, and its sentences folded. */
function ofRun(page, run) {
  const [lead, ...rest] = further(run);
  return el(
    "article",
    { class: "ofrun" },
    el("h3", {}, runMark(page, run), inline(run.label, 80), " ", badge(run)),
    banner(run, true),
    urgentInShort(page, run),
    el(
      "details",
      { "data-key": `words-${run.label}` },
      el("summary", {}, worded(lead || "")),
      rest.map((one) => el("p", {}, worded(one))),
      el("p", { class: "facts" }, facts(run)),
    ),
    notes(run),
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
    this.tiles = el("div", {});
    this.under = el("div", {});
    add(root, [el("div", { class: "opening" }, this.words, this.tiles), this.under]);
  }

  update() {
    const { page } = this;
    const runs = page.bundle.runs;
    const tiles = runs.length === 1 ? runs[0].tiles : [];
    this.tiles.hidden = !tiles.length;
    put(
      this.tiles,
      el(
        "dl",
        { class: "tiles" },
        tiles.map((one) => tile(page, one)),
      ),
    );
    put(this.under);
    if (!runs.length) put(this.words, el("p", { class: "lead" }, "This page holds no run."));
    else if (runs.length === 1) put(this.words, outcomeOfOne(page, runs[0]));
    else {
      put(this.words, families(page), comparison(page, runs));
      put(
        this.under,
        runs.map((run) => ofRun(page, run)),
      );
    }
  }
}
