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
  const level = ([share, text]) => {
    const y = height - 5 - share * (height - 10);
    const under = height - (share ? 7 : 9) - share * (height - 22);
    return html`
      <line x1="0" x2=${width} y1=${y} y2=${y} stroke="var(--grid)" />
      <text x=${width - 4} y=${under} fill="var(--muted)" font-size="11" text-anchor="end">${text}</text>`;
  };
  const places = shown.map((visit) => at(visit).map((v) => v.toFixed(1)));
  return html`
    <svg class="dots" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} aria-hidden="true">
      ${height > 60 ? [[1, "100%"], [0.5, "50%"], [0, "0%"]].map(level) : null}
      <polyline points=${places.join(" ")} fill="none" stroke="var(--line)" />
      ${places.map(([x, y], i) => html`<circle cx=${x} cy=${y} r="3" fill=${`var(${passColour(shown[i])})`} />`)}
    </svg>`;
}

function passColour(visit) {
  if (!visit.scored) return "--muted";
  const share = visit.correct / visit.scored;
  return share >= 1 ? "--easy" : share <= 0 ? "--hard" : "--kept";
}

const DESCENDING = { sorter: "number", headerSortStartingDir: "desc" };

class PromptBrowser {
  constructor(page, openGroup) {
    Object.assign(this, { page, openGroup, rows: [], total: 0, text: "", asked: 0 });
    const search = searchBox("prompt, answer or id", (text) => {
      this.text = text;
      this.load();
    });
    this.count = html`<p class="note" role="status" />`;
    this.more = button("Load more", () => this.load(true));
    this.more.hidden = true;
    const problem = (p) => html`<span class="cut">${oneLine(p.prompt, 90)}</span>`;
    this.list = new List(
      "Prompts",
      [
        { title: "Prompt", field: "prompt", minWidth: 110, node: problem },
        { title: "Visits", field: "count", width: 70, ...DESCENDING, node: (p) => numeric(number(p.count)) },
        {
          title: "First to last",
          field: "gain",
          width: 112,
          ...DESCENDING,
          node: (p) => numeric(p.count ? `${percent(p.first, 0)} → ${percent(p.last, 0)}` : MISSING),
        },
        {
          title: "History",
          field: "key",
          width: 130,
          headerSort: false,
          node: (p) => (p.visits.length ? dots(p.visits, 112, 26, 40) : html`<span>${MISSING}</span>`),
        },
      ],
      (row) => this.open(row.id),
      560,
    );
    this.panel = html`
      <section class="group" aria-label="The open prompt" tabindex="-1">
        <p class="empty">Choose a prompt to see what each step made of it.</p>
      </section>`;
    this.root = html`
      <div>
        <div class="controls" role="search" aria-label="Filter prompts">${field("Search", search, "wide")}</div>
        <div class="browse"><div>${this.count}${this.list.root}${this.more}</div>${this.panel}</div>
      </div>`;
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
      put(this.panel, html`<p class="empty">This prompt's history is not in this page.</p>`);
      return;
    }
    const there = new Set(this.page.runView().rollouts.steps);
    const goTo = (visit) =>
      there.has(visit.step)
        ? button(`Open group ${number(visit.group)}`, () => this.openGroup(visit.step, visit.group), "link")
        : html`<span class="faint">not in this page</span>`;
    const row = (visit) => html`
      <tr>
        <th scope="row">${number(visit.step)}</th>
        <td>${chip(visit.verdict, "verdict")}</td>
        <td>${rate(visit.correct, visit.scored)}</td>
        <td>${inline(visit.disposition || MISSING, 30)}</td>
        <td>${number(visit.length_mean, 1)}</td>
        <td>${goTo(visit)}</td>
      </tr>`;
    const key = (tone) => html`<span class=${`key ${tone}`}>●</span>`;
    put(this.panel, html`
      <div class="grouphead">
        <h3>Prompt ${inline(found.id, 24)}</h3><span class="chip">${inline(found.source, 40)}</span>
      </div>
      ${askedOf(textBlock(found.prompt, "Problem"), found.answer)}
      ${found.visits.length ? dots(found.visits, 620, 120, 400) : null}
      <p class="note">${key("easy")} all correct  ${key("kept")} mixed  ${key("hard")} all wrong. Height: share correct.</p>
      ${scrolled("Visits", html`
        <table>
          ${headOf(["Step", "Verdict", "Correct", "Then", "Mean length", ""])}
          <tbody>${found.visits.map(row)}</tbody>
        </table>`)}`);
    await this.list.ready;
    this.list.mark(id);
    if (!quiet) this.page.remember({ run, prompt: id });
  }
}
