// The sections made of charts: Learning, Health, Cost. Built once, then given new numbers in place.

class ChartSection {
  constructor(root, section, page) {
    Object.assign(this, { root, section, page, charts: new Map() });
    this.grids = new Map();
    this.empty = el("p", { class: "empty" });
    root.append(this.empty);
  }

  update(entities, x, keys) {
    const wanted = new Map();
    for (const spec of catalogue(this.section, keys)) {
      for (const one of chartsOf(spec, entities, x)) if (one.rows.length) wanted.set(one.spec.id, one);
    }
    for (const [id, chart] of this.charts) {
      if (!wanted.has(id)) {
        chart.remove();
        this.charts.delete(id);
      }
    }
    let before = new Map();
    for (const [id, { spec, rows }] of wanted) {
      const grid = this.grid(spec.group);
      let chart = this.charts.get(id);
      if (chart) chart.take(rows, x);
      else {
        chart = new Chart(spec, rows, x, this.page);
        this.charts.set(id, chart);
        const after = before.get(spec.group);
        if (after) after.after(chart.root);
        else grid.prepend(chart.root);
        chart.fit();
      }
      before.set(spec.group, chart.root);
    }
    for (const [, { part, grid }] of this.grids) {
      const count = grid.children.length;
      part.hidden = !count;
      grid.dataset.columns = count > 3 && (4 - (count % 4)) % 4 <= (3 - (count % 3)) % 3 ? "4" : "3";
    }
    this.empty.hidden = wanted.size > 0;
    const { runs } = this.page.bundle;
    this.empty.textContent =
      runs.length && runs.every((run) => run.status.state !== "running")
        ? "No step was trained."
        : "Nothing was measured yet: charts come with the first training step.";
  }

  grid(name) {
    if (!this.grids.has(name)) {
      const grid = el("div", { class: "grid" });
      const part = el("section", { class: "part" }, el("h3", {}, name), grid);
      this.root.append(part);
      this.grids.set(name, { part, grid });
    }
    return this.grids.get(name).grid;
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
    this.from = el("input", { type: "number", inputmode: "numeric", on: { change } });
    this.to = el("input", { type: "number", inputmode: "numeric", on: { change } });
    this.all = el(
      "button",
      {
        type: "button",
        title: "Drag over a chart to look closer; double-click shows all",
        on: { click: () => page.zoom(null) },
      },
      "All steps",
    );
    this.seeds = select(
      [
        ["band", "as a band"],
        ["single", "one by one"],
      ],
      page.seeds,
      (value) => page.showSeeds(value),
    );
    this.seedsField = field("Seeds", this.seeds);
    this.note = el("p", { class: "note" });
    this.root = el(
      "div",
      { class: "controls" },
      this.note,
      el(
        "div",
        { role: "group", "aria-label": "Steps shown in all charts", class: "range" },
        field("Steps from", this.from, "small"),
        field("to", this.to, "small"),
        this.all,
      ),
      this.seedsField,
    );
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
