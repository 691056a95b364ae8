// A prompt's history: what each step made of it, and from there to the group.

/** Dots over steps, as high as the share that was correct. `most`: how many of the last visits. */
function dots(visits, width, height, most) {
  const shown = visits.slice(-most);
  const [first, last] = [shown[0], shown[shown.length - 1]];
  const span = shown.length > 1 ? last.step - first.step || 1 : 1;
  const room = height > 60 ? 60 : 10;
  const at = (visit) => [
    5 + ((visit.step - first.step) / span) * (width - room),
    height - 5 - (visit.scored ? visit.correct / visit.scored : 0) * (height - 10),
  ];
  return sv(
    "svg",
    { class: "dots", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    height > 60
      ? [
          [1, "100%"],
          [0.5, "50%"],
          [0, "0%"],
        ].map(([share, text]) => [
          sv("line", {
            x1: 0,
            x2: width,
            y1: height - 5 - share * (height - 10),
            y2: height - 5 - share * (height - 10),
            stroke: "var(--grid)",
          }),
          sv(
            "text",
            {
              x: width - 4,
              y: height - (share ? 7 : 9) - share * (height - 22),
              fill: "var(--muted)",
              "font-size": 11,
              "text-anchor": "end",
            },
            text,
          ),
        ])
      : null,
    sv("polyline", {
      points: shown
        .map((visit) =>
          at(visit)
            .map((v) => v.toFixed(1))
            .join(","),
        )
        .join(" "),
      fill: "none",
      stroke: "var(--line)",
    }),
    shown.map((visit) =>
      sv("circle", {
        cx: at(visit)[0].toFixed(1),
        cy: at(visit)[1].toFixed(1),
        r: 3,
        fill: `var(${passColour(visit)})`,
      }),
    ),
  );
}

function passColour(visit) {
  if (!visit.scored) return "--muted";
  const share = visit.correct / visit.scored;
  return share >= 1 ? "--easy" : share <= 0 ? "--hard" : "--kept";
}

class PromptBrowser {
  constructor(page, openGroup) {
    Object.assign(this, { page, openGroup, rows: [], total: 0, text: "", asked: 0 });
    const slowly = debounced(() => this.load(), 180);
    this.search = el("input", {
      type: "search",
      placeholder: "prompt, answer or id",
      spellcheck: "false",
      on: {
        input: () => {
          this.text = this.search.value;
          slowly();
        },
      },
    });
    this.count = el("p", { class: "note", role: "status" });
    this.more = el("button", { type: "button", hidden: true, on: { click: () => this.load(true) } }, "Load more");
    this.list = new List(
      "Prompts",
      [
        {
          title: "Prompt",
          field: "prompt",
          minWidth: 110,
          node: (p) => el("span", { class: "cut" }, oneLine(p.prompt, 90)),
        },
        {
          title: "Visits",
          field: "count",
          width: 70,
          sorter: "number",
          headerSortStartingDir: "desc",
          node: (p) => el("span", { class: "num" }, number(p.count)),
        },
        {
          title: "First to last",
          field: "gain",
          width: 112,
          sorter: "number",
          headerSortStartingDir: "desc",
          node: (p) =>
            el("span", { class: "num" }, p.count ? `${percent(p.first, 0)} → ${percent(p.last, 0)}` : MISSING),
        },
        {
          title: "History",
          field: "key",
          width: 130,
          headerSort: false,
          node: (p) => (p.visits.length ? dots(p.visits, 112, 26, 40) : el("span", {}, MISSING)),
        },
      ],
      (row) => this.open(row.id),
      560,
    );
    this.panel = el(
      "section",
      { class: "group", "aria-label": "The open prompt", tabindex: -1 },
      el("p", { class: "empty" }, "Choose a prompt to see what each step made of it."),
    );
    this.root = el(
      "div",
      {},
      el(
        "div",
        { class: "controls", role: "search", "aria-label": "Filter prompts" },
        field("Search", this.search, "wide"),
      ),
      el("div", { class: "browse" }, el("div", {}, this.count, this.list.root, this.more), this.panel),
    );
  }

  async load(further) {
    const asked = (this.asked += 1);
    const offset = further === true ? this.rows.length : 0;
    const limit = further === "again" ? Math.max(500, this.rows.length) : 500;
    const answer = await this.page.ask((source) =>
      source.prompts({ run: this.page.run, text: this.text, offset, limit }),
    );
    if (asked !== this.asked || !answer) return;
    const share = (visit) => (visit && visit.scored ? visit.correct / visit.scored : null);
    const rows = answer.prompts.map((one) => {
      const [first, last] = [share(one.visits[0]), share(one.visits[one.visits.length - 1])];
      return {
        ...one,
        key: one.id,
        count: one.visits.length,
        first,
        last,
        gain: first === null || last === null ? -2 : last - first,
      };
    });
    this.rows = further === true ? [...this.rows, ...rows] : rows;
    this.total = answer.total;
    await this.list.fill(this.rows);
    put(this.count, `${number(this.rows.length)} of ${plural(this.total, "prompt")}.`);
    this.more.hidden = this.rows.length >= this.total;
  }

  refresh() {
    return this.load("again");
  }

  async open(id, quiet) {
    const run = this.page.run;
    const found = await this.page.ask((source) => source.prompt(run, id));
    if (!found) {
      put(this.panel, el("p", { class: "empty" }, "This prompt's history is not in this page."));
      return;
    }
    const steps = this.page.runView().rollouts.steps;
    const there = new Set(steps);
    put(
      this.panel,
      el(
        "div",
        { class: "grouphead" },
        el("h3", {}, "Prompt ", inline(found.id, 24)),
        el("span", { class: "chip" }, inline(found.source, 40)),
      ),
      el(
        "div",
        { class: "asked" },
        el("div", {}, el("p", { class: "cap" }, "Problem"), textBlock(found.prompt, "Problem")),
        el("div", { class: "gold" }, el("p", { class: "cap" }, "Gold answer"), textBlock(found.answer, "Gold answer")),
      ),
      found.visits.length ? dots(found.visits, 620, 120, 400) : null,
      el(
        "p",
        { class: "note" },
        el("span", { class: "key easy" }, "●"),
        " all correct  ",
        el("span", { class: "key kept" }, "●"),
        " mixed  ",
        el("span", { class: "key hard" }, "●"),
        " all wrong. Height: share correct.",
      ),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "group", "aria-label": "Visits" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["Step", "Verdict", "Correct", "Then", "Mean length", ""].map((name) => el("th", { scope: "col" }, name)),
            ),
          ),
          el(
            "tbody",
            {},
            found.visits.map((visit) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, number(visit.step)),
                el("td", {}, chip(visit.verdict, "verdict")),
                el("td", {}, rate(visit.correct, visit.scored)),
                el("td", {}, inline(visit.disposition || MISSING, 30)),
                el("td", {}, number(visit.length_mean, 1)),
                el(
                  "td",
                  {},
                  there.has(visit.step)
                    ? el(
                        "button",
                        { type: "button", class: "link", on: { click: () => this.openGroup(visit.step, visit.group) } },
                        `Open group ${number(visit.group)}`,
                      )
                    : el("span", { class: "faint" }, "not in this page"),
                ),
              ),
            ),
          ),
        ),
      ),
    );
    await this.list.ready;
    this.list.mark(id);
    if (!quiet) this.page.remember({ run, prompt: id });
  }
}
