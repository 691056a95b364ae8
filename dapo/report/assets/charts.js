// The charts: six that are drawn first, and all others folded. Built once, then given new numbers in place.

/** The six charts that tell most, drawn at once. */
class FirstCharts {
  constructor(root, page) {
    Object.assign(this, { page, charts: new Map() });
    this.empty = html`<p class="empty" />`;
    this.grid = html`<div class="grid" />`;
    add(root, [this.empty, this.grid]);
  }

  update(x) {
    const { page } = this;
    const wanted = firstCharts(page.bundle, page.entities.length > 1)
      .map((spec) => ({ spec, rows: rowsOf(spec, page.entities, x) }))
      .filter(({ rows }) => rows.length);
    const ids = new Set(wanted.map(({ spec }) => spec.id));
    for (const [id, chart] of this.charts) {
      if (!ids.has(id)) {
        chart.remove();
        this.charts.delete(id);
      }
    }
    for (const { spec, rows } of wanted) {
      const chart = this.charts.get(spec.id);
      if (chart) chart.take(rows, x);
      else this.charts.set(spec.id, new Chart(spec, rows, x, page, 190, "h3"));
      this.grid.append(this.charts.get(spec.id).root);
    }
    for (const chart of this.charts.values()) chart.fit();
    this.empty.hidden = wanted.length > 0;
    const { runs } = page.bundle;
    this.empty.textContent =
      runs.length && runs.every((run) => run.status.state !== "running")
        ? "No step was trained."
        : "Nothing was measured yet: charts come with the first training step.";
    return wanted.filter(({ spec }) => !spec.narrowed).map(({ spec }) => spec.id);
  }
}

/** A chart folded to its title, a small curve and its last value; a click draws it. */
class FoldedChart {
  constructor(page) {
    Object.assign(this, { page, chart: null });
    this.head = button("", () => this.toggle(!this.chart), "foldhead");
    this.root = html`<div class="fold">${this.head}</div>`;
  }

  take(spec, rows, x) {
    Object.assign(this, { spec, rows, x });
    this.root.dataset.fold = spec.id;
    const lines = spec.kind === "stack" ? [{ ...rows[0], values: wholeOf(spec, rows) }] : mainRows(rows);
    const last = lines.map((row) => lastOf(row.values)).map((value) => measured(value, spec.unit));
    put(this.head, html`
      <span class="title">${visible(spec.title)}</span>
      ${sparkline(lines.slice(0, COLOURS.length))}
      <b>${lines.length <= 2 ? last.join(" · ") : ""}</b>`);
    this.head.setAttribute("aria-expanded", String(this.chart !== null));
    if (this.chart) this.chart.take(rows, x);
  }

  toggle(open) {
    if (open === (this.chart !== null)) return;
    if (open) {
      this.chart = new Chart(this.spec, this.rows, this.x, this.page);
      this.root.append(this.chart.root);
      this.chart.fit();
    } else {
      this.chart.remove();
      this.chart = null;
    }
    this.head.setAttribute("aria-expanded", String(open));
  }

  reveal() {
    this.toggle(true);
    return this.chart;
  }

  remove() {
    this.toggle(false);
    this.root.remove();
  }
}

/** All further charts by section, folded. */
class FoldedCharts {
  constructor(root, page) {
    this.page = page;
    this.folds = new Map();
    this.parts = [
      ["learning", "Learning"],
      ["health", "Health"],
      ["cost", "Cost"],
      ["other", "Other numbers"],
    ].map(([section, title]) => {
      const grid = html`<div class="folds" />`;
      const all = button("Open all", () => this.all(grid, all), "quiet");
      const open = section !== "other" && !matchMedia("(max-width: 620px)").matches;
      const part = html`
        <details class="part" id=${section} open=${open}><summary><h3>${title}</h3></summary>${all}${grid}</details>`;
      root.append(part);
      return { section, part, grid };
    });
  }

  all(grid, button) {
    const open = button.textContent === "Open all";
    for (const fold of this.folds.values()) if (fold.root.parentElement === grid) fold.toggle(open);
    button.textContent = open ? "Close all" : "Open all";
  }

  /** `above`: ids of charts that are drawn in whole already. */
  update(x, above) {
    const seen = new Set();
    for (const { section, part, grid } of this.parts) {
      const charts = this.page.bundle.charts
        .filter((spec) => spec.section === section && !above.includes(spec.id))
        .flatMap((spec) => chartsOf(spec, this.page.entities, x))
        .filter(({ rows }) => rows.length);
      for (const { spec, rows } of charts) {
        seen.add(spec.id);
        if (!this.folds.has(spec.id)) this.folds.set(spec.id, new FoldedChart(this.page));
        const fold = this.folds.get(spec.id);
        fold.take(spec, rows, x);
        if (fold.root.parentElement !== grid) grid.append(fold.root);
      }
      part.hidden = !charts.length;
    }
    for (const [id, fold] of this.folds) {
      if (seen.has(id)) continue;
      fold.remove();
      this.folds.delete(id);
    }
    return seen.size > 0;
  }
}

/** The controls above the charts: which steps are in sight, and how seeds are shown. */
class ChartControls {
  constructor(page) {
    this.page = page;
    const change = () => {
      const [low, high] = [Number(this.from.value), Number(this.to.value)];
      if (this.from.value !== "" && this.to.value !== "" && low < high) page.zoom([low, high]);
    };
    this.from = html`<input type="number" inputmode="numeric" onchange=${change} />`;
    this.to = html`<input type="number" inputmode="numeric" onchange=${change} />`;
    this.all = button("All steps", () => page.zoom(null));
    this.all.title = "Drag over a chart to look closer; double-click shows all";
    const ways = [["band", "as a band"], ["single", "one by one"]];
    this.seeds = select(ways, page.seeds, (value) => page.showSeeds(value));
    this.seedsField = field("Seeds", this.seeds);
    this.note = html`<p class="note" />`;
    this.root = html`
      <div class="controls">
        ${this.note}
        <div role="group" aria-label="Steps shown in all charts" class="range">
          ${field("Steps from", this.from, "small")}${field("to", this.to, "small")}${this.all}
        </div>
        ${this.seedsField}
      </div>`;
  }

  update() {
    const [low, high] = this.page.range || this.page.extent;
    if (document.activeElement !== this.from) this.from.value = String(Math.round(low));
    if (document.activeElement !== this.to) this.to.value = String(Math.round(high));
    this.all.disabled = !this.page.range;
    this.seedsField.hidden = Object.keys(this.page.bundle.bands).length === 0;
    const thinned = this.page.bundle.runs.filter((run) => run.curves.thinned.kept !== run.curves.thinned.of);
    put(
      this.note,
      thinned.map((run) => [
        inline(run.label, 60),
        `: ${number(run.curves.thinned.kept)} of ${number(run.curves.thinned.of)} points. `,
        visible(run.curves.thinned.how),
        " ",
      ]),
    );
  }
}
