// Where the time went: a bar of the phases, their seconds, and how old the tokens were that trained.

/** A cell with a bar of `part` (0 to 1) and a share in words. */
function meterCell(part, share) {
  const bar = el("span", { style: { width: `${(part * 100).toFixed(1)}%` } });
  return el(
    "td",
    {},
    el("span", { class: "rate" }, el("span", { class: "meter", "aria-hidden": "true" }, bar), percent(share)),
  );
}

/** A table in a box that scrolls sideways; a row is its cells. */
function sumsTable(caption, heads, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
    el(
      "table",
      { class: "sums" },
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells))),
    ),
  );
}

class TimeSection {
  constructor(root, page) {
    this.page = page;
    this.body = el("div", {});
    root.append(this.body);
  }

  update() {
    const { phases, busy, ages, note } = this.page.runView().time;
    const whole = phases.reduce((sum, [, all]) => sum + all, 0) || 1;
    const stack = this.page.bundle.charts.find(({ id }) => id === "time");
    const colour = (phase) => ((stack && stack.series.find(({ label }) => label === phase)) || {}).colour || "--other";
    const swatch = (phase) => el("i", { class: "phase", style: { background: `var(${colour(phase)})` } });
    const oldest = ages.reduce((most, [, share]) => Math.max(most, share), 0) || 1;
    put(
      this.body,
      phases.length
        ? el("p", {}, `Every span is in trace.json, ${this.page.live ? "at the top of" : "beside"} this page: open it at ui.perfetto.dev.`)
        : el("p", { class: "empty" }, "No time was recorded: the run has not finished a step."),
      el(
        "div",
        { class: "timebar", "aria-hidden": "true" },
        phases.map(([phase, all]) => el("i", { style: { background: `var(${colour(phase)})`, flex: String(all / whole) } })),
      ),
      phases.length
        ? sumsTable(
            "Busy seconds by phase; a phase may lie inside another",
            ["Phase", "Seconds", "Share", "Median of a step", "Longest step"],
            phases.map(([phase, all, median, longest]) => [
              el("th", { scope: "row" }, swatch(phase), inline(phase, 40)),
              el("td", {}, seconds(all)),
              meterCell(all / whole, all / whole),
              el("td", {}, seconds(median)),
              el("td", {}, seconds(longest)),
            ]),
          )
        : null,
      busy.length
        ? el("p", {}, `Of the time in all: ${busy.map(([name, share]) => `${oneLine(name, 30)} ${percent(share)}`).join(", ")}.`)
        : null,
      ages.length
        ? sumsTable(
            "Ages of trained tokens, in versions of the weights",
            ["Age", "Share of the tokens"],
            ages.map(([age, share]) => [el("th", { scope: "row" }, number(age)), meterCell(share / oldest, share)]),
          )
        : null,
      note ? el("p", { class: "note" }, visible(note)) : null,
    );
  }
}
