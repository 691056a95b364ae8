// The rollout browser: groups by step, verdict and what became of them; prompts over steps;
// held-out answers before and after.

const PAGE_OF_GROUPS = 500;
const STEPS_ASKED = 20; // for a group beside the open one: filters may leave none for a long way
const DISPOSITIONS = ["trained", "carried", "filled", "copied", "expired", "discarded"];

class GroupBrowser {
  constructor(page, openPrompt) {
    Object.assign(this, { page, openPrompt, rows: [], total: 0, sources: new Set(), asked: 0 });
    this.filter = { step: "", verdict: "", disposition: "", source: "", text: "", tokens: false };
    const set = (name) => (value) => {
      this.filter[name] = value;
      this.narrow();
    };
    this.newest = !!page.live; // A server's run grows: its newest step is shown until the reader chooses one.
    const slowly = debounced(() => this.narrow(), 180);
    const typed = () => {
      this.newest = false;
      this.filter.step = this.step.value;
      slowly();
    };
    this.step = html`<input type="number" inputmode="numeric" placeholder="all" oninput=${typed} />`;
    const verdicts = Object.entries(VERDICTS).map(([key, [text]]) => [key, text]);
    this.verdict = select([["", "all"], ...verdicts], "", set("verdict"));
    this.disposition = select([["", "all"], ...DISPOSITIONS.map((key) => [key, key])], "", set("disposition"));
    this.source = select([["", "all"]], "", set("source"));
    this.search = searchBox("prompt, answer or response", set("text"));
    this.tokens = html`<input type="checkbox" onchange=${() => set("tokens")(this.tokens.checked)} />`;
    this.count = html`<p class="note" role="status" />`;
    this.more = button("Load more", () => this.load(true));
    this.more.hidden = true;
    const recorded = () => html`<span class="dot" title="recorded token by token">● </span>`;
    const problem = (g) => html`<span class="cut">${g.has_tokens ? recorded() : null}${oneLine(g.problem, 90)}</span>`;
    const length = (g) => numeric(number(g.length_mean, 1));
    const then = (g) => html`<span class="faint">${inline(g.disposition || MISSING, 20)}</span>`;
    const sorter = "number";
    this.list = new List(
      "Groups",
      [
        { title: "Step", field: "step", width: 66, responsive: 0, sorter, node: (g) => numeric(number(g.step)) },
        { title: "Group", field: "group", width: 76, responsive: 2, sorter, node: (g) => numeric(number(g.group)) },
        { title: "Verdict", field: "verdict", width: 112, responsive: 0, node: (g) => chip(g.verdict, "verdict") },
        { title: "Correct", field: "share", width: 112, responsive: 0, sorter, node: (g) => rate(g.correct, g.scored) },
        { title: "Problem", field: "problem", minWidth: 130, responsive: 0, headerSort: false, node: problem },
        { title: "Then", field: "disposition", width: 96, responsive: 3, node: then },
        { title: "Length", field: "length", width: 80, responsive: 4, sorter, node: length },
      ],
      (row) => this.open(row.step, row.group),
      560,
    );
    this.panel = new GroupPanel(page);
    this.root = html`
      <div>
        <div class="controls" role="search" aria-label="Filter groups">
          ${field("Step", this.step, "small")}
          ${field("Verdict", this.verdict)}
          ${field("What became of it", this.disposition)}
          ${field("Source", this.source)}
          ${field("Search", this.search, "wide")}
          <div class="field check"><label>${this.tokens} with tokens</label></div>
          ${button("Clear", () => this.reset())}
        </div>
        <div class="browse"><div>${this.count}${this.list.root}${this.more}</div>${this.panel.root}</div>
      </div>`;
  }

  reset() {
    this.newest = false;
    Object.assign(this.filter, { step: "", verdict: "", disposition: "", source: "", text: "", tokens: false });
    for (const control of [this.step, this.verdict, this.disposition, this.source, this.search]) control.value = "";
    this.tokens.checked = false;
    this.narrow();
  }

  /** Load by other filters. Where the open group is no longer in the list, the first that is opens instead. */
  async narrow() {
    if (!(await this.load())) return;
    const [first] = this.list.order();
    if (first && !this.rows.some((row) => row.key === this.openKey)) await this.open(first.step, first.group, true);
  }

  /** Fill the list; false where a later question overtook this one, or nobody answered. */
  async load(further) {
    const asked = (this.asked += 1);
    const offset = further ? this.rows.length : 0;
    const limit = further === "again" ? Math.max(PAGE_OF_GROUPS, this.rows.length) : PAGE_OF_GROUPS;
    const answer = await this.page.ask((source) =>
      source.groups({
        run: this.page.run,
        ...this.filter,
        prompt: "",
        offset: further === "again" ? 0 : offset,
        limit,
      }),
    );
    if (asked !== this.asked || !answer) return false;
    const rows = answer.groups.map((one) => ({
      ...one,
      key: `${one.step}/${one.group}`,
      share: one.scored ? one.correct / one.scored : -1,
      length: one.length_mean,
    }));
    this.rows = further === true ? [...this.rows, ...rows] : rows;
    this.total = answer.total;
    for (const one of rows) this.sources.add(one.source);
    reselect(
      this.source,
      [["", "all"], ...[...this.sources].sort().map((name) => [name, oneLine(name, 30) || "(none)"])],
      this.filter.source,
    );
    const { thinned } = this.page.runView().rollouts;
    await this.list.fill(this.rows);
    this.told = [
      `${number(this.rows.length)} of ${plural(this.total, "group")}. `,
      thinned.kept < thinned.of ? thinned.how : "",
    ].join("");
    this.tell();
    this.more.hidden = this.rows.length >= this.total;
    return true;
  }

  /** The count, whether the open group is among these, and what is before and after it. */
  tell() {
    const inList = this.rows.some((row) => row.key === this.openKey);
    const further = this.rows.length < this.total && !Object.values(this.filter).some(Boolean);
    const where = further ? "The open group is further down." : "The open group is not in this list.";
    put(this.count, visible(this.told), this.openKey && !inList ? where : null);
    this.offer();
  }

  /** Let the panel's buttons open what is before and after the open group. */
  async offer() {
    const key = this.openKey;
    const [before, after] = await Promise.all([-1, 1].map((by) => this.beside(by)));
    const go = (by) => async () => {
      const to = await this.beside(by);
      if (to) this.open(to.step, to.group);
    };
    if (key === this.openKey) this.panel.neighbours({ before: before && go(-1), after: after && go(1) });
  }

  /** The row before or after the open one, as the list is sorted; by step and group where the list does not hold it. */
  async beside(by) {
    const rows = this.list.order();
    const at = rows.findIndex((row) => row.key === this.openKey);
    if (at >= 0 && rows[at + by]) return rows[at + by];
    return at < 0 || (by > 0 && rows.length < this.total) ? this.beyond(by) : null;
  }

  /** The group before or after the open one by step and group, of all that pass the filters. */
  async beyond(by) {
    if (!this.opened) return null;
    const { run, step, group } = this.opened;
    const known = this.page.runView().rollouts.steps.filter((one) => (one - step) * by >= 0);
    const steps = this.filter.step === "" ? known : known.filter((one) => one === Number(this.filter.step));
    for (const one of steps.sort((a, b) => (a - b) * by).slice(0, STEPS_ASKED)) {
      const found = await this.groupsOf(run, one);
      const further = found.filter((other) => one !== step || (other.group - group) * by > 0);
      if (further.length) return further.sort((a, b) => (a.group - b.group) * by)[0];
    }
    return null;
  }

  /** All groups of a step that pass the filters. */
  async groupsOf(run, step) {
    const found = [];
    for (;;) {
      const question = { run, ...this.filter, step: String(step), prompt: "", offset: found.length, limit: PAGE_OF_GROUPS };
      const answer = await this.page.ask((source) => source.groups(question));
      if (!answer || !answer.groups.length) return found;
      found.push(...answer.groups);
      if (found.length >= answer.total) return found;
    }
  }

  async open(step, group, quiet) {
    const run = this.page.run;
    const opening = (this.opening = (this.opening || 0) + 1);
    const found = await this.page.ask((source) => source.group(run, step, group));
    if (opening !== this.opening) return; // Another was chosen meanwhile.
    if (!found) {
      const missing = `Group ${number(group)} of step ${number(step)} is not in this page. `;
      const where = this.page.live ? "" : "“dapo view” shows every group that the run wrote.";
      put(this.panel.root, html`<p class="empty">${missing}${where}</p>`);
      return;
    }
    this.openKey = `${step}/${group}`;
    this.opened = { run, step, group };
    await this.list.ready;
    this.panel.show(found, { before: null, after: null, prompt: () => this.openPrompt(found.prompt_id) });
    if (this.told) this.tell();
    this.list.mark(this.openKey);
    if (!quiet) this.page.remember({ run, step: String(step), group: String(group) });
  }

  /** New data came: the same filters, the same place, the same open group. */
  async refresh() {
    const { steps } = this.page.runView().rollouts;
    if (this.newest && steps.length) this.step.value = this.filter.step = String(steps[steps.length - 1]);
    await this.load("again");
    if (this.opened && this.opened.run === this.page.run) return;
    // The newest step that was recorded token by token, and there a group that can teach.
    const newest = (one) => (one.has_tokens ? one.step : -1);
    const telling = (one) =>
      Number(one.verdict === "kept") - Math.abs((one.scored ? one.correct / one.scored : -1) - 0.5);
    const { groups } = this.page.runView().rollouts;
    const first = [...(groups.length ? groups : this.rows)].sort(
      (a, b) => newest(b) - newest(a) || telling(b) - telling(a),
    )[0];
    if (first && !location.hash.includes("group=")) await this.open(first.step, first.group, true);
    else if (!first) this.panel.clear();
  }
}

class Rollouts {
  constructor(root, page) {
    this.page = page;
    this.run = select([["", ""]], "", (value) => page.choose(value));
    this.runField = field("Run", this.run);
    this.groups = new GroupBrowser(page, (id) => this.openPrompt(id));
    this.prompts = new PromptBrowser(page, (step, group) => this.openGroup(step, group));
    this.heldOut = new HeldOutBrowser(page);
    const entries = [
      ["groups", "Groups", this.groups.root],
      ["prompts", "Prompts over time", this.prompts.root],
      ["heldout", "Held out: before and after", this.heldOut.root],
    ];
    this.tabs = tabs("Ways to browse", entries, "groups");
    const panels = entries.map(([, , panel]) => panel);
    add(root, [html`<div class="tabline">${this.tabs.list}${this.runField}</div>`, panels]);
    this.signature = "";
  }

  async update() {
    const runs = this.page.bundle.runs;
    reselect(
      this.run,
      runs.length ? runs.map((run) => [run.label, oneLine(run.label, 60)]) : [["", "none"]],
      this.page.run,
    );
    this.runField.hidden = runs.length < 2;
    if (!runs.length) return;
    const run = this.page.runView();
    const signature = JSON.stringify([
      run.label,
      run.status.step,
      run.rollouts.steps.length,
      run.rollouts.groups.length,
      run.rollouts.prompts.length,
      run.rollouts.held_out.length,
    ]);
    if (signature === this.signature) return;
    this.signature = signature;
    await Promise.all([this.groups.refresh(), this.prompts.refresh(), this.heldOut.refresh()]);
  }

  openPrompt(id, quiet) {
    this.tabs.choose("prompts");
    return this.prompts.open(id, quiet);
  }

  async openGroup(step, group, quiet) {
    this.tabs.choose("groups");
    await this.groups.open(step, group, quiet);
    this.groups.panel.root.scrollIntoView({ block: "nearest" });
  }
}
