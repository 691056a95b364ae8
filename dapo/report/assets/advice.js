// Warnings found by rules: what was seen, what to do, and the charts to look at.

const SEVERITIES = { bad: ["Bad", "✗"], warn: ["Warning", "!"], note: ["Note", "i"] };

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
    all.sort((a, b) => order[a.one.severity] - order[b.one.severity] || a.one.first_step - b.one.first_step);
    const several = page.bundle.runs.length > 1;
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
    return all.filter(({ one }) => one.severity !== "note").length;
  }

  item(run, one, index, several) {
    const [word, sign] = own(SEVERITIES, one.severity) || SEVERITIES.note;
    const steps =
      one.first_step === one.last_step
        ? `step ${number(one.first_step)}`
        : `steps ${number(one.first_step)} to ${number(one.last_step)}`;
    const links = one.keys.map((key) => [key, this.page.chartOf(key)]).filter(([, chart]) => chart);
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
