// Where the time went: phases as lanes over the run's clock, drawn on a canvas, with zoom by steps;
// and the sums as a table.

const LANE = 26;
const AXIS = 24;
const STARTS = / start$/; // ends the name of the spans in which a process was started

/** The colour of a phase, as in the chart of seconds. */
function phaseColour(name) {
  const known = ["generate", "learn", "score", "evaluate", "publish", "shape", "save", "report"];
  if (name === "judge") return "--c8";
  if (name === "engines busy") return "--c1"; // as generate
  if (name === "learner busy") return "--c2"; // as learn
  return known.includes(name) ? `--c${known.indexOf(name) + 1}` : "--other";
}

function niceGap(span, most) {
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((gap) => gap >= raw) || raw;
}

/** A line of the table: name, sum, median and greatest of the steps that have the phase, count of its stretches. */
function phaseRow(name, bySteps, count) {
  const sorted = [...bySteps].sort((a, b) => a - b);
  const half = sorted.length / 2;
  const median = (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
  return [name, sorted.reduce((a, b) => a + b, 0), median, sorted[sorted.length - 1], count];
}

/** A cell with a bar of `part` (0 to 1) and a share in words. */
function meterCell(part, share) {
  const bar = el("span", { style: { width: `${(part * 100).toFixed(1)}%` } });
  return el(
    "td",
    {},
    el("span", { class: "rate" }, el("span", { class: "meter", "aria-hidden": "true" }, bar), percent(share)),
  );
}

/** A table that is folded to its caption. */
function unfolding(key, caption, table) {
  const box = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption }, table);
  return el("details", { "data-key": key }, el("summary", {}, caption), box);
}

class TimelineSection {
  constructor(root, page) {
    Object.assign(this, { root, page, view: null, label: "" });
    const byStep = () => this.toSteps(Number(this.from.value), Number(this.to.value));
    this.from = el("input", { type: "number", inputmode: "numeric", on: { change: byStep } });
    this.to = el("input", { type: "number", inputmode: "numeric", on: { change: byStep } });
    this.said = el("p", { class: "readout", "aria-live": "polite" });
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "img",
      on: {
        keydown: (event) => this.key(event),
        pointermove: (event) => this.point(event),
        pointerleave: () => this.hover(null),
        pointerdown: (event) => this.press(event),
        pointerup: (event) => this.release(event),
        dblclick: () => this.all(),
      },
    });
    this.lanes = el("div", { class: "lanes", "aria-hidden": "true" });
    this.empty = el(
      "p",
      { class: "empty" },
      "No spans were recorded: the run has not finished a step.",
    );
    const zoom = (factor) => () => this.zoom(factor, 0.5);
    this.body = el(
      "div",
      {},
      el(
        "div",
        { class: "controls" },
        field("Steps from", this.from, "small"),
        field("to", this.to, "small"),
        el("button", { type: "button", on: { click: zoom(0.5) } }, "Closer"),
        el("button", { type: "button", on: { click: zoom(2) } }, "Wider"),
        el("button", { type: "button", on: { click: () => this.all() } }, "All steps"),
      ),
      el("div", { class: "timeline card" }, this.lanes, el("div", { class: "stage" }, this.canvas)),
      this.said,
    );
    this.table = el("div", {});
    this.ages = el("div", {});
    this.note = el("p", { class: "note" });
    root.append(this.empty, this.body, this.table, this.ages, this.note);
    new ResizeObserver(() => this.paint()).observe(this.canvas.parentElement);
    theme.listeners.push(() => this.paint());
  }

  update() {
    const run = this.page.runView();
    if (!run) return;
    const { timeline } = run;
    const before = this.label === run.label ? this.timeline : null;
    const wasAll =
      !before || !this.view || (this.extent && this.view[0] <= this.extent[0] && this.view[1] >= this.extent[1]);
    Object.assign(this, { timeline, label: run.label });
    this.empty.hidden = timeline.spans.length > 0;
    this.body.hidden = !timeline.spans.length;
    if (timeline.spans.length) {
      let [low, high] = [Infinity, -Infinity];
      for (const span of timeline.spans) {
        low = Math.min(low, span[2]);
        high = Math.max(high, span[2] + span[3]);
      }
      this.extent = [low, Math.max(high, low + 1e-6)];
      if (wasAll) this.view = [...this.extent];
      this.phases = timeline.phases
        .map((name, index) => ({
          name,
          index,
          own: timeline.spans.filter((span) => span[0] === index).sort((a, b) => a[2] - b[2]),
        }))
        .filter((phase) => phase.own.length);
      this.rows = this.lanesOf(this.phases);
      put(
        this.lanes,
        this.rows.map(({ name }) => el("span", { style: { height: `${LANE}px` } }, inline(name, 30))),
      );
      this.canvas.setAttribute(
        "aria-label",
        `Timeline of ${this.rows.length} lanes over ${seconds(this.extent[1] - this.extent[0])}. ` +
          "Left and right arrows pan, plus and minus zoom, Home shows all. The table below has the sums.",
      );
      this.hover(null);
      this.paint();
    }
    this.sums(run);
    this.agesOf(timeline.ages);
    put(this.note, timeline.thinned.kept < timeline.thinned.of ? visible(timeline.thinned.how) : null);
  }

  /** A lane for each phase and each process; the starts of a process stand in its own lane. */
  lanesOf(phases) {
    const rows = new Map();
    for (const phase of phases) {
      const name = this.timeline.beside.includes(phase.index) ? phase.name.replace(STARTS, "") : phase.name;
      if (!rows.has(name)) rows.set(name, { name, parts: [] });
      rows.get(name).parts.push(phase);
    }
    return [...rows.values()];
  }

  /** Seconds by phase, of the spans where there are some, else of the metrics. */
  sums(run) {
    const rows = [];
    if (this.timeline.spans.length) {
      for (const { name, index, own: spans } of this.phases) {
        if (this.timeline.beside.includes(index)) continue; // no phase: it goes on beside them
        const bySteps = new Map();
        for (const span of spans) bySteps.set(span[1], (bySteps.get(span[1]) || 0) + span[4]);
        const count = spans.reduce((a, span) => a + span[5], 0);
        rows.push(phaseRow(name, [...bySteps.values()], count));
      }
    } else {
      for (const [key, values] of Object.entries(run.curves.values)) {
        const there = values.filter((v) => v !== null);
        if (key.startsWith("time/") && !/step|per_second/.test(key) && there.length)
          rows.push(phaseRow(key.slice(5), there, there.length));
      }
    }
    rows.sort((a, b) => b[1] - a[1]);
    const whole = rows.reduce((a, row) => a + row[1], 0);
    put(
      this.table,
      rows.length
        ? unfolding(
            "phases",
            this.timeline.spans.length ? "Busy seconds by phase; a phase may lie inside another" : "Seconds by phase",
            el(
              "table",
              { class: "sums" },
              el(
                "thead",
                {},
                el(
                  "tr",
                  {},
                  ["Phase", "Seconds", "Share", "Median of a step", "Longest step", "Stretches"].map((name) =>
                    el("th", { scope: "col" }, name),
                  ),
                ),
              ),
              el(
                "tbody",
                {},
                rows.map(([name, sum, median, longest, count]) =>
                  el(
                    "tr",
                    {},
                    el("th", { scope: "row" }, inline(name, 40)),
                    el("td", {}, seconds(sum)),
                    meterCell(sum / (whole || 1), sum / (whole || 1)),
                    el("td", {}, seconds(median)),
                    el("td", {}, seconds(longest)),
                    el("td", {}, number(count)),
                  ),
                ),
              ),
            ),
          )
        : null,
    );
  }

  /** How old the tokens were that trained: a bar for each age, where some were older than the weights. */
  agesOf(ages) {
    const share = (phase) => {
      const worked = phase.own.reduce((sum, span) => sum + span[4], 0);
      return percent(Math.min(1, worked / (this.extent[1] - this.extent[0])));
    };
    const busy = (this.phases || [])
      .filter((phase) => this.timeline.beside.includes(phase.index) && !STARTS.test(phase.name))
      .map((phase) => `${oneLine(phase.name, 30)} ${share(phase)}`);
    const most = ages.reduce((a, [, share]) => Math.max(a, share), 0);
    put(
      this.ages,
      busy.length ? el("p", {}, `Of the time shown in all: ${busy.join(", ")}.`) : null,
      ages.length
        ? unfolding(
            "ages",
            "Ages of trained tokens, in versions of the weights",
            el(
              "table",
              { class: "sums ages" },
              el("thead", {}, el("tr", {}, ["Age", "Share of the tokens"].map((name) => el("th", { scope: "col" }, name)))),
              el(
                "tbody",
                {},
                ages.map(([age, share]) =>
                  el("tr", {}, el("th", { scope: "row" }, number(age)), meterCell(share / (most || 1), share)),
                ),
              ),
            ),
          )
        : null,
    );
  }

  paint() {
    if (!this.timeline || !this.timeline.spans.length || !this.view) return;
    const width = this.canvas.parentElement.clientWidth;
    const height = this.rows.length * LANE + AXIS;
    const scale = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const [from, to] = this.view;
    const x = (t) => ((t - from) / (to - from)) * width;
    pen.font = "11.5px system-ui, sans-serif";
    const gap = niceGap(to - from, Math.max(2, width / 90));
    for (let t = Math.ceil(from / gap) * gap; t <= to; t += gap) {
      pen.fillStyle = theme.colour("--grid");
      pen.fillRect(Math.round(x(t)), 0, 1, height - AXIS);
      pen.fillStyle = theme.colour("--muted");
      pen.fillText(seconds(Math.round(t / gap) * gap), Math.min(Math.max(0, x(t) - 12), width - 50), height - 8);
    }
    const parts = this.rows.flatMap((row, lane) => row.parts.map((phase) => [phase, lane]));
    for (const [phase, lane] of parts) {
      const colour = STARTS.test(phase.name) ? "--c6" : phaseColour(phase.name);
      let painted = -1;
      for (const span of phase.own) {
        const [left, right] = [x(span[2]), x(span[2] + span[3])];
        if (right < 0 || left > width || right < painted) continue;
        const start = Math.max(left, painted, 0);
        const wide = Math.max(right - start, 1);
        pen.fillStyle =
          span === this.under
            ? theme.colour("--ink")
            : theme.faint(colour, span[3] > 0 ? 0.35 + 0.6 * Math.min(1, span[4] / span[3]) : 0.95);
        pen.fillRect(start, lane * LANE + 4, Math.min(wide, width - start), LANE - 8);
        painted = start + wide;
        if (right - left > 46) {
          pen.fillStyle = theme.colour("--surface");
          pen.fillText(String(span[1]), Math.max(left, 0) + 5, lane * LANE + 17);
        }
      }
    }
    const steps = this.timeline.spans
      .filter((span) => span[2] + span[3] >= from && span[2] <= to)
      .map((span) => span[1]);
    if (document.activeElement !== this.from && steps.length)
      this.from.value = String(steps.reduce((a, b) => Math.min(a, b)));
    if (document.activeElement !== this.to && steps.length)
      this.to.value = String(steps.reduce((a, b) => Math.max(a, b)));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top) / LANE);
    const row = this.rows[lane];
    if (!row) return this.hover(null);
    const [from, to] = this.view;
    const t = from + ((event.clientX - box.left) / box.width) * (to - from);
    const near = ((to - from) / box.width) * 2;
    const found = row.parts
      .flatMap((phase) => phase.own)
      .filter((span) => span[2] - near <= t && t <= span[2] + span[3] + near)
      .sort((a, b) => a[3] - b[3])[0];
    return this.hover(found || null);
  }

  hover(span) {
    if (span === this.under && span) return;
    this.under = span;
    if (!span) this.said.textContent = "Point at a span to read it; drag to look closer.";
    else {
      const [phase, step, start, long, busy, count] = span;
      const merged = count > 1 ? `; ${number(count)} stretches, busy ${seconds(busy)}` : "";
      const name = oneLine(this.timeline.phases[phase], 40);
      this.said.textContent = `${name}, step ${number(step)}: ${seconds(long)} from ${seconds(start)}${merged}`;
    }
    this.paint();
  }

  press(event) {
    this.down = event.clientX;
  }

  release(event) {
    const box = this.canvas.getBoundingClientRect();
    const [left, right] = [this.down, event.clientX].sort((a, b) => a - b).map((px) => (px - box.left) / box.width);
    if (right - left > 0.01) {
      const [from, to] = this.view;
      this.look(from + left * (to - from), from + right * (to - from));
    }
  }

  look(from, to) {
    const least = (this.extent[1] - this.extent[0]) * 1e-5;
    if (to - from < least) return;
    this.view = [Math.max(this.extent[0], from), Math.min(this.extent[1], to)];
    this.paint();
  }

  all() {
    this.look(...this.extent);
  }

  zoom(factor, at) {
    const [from, to] = this.view;
    const middle = from + (to - from) * at;
    this.look(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  toSteps(low, high) {
    const inside = this.timeline.spans.filter((span) => span[1] >= low && span[1] <= high);
    if (!inside.length) return;
    this.look(
      inside.reduce((a, span) => Math.min(a, span[2]), Infinity),
      inside.reduce((a, span) => Math.max(a, span[2] + span[3]), -Infinity),
    );
  }

  key(event) {
    const wide = this.view[1] - this.view[0];
    const moves = { ArrowLeft: -0.2, ArrowRight: 0.2 };
    if (event.key in moves) {
      const by = Math.max(
        this.extent[0] - this.view[0],
        Math.min(this.extent[1] - this.view[1], wide * moves[event.key]),
      );
      this.look(this.view[0] + by, this.view[1] + by);
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5, 0.5);
    else if (event.key === "-") this.zoom(2, 0.5);
    else if (event.key === "Home") this.all();
    else return;
    event.preventDefault();
  }
}
