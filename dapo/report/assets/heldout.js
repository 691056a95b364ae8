// Held-out problems: the answer at one evaluation beside that at another, and what changed in between.

const CHANGES = [
  ["", "all"],
  ["gained", "wrong, then right"],
  ["lost", "right, then wrong"],
  ["right", "right both times"],
  ["wrong", "wrong both times"],
];

class HeldOutBrowser {
  constructor(page) {
    Object.assign(this, { page, change: "", text: "", kind: "", shown: 30 });
    const redraw = () => {
      this.shown = 30;
      this.draw();
    };
    const set = (name) => (value) => {
      this[name] = value;
      redraw();
    };
    this.from = select([["", ""]], "", redraw);
    this.to = select([["", ""]], "", redraw);
    const kinds = select([["", "all"], ["greedy", "greedy"], ["sampled", "sampled"]], "", set("kind"));
    const search = searchBox("prompt or answer", (text) => set("text")(text.toLowerCase()));
    this.count = html`<p class="note" role="status" />`;
    this.body = html`<div class="pairsof" />`;
    this.more = button("Show more", () => {
      this.shown += 60;
      this.draw();
    });
    this.root = html`
      <div>
        <div class="controls" role="search" aria-label="Compare evaluations">
          ${field("Before: step", this.from, "small")}
          ${field("After: step", this.to, "small")}
          ${field("Sampling", kinds)}
          ${field("Change", select(CHANGES, "", set("change")))}
          ${field("Search", search, "wide")}
        </div>
        ${this.count}${this.body}${this.more}
      </div>`;
  }

  refresh() {
    const steps = [
      ...new Set(this.page.runView().rollouts.held_out.flatMap((one) => one.answers.map((answer) => answer[0]))),
    ].sort((a, b) => a - b);
    const options = steps.length ? steps.map((step) => [String(step), number(step)]) : [["", "none"]];
    const newest = this.to.value === "" || this.to.selectedIndex === this.to.options.length - 1;
    reselect(this.from, options, this.from.value);
    reselect(this.to, options, newest ? options[options.length - 1][0] : this.to.value);
    this.draw();
  }

  compare(one) {
    const mean = (step) => {
      const scores = one.answers.filter((a) => a[0] === step && a[2] !== null).map((a) => a[2]);
      return scores.length ? scores.reduce((x, y) => x + y, 0) / scores.length : null;
    };
    const [before, after] = [mean(Number(this.from.value)), mean(Number(this.to.value))];
    if (before === null || after === null) return "";
    return before < 1 ? (after >= 1 ? "gained" : "wrong") : after >= 1 ? "right" : "lost";
  }

  draw() {
    const all = this.page
      .runView()
      .rollouts.held_out.filter(
        (one) =>
          (!this.kind || (this.kind === "greedy") === one.greedy) &&
          (!this.text ||
            [one.problem, one.prompt, one.answer, one.set, ...one.answers.map((a) => a[1])].some((part) =>
              part.toLowerCase().includes(this.text),
            )),
      );
    const changes = all.map((one) => [one, this.compare(one)]);
    const fits = changes.filter(([, change]) => !this.change || change === this.change);
    const problems = new Set(all.map((one) => JSON.stringify([one.set, one.prompt_id]))).size;
    const whole =
      problems === all.length
        ? plural(problems, "problem")
        : `${plural(all.length, "answer")} to ${plural(problems, "problem")}, greedy and sampled apart`;
    const count = (name) => number(changes.filter(([, change]) => change === name).length);
    put(
      this.count,
      all.length
        ? `${whole}: ${count("gained")} wrong, then right; ` +
            `${count("lost")} right, then wrong; ` +
            `${count("right")} right and ${count("wrong")} wrong both times.`
        : "No answers to held-out problems are in this page.",
    );
    put(this.body, fits.slice(0, this.shown).map(([one, change]) => this.item(one, change)));
    this.more.hidden = fits.length <= this.shown;
  }

  item(one, change) {
    const at = (step, title) => {
      const answers = one.answers.filter((a) => a[0] === Number(step));
      return html`
        <div class="side">
          <p class="cap">${title}: step ${number(Number(step))}</p>
          ${answers.map((answer) => this.answer(answer))}
          ${answers.length ? null : html`<p class="faint">no answer recorded</p>`}
        </div>`;
    };
    const words = Object.fromEntries(CHANGES);
    const signs = { gained: "✗ → ✓", lost: "✓ → ✗", right: "✓ → ✓", wrong: "✗ → ✗" };
    return html`
      <article class=${`card heldout ${change}`}>
        <header>
          <span class="chip">${inline(one.set, 30)}</span>
          <span class="chip">${one.greedy ? "greedy" : "sampled"}</span>
          ${change ? html`<span class=${`change ${change}`}>${signs[change]} ${words[change]}</span>` : null}
          ${this.line(one)}
        </header>
        <div class="asked">
          <div>${problemBlock(one, `${one.set}-${one.prompt_id}-${one.greedy}`)}</div>
          <div class="gold">${textBlock(one.answer, "Gold answer")}</div>
        </div>
        <div class="two">${at(this.from.value, "Before")}${at(this.to.value, "After")}</div>
      </article>`;
  }

  /** A mark for each evaluation; a click shows it on the right. */
  line(one) {
    const steps = [...new Set(one.answers.map((a) => a[0]))];
    const mark = (step) => {
      const scores = one.answers.filter((a) => a[0] === step).map((a) => a[2]);
      const right = scores.some((v) => v !== null && v >= 1);
      const word = right ? "right" : "wrong";
      const show = () => {
        this.to.value = String(step);
        this.draw();
      };
      return html`
        <button type="button" class=${right ? "good" : "bad"} title=${`step ${step}: ${word}`}
          aria-label=${`Show step ${step}, ${word}, on the right`} onclick=${show}>${right ? "●" : "○"}</button>`;
    };
    return html`<span class="evals">${steps.slice(-24).map(mark)}</span>`;
  }

  answer([, text, accuracy, length, truncated]) {
    const [tone, word] =
      accuracy === null ? ["none", "? not scored"] : accuracy >= 1 ? ["good", "✓ right"] : ["bad", "✗ wrong"];
    return html`
      <div class="answer">
        <p>
          <span class=${`mark-of ${tone}`}>${word}</span>
          <small> ${plural(length, "token")}${truncated ? ", cut off" : ""}</small>
        </p>
        ${textBlock(text, "Answer")}
      </div>`;
  }
}
