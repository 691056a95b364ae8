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
    this.from = select([["", ""]], "", redraw);
    this.to = select([["", ""]], "", redraw);
    this.kindSelect = select(
      [
        ["", "all"],
        ["greedy", "greedy"],
        ["sampled", "sampled"],
      ],
      "",
      (value) => {
        this.kind = value;
        redraw();
      },
    );
    this.changeSelect = select(CHANGES, "", (value) => {
      this.change = value;
      redraw();
    });
    this.search = el("input", {
      type: "search",
      placeholder: "prompt or answer",
      spellcheck: "false",
      on: {
        input: debounced(() => {
          this.text = this.search.value.toLowerCase();
          redraw();
        }, 180),
      },
    });
    this.count = el("p", { class: "note", role: "status" });
    this.body = el("div", { class: "pairsof" });
    this.more = el(
      "button",
      {
        type: "button",
        on: {
          click: () => {
            this.shown += 60;
            this.draw();
          },
        },
      },
      "Show more",
    );
    this.root = el(
      "div",
      {},
      el(
        "div",
        { class: "controls", role: "search", "aria-label": "Compare evaluations" },
        field("Before: step", this.from, "small"),
        field("After: step", this.to, "small"),
        field("Sampling", this.kindSelect),
        field("Change", this.changeSelect),
        field("Search", this.search, "wide"),
      ),
      this.count,
      this.body,
      this.more,
    );
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
    put(
      this.body,
      fits.slice(0, this.shown).map(([one, change]) => this.item(one, change)),
    );
    this.more.hidden = fits.length <= this.shown;
  }

  item(one, change) {
    const at = (step, title) => {
      const answers = one.answers.filter((a) => a[0] === Number(step));
      return el(
        "div",
        { class: "side" },
        el("p", { class: "cap" }, `${title}: step ${number(Number(step))}`),
        answers.length
          ? answers.map((answer) => this.answer(answer))
          : el("p", { class: "faint" }, "no answer recorded"),
      );
    };
    return el(
      "article",
      { class: `card heldout ${change}` },
      el(
        "header",
        {},
        el("span", { class: "chip" }, inline(one.set, 30)),
        el("span", { class: "chip" }, one.greedy ? "greedy" : "sampled"),
        change
          ? el(
              "span",
              { class: `change ${change}` },
              { gained: "✗ → ✓", lost: "✓ → ✗", right: "✓ → ✓", wrong: "✗ → ✗" }[change],
              " ",
              own(Object.fromEntries(CHANGES), change),
            )
          : null,
        this.line(one),
      ),
      el(
        "div",
        { class: "asked" },
        el("div", {}, problemBlock(one, `${one.set}-${one.prompt_id}-${one.greedy}`)),
        el("div", { class: "gold" }, textBlock(one.answer, "Gold answer")),
      ),
      el("div", { class: "two" }, at(this.from.value, "Before"), at(this.to.value, "After")),
    );
  }

  /** A mark for each evaluation; a click shows it on the right. */
  line(one) {
    const steps = [...new Set(one.answers.map((a) => a[0]))];
    return el(
      "span",
      { class: "evals" },
      steps.slice(-24).map((step) => {
        const scores = one.answers.filter((a) => a[0] === step).map((a) => a[2]);
        const right = scores.some((v) => v !== null && v >= 1);
        return el(
          "button",
          {
            type: "button",
            class: right ? "good" : "bad",
            title: `step ${step}: ${right ? "right" : "wrong"}`,
            "aria-label": `Show step ${step}, ${right ? "right" : "wrong"}, on the right`,
            on: {
              click: () => {
                this.to.value = String(step);
                this.draw();
              },
            },
          },
          right ? "●" : "○",
        );
      }),
    );
  }

  answer([, text, accuracy, length, truncated]) {
    const right = accuracy !== null && accuracy >= 1;
    return el(
      "div",
      { class: "answer" },
      el(
        "p",
        {},
        el(
          "span",
          { class: `mark-of ${accuracy === null ? "none" : right ? "good" : "bad"}` },
          accuracy === null ? "? not scored" : right ? "✓ right" : "✗ wrong",
        ),
        el("small", {}, ` ${plural(length, "token")}${truncated ? ", cut off" : ""}`),
      ),
      textBlock(text, "Answer"),
    );
  }
}
