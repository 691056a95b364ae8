// Warnings found by rules: what was seen, what to do, and the charts to look at.

const SEVERITIES = { bad: ["Bad", "✗"], warn: ["Warning", "!"], note: ["Note", "i"] };

/** The warnings that are bad, each with its place in the run's list. */
function urgentOf(run) {
  return run.advice.map((one, index) => [one, index]).filter(([one]) => one.severity === "bad");
}

/** What the banner tells already is left to the list of warnings. */
function urgentBelow(run) {
  return urgentOf(run).filter(([one]) => run.status.state !== "unfilled" || one.rule !== "batch_unfilled");
}

function urgent(page, run) {
  const bad = urgentBelow(run);
  if (!bad.length) return null;
  return el(
    "div",
    { class: "urgent" },
    el("h3", {}, bad.length === 1 ? "One thing is badly wrong" : `${bad.length} things are badly wrong`),
    el(
      "ul",
      {},
      bad.map(([one, index], i) =>
        el(
          "li",
          {},
          el("b", {}, worded(one.title)),
          ". ",
          i === 0 ? [worded(one.said), " "] : null,
          el("a", { href: `#${page.adviceId(run, index)}` }, "What to do"),
        ),
      ),
    ),
  );
}

function urgentInShort(page, run) {
  const bad = urgentBelow(run);
  if (!bad.length) return null;
  return el(
    "p",
    { class: "urgent" },
    el("b", {}, "Badly wrong: "),
    bad.map(([one, index], i) => [
      i ? "; " : "",
      el("a", { href: `#${page.adviceId(run, index)}` }, worded(one.title)),
    ]),
  );
}

class AdviceSection {
  constructor(root, page) {
    Object.assign(this, { root, page });
    this.body = el("div", {});
    root.append(this.body);
  }

  update() {
    const { page } = this;
    const order = { bad: 0, warn: 1, note: 2 };
    const all = page.bundle.runs.flatMap((run) => run.advice.map((one, index) => ({ run, one, index })));
    const several = page.bundle.runs.length > 1;
    if (several) all.sort((a, b) => order[a.one.severity] - order[b.one.severity]); // within a run its own order stays
    put(
      this.body,
      all.length
        ? el(
            "ol",
            { class: "advice" },
            all.map(({ run, one, index }) => this.item(run, one, index, several)),
          )
        : el(
            "p",
            { class: "empty" },
            "No rule found anything in the numbers: entropy, clipping, the gap, filling, verifiers and lengths.",
          ),
    );
    const count = (severity) => all.filter(({ one }) => one.severity === severity).length;
    return { all: count("bad") + count("warn"), bad: count("bad") };
  }

  item(run, one, index, several) {
    const [word, sign] = own(SEVERITIES, one.severity) || SEVERITIES.note;
    const steps =
      one.first_step === one.last_step
        ? `step ${number(one.first_step)}`
        : `steps ${number(one.first_step)} to ${number(one.last_step)}`;
    const links = one.keys.map((key) => [key, this.page.chartOf(key, run.label)]).filter(([, chart]) => chart);
    const seen = new Set();
    return el(
      "li",
      { class: `card one ${one.severity}`, id: this.page.adviceId(run, index), tabindex: -1 },
      el(
        "p",
        { class: "head" },
        el("span", { class: `badge ${one.severity}` }, el("span", { "aria-hidden": "true" }, `${sign} `), word),
        el("span", { class: "facts" }, several ? [inline(run.label, 60), " · "] : null, steps),
      ),
      el("h3", {}, worded(one.title)),
      el("p", {}, worded(one.said)),
      el("p", { class: "move" }, el("b", {}, "What to do: "), worded(one.move)),
      links.length
        ? el(
            "p",
            { class: "look" },
            "Look at: ",
            links
              .filter(([, chart]) => !seen.has(chart) && seen.add(chart))
              .map(([, chart]) =>
                el(
                  "button",
                  { type: "button", class: "link", on: { click: () => this.page.showChart(chart, one) } },
                  visible(chart.spec.title),
                ),
              ),
          )
        : null,
    );
  }
}
