// One chart: a card with title, unit, a line of meaning, a legend that reads values, the drawing,
// and the same as a table.

const SYNC = "dapo";
const BETTER = { higher: " Higher is better.", lower: " Lower is better." };

/** Whether a line leads from place i of a column to its neighbour on one side. */
function linked(column, i, side) {
  let k = i + side;
  while (k >= 0 && k < column.length && column[k] === undefined) k += side;
  return k >= 0 && k < column.length && column[k] !== null;
}

/** Whether a row was measured more than once, and never was anything but 0. */
function zeroThroughout(row) {
  const there = row.values.filter((v) => v !== null && v !== undefined);
  return there.length > 1 && there.every((v) => v === 0);
}

/** A chart's card. `page` gives the glossary and takes zooms; `height` is that of the drawing, in pixels. */
class Chart {
  constructor(spec, rows, x, page, height = 190, heading = "h4") {
    Object.assign(this, { spec, page, height, off: new Set(), asTable: false });
    this.stack = spec.kind === "stack";
    this.legend = html`<ul class="legend" />`;
    this.plot = html`
      <div class="plot" role="img" tabindex="0"
        onkeydown=${(event) => this.key(event)} onblur=${() => this.point(null)} />`;
    this.said = html`<p class="offscreen" aria-live="polite" />`;
    this.table = html`
      <div class="astable" hidden tabindex="0" role="group" aria-label=${`${spec.title} as a table`} />`;
    this.toggle = button("Table", () => this.showTable(!this.asTable), "quiet");
    this.toggle.title = "Show the numbers as a table";
    this.toggle.setAttribute("aria-pressed", "false");
    this.note = html`<p class="note" />`;
    this.meaning = html`
      <details class="meaning">
        <summary aria-label=${`What ${spec.title} means`} title="What these numbers mean">?</summary>
      </details>`;
    const title = fresh("chart");
    this.root = html`
      <figure class="card chart" data-chart=${spec.id} aria-labelledby=${title}>
        <figcaption>
          <${heading} id=${title} class="title">${visible(spec.title)}<//>
          <span class="unit">${unitName(spec.unit)}</span>
          ${this.toggle}${this.meaning}
        </figcaption>
        ${spec.says ? html`<p class="says">${spec.says}</p>` : null}
        ${this.legend}${this.note}${this.plot}${this.table}${this.said}
      </figure>`;
    this.take(rows, x);
    this.watch = new ResizeObserver(() => this.fit());
    this.watch.observe(this.plot);
  }

  /** Take new numbers. The drawing is made again only where its rows are others. */
  take(rows, x) {
    const shape = JSON.stringify(rows.map((row) => [row.key, row.label, row.low !== null]));
    Object.assign(this, { rows, x });
    this.plot.setAttribute("aria-label", `${inWords(this.spec, rows, x)} Arrow keys read single steps.`);
    if (this.drawing && shape === this.shape) {
      this.drawing.setData(this.columns(), false);
      this.zoom(this.page.range);
    } else {
      if (this.drawing) this.drawing.destroy();
      this.drawing = null;
      this.shape = shape;
      this.makeLegend();
      this.define();
      this.draw();
    }
    const kinds = new Set(rows.map((row) => (row.low ? row.interval : "")));
    const how = [];
    if (kinds.has("seeds")) how.push("Line: mean of the seeds; band: least and greatest.");
    if (kinds.has("thinned"))
      how.push("Each point is the mean of a stretch of steps; the faint band is its least and greatest.");
    this.note.textContent = how.join(" ");
    this.note.hidden = !how.length;
    this.values(null);
    this.root.classList.toggle("flat", rows.every(zeroThroughout));
    if (this.asTable) this.fillTable();
  }

  define() {
    const keys = new Map();
    for (const series of this.spec.series)
      for (const key of [series.key, series.low, series.high]) if (key) keys.set(key, key === series.key);
    const meanings = [...keys].map(([key, itself]) => {
      const line = own(this.page.bundle.glossary, key);
      return line && html`
        <dt><code>${visible(key)}</code> <span class="unit">${unitName(line.unit)}</span></dt>
        <dd>${visible(line.meaning)}${(itself && own(BETTER, line.better)) || ""}</dd>`;
    });
    this.meaning.replaceChildren(this.meaning.firstChild, html`<dl>${meanings}</dl>`);
  }

  /** A button a line. Several runs with several lines each: a row for each run. */
  makeLegend() {
    const byRun = new Map();
    this.cells = this.rows.map(() => html`<b />`);
    this.rows.forEach((row, index) => {
      const toggle = html`
        <button type="button" aria-pressed=${String(!this.off.has(row.label))}
          title=${`${row.label}: show or hide this line`} onclick=${() => this.hide(index, toggle)}>
          ${swatch(row, this.stack)}
          <span>${inline(row.entity === null ? row.label : row.series, 60)}</span>
          ${this.cells[index]}
        </button>`;
      const under = row.entity === null ? index : row.entity;
      byRun.set(under, [...(byRun.get(under) || []), toggle]);
    });
    const single = this.rows.every((row) => row.entity === null);
    this.legend.classList.toggle("by", !single);
    this.legend.classList.toggle("runs", single && this.page.entities.length > 1); // a line each: names are long
    const line = ([name, toggles]) => html`
      <li>${single ? null : html`<span>${inline(name, 40)}</span>`}${toggles}</li>`;
    this.legend.replaceChildren(...[...byRun].map(line));
  }

  hide(index, toggle) {
    const row = this.rows[index];
    if (this.off.has(row.label)) this.off.delete(row.label);
    else this.off.add(row.label);
    toggle.setAttribute("aria-pressed", String(!this.off.has(row.label)));
    this.drawing.destroy();
    this.draw();
  }

  /** Columns for uPlot: x, then for each row its low, its high and its value. */
  columns() {
    const shown = this.rows.map((row) => !this.off.has(row.label));
    const blank = new Array(this.x.length).fill(null);
    const values = this.stack ? stacked(this.rows.filter((_, i) => shown[i])) : null;
    const columns = [this.x];
    let at = 0;
    this.rows.forEach((row, i) => {
      columns.push(
        shown[i] && row.low && !this.stack ? row.low : blank,
        shown[i] && row.high && !this.stack ? row.high : blank,
      );
      columns.push(!shown[i] ? blank : values ? values[at++] : row.values);
    });
    return columns;
  }

  draw() {
    const series = [{}];
    const bands = [];
    this.rows.forEach((row, i) => {
      const at = 1 + i * 3;
      const spanGaps = row.spans;
      const hidden = { stroke: null, width: 0, points: { show: false }, spanGaps };
      const before = this.rows
        .slice(0, i)
        .map((other, j) => (this.off.has(other.label) ? -1 : j))
        .filter((j) => j >= 0)
        .pop();
      const fill = () => theme.faint(row.colour, this.stack ? 0.75 : 0.16);
      series.push(hidden, hidden, {
        stroke: () => theme.colour(this.stack ? "--surface" : row.colour),
        width: this.stack ? 1 : 1.75,
        dash: this.stack ? [] : row.dash,
        spanGaps,
        points: { show: false },
        fill: this.stack && before === undefined ? fill : undefined,
      });
      if (!this.stack) bands.push({ series: [at + 1, at], fill });
      else if (before !== undefined) bands.push({ series: [at + 2, 1 + before * 3 + 2], fill });
    });
    const axis = (more) => ({
      stroke: () => theme.colour("--muted"),
      grid: { stroke: () => theme.colour("--grid"), width: 1 },
      ticks: { show: false },
      font: "11.5px system-ui, sans-serif",
      ...more,
    });
    const tens = (u, splits) =>
      splits.map((v) => (Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9 ? v : null));
    const y = axis({ size: 58, values: (u, splits) => ticks(splits, this.spec.unit), space: 30, gap: 6 });
    if (this.logarithmic())
      Object.assign(y, {
        filter: tens,
        values: (u, splits) => splits.map((v) => (v === null ? "" : short(v))),
        grid: { ...y.grid, filter: tens },
      });
    const options = {
      width: Math.max(120, this.plot.clientWidth || 320),
      height: this.height,
      padding: [8, 10, 0, 0],
      series,
      bands,
      legend: { show: false },
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: { key: SYNC, scales: ["x", null] },
        bind: { dblclick: () => () => this.page.zoom(null) },
      },
      scales: {
        x: { time: false, range: () => this.page.range || this.page.extent },
        y: this.logarithmic()
          ? { distr: 3, range: (u, low, high) => uPlot.rangeLog(low, high, 10, false) }
          : { range: () => boundsOf(this.spec, this.seen()) },
      },
      axes: [
        axis({
          size: 22,
          values: (u, splits) => splits.map((v) => (Number.isInteger(v) ? number(v) : "")),
          space: 46,
          gap: 4,
          label: "step",
          labelSize: 15,
          labelGap: 0,
          labelFont: "11.5px system-ui, sans-serif",
        }),
        y,
      ],
      hooks: {
        setCursor: [(u) => this.values(u.cursor.idx)],
        setSelect: [
          (u) => {
            if (u.select.width > 4)
              this.page.zoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
            u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          },
        ],
        drawSeries: [(u, at) => this.markers(u, at)],
      },
    };
    this.drawing = new uPlot(options, this.columns(), this.plot);
  }

  /** Ratios are drawn by their orders of magnitude, unless one of them is 0. */
  logarithmic() {
    return (
      this.spec.log === true &&
      this.rows.every((row) =>
        [row.values, row.low || [], row.high || []].every((column) =>
          column.every((v) => v === null || v === undefined || v > 0),
        ),
      )
    );
  }

  /** What lies in the zoomed stretch: the y axis fits it. */
  seen() {
    const [from, to] = this.page.range || this.page.extent;
    const inside = (column) => column.filter((_, i) => this.x[i] >= from && this.x[i] <= to);
    return this.columns().slice(1).map(inside);
  }

  /** Marks on a line: all points where they are few, else a handful that tell lines apart without colour. */
  markers(u, at) {
    if (at === 0 || at % 3 !== 0 || this.stack) return;
    const row = this.rows[at / 3 - 1];
    const column = u.data[at];
    const there = [];
    for (let i = 0; i < column.length; i += 1) {
      if (column[i] !== null && column[i] !== undefined && this.x[i] >= u.scales.x.min && this.x[i] <= u.scales.x.max)
        there.push(i);
    }
    const every = there.length <= 24 ? 1 : Math.ceil(there.length / 7);
    const alone = (i) => !row.spans && !linked(column, i, -1) && !linked(column, i, 1);
    const scale = devicePixelRatio || 1;
    u.ctx.save();
    u.ctx.fillStyle = u.ctx.strokeStyle = theme.colour(row.colour);
    u.ctx.lineWidth = 1.5 * scale;
    there.forEach((i, n) => {
      const chosen = every === 1 || (this.rows.length > 1 && (n + Math.floor(every / 2)) % every === 0);
      if (!chosen && !alone(i)) return;
      const mark = new Path2D(
        markerPath(row.marker, u.valToPos(this.x[i], "x", true), u.valToPos(column[i], "y", true), 2.8 * scale),
      );
      u.ctx.fill(mark);
      if (row.marker === "cross") u.ctx.stroke(mark);
    });
    u.ctx.restore();
  }

  /** The legend's numbers: at a place of x, or the last ones. One of another step than the others says so. */
  values(at) {
    const missing = (v) => v === null || v === undefined;
    this.rows.forEach((row, i) => {
      const asked = missing(at) ? row.values.length - 1 : at;
      let place = asked;
      if (missing(at) || row.sparse) while (place >= 0 && missing(row.values[place])) place -= 1;
      const value = row.values[place];
      let text = measured(value === undefined ? null : value, this.spec.unit);
      if (missing(at) && zeroThroughout(row)) text = `${text} throughout`;
      if (row.low && row.interval !== "thinned" && row.low[place] !== null && row.low[place] !== undefined)
        text += ` (${measured(row.low[place], this.spec.unit)} to ${measured(row.high[place], this.spec.unit)})`;
      if (place >= 0 && place !== asked) text += ` at step ${number(this.x[place])}`;
      if (this.cells[i].textContent !== text) this.cells[i].textContent = text;
    });
  }

  key(event) {
    const last = this.x.length - 1;
    const at = this.at === undefined || this.at === null ? last : this.at;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, PageUp: at - 10, PageDown: at + 10 }[
      event.key
    ];
    if (to === undefined) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(last, to)));
    const read = this.rows.map(
      (row) =>
        `${row.label} ${measured(row.values[this.at] === undefined ? null : row.values[this.at], this.spec.unit)}`,
    );
    this.said.textContent = `Step ${this.x[this.at]}: ${read.join(", ")}`;
  }

  point(at) {
    this.at = at;
    this.drawing.setCursor(
      at === null ? { left: -10, top: -10 } : { left: this.drawing.valToPos(this.x[at], "x"), top: 10 },
    );
  }

  showTable(on) {
    this.asTable = on;
    this.toggle.setAttribute("aria-pressed", String(on));
    this.table.hidden = !on;
    this.plot.hidden = on;
    if (on) this.fillTable();
    else this.fit();
  }

  fillTable() {
    put(this.table, tableOf(this.spec, this.rows, this.x));
  }

  zoom() {
    const [min, max] = this.page.range || this.page.extent;
    this.drawing.setScale("x", { min, max });
  }

  fit() {
    const width = this.plot.clientWidth;
    if (this.drawing && width > 0 && Math.abs(width - this.drawing.width) >= 1)
      this.drawing.setSize({ width, height: this.height });
  }

  repaint() {
    this.drawing.redraw(true, true);
  }

  reveal() {
    return this;
  }

  remove() {
    this.watch.disconnect();
    this.drawing.destroy();
    this.root.remove();
  }
}
