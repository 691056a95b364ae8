// One group: the prompt, the gold answer, why it was kept or dropped, and its responses side by side.

const CARDS_SHOWN = 64;
const FINISHES = { stop: "ended by itself", length: "cut off at the limit", failed: "failed", aborted: "aborted" };

const EPISODES = {
  done: "ended by its environment",
  turns: "ended by the limit of turns",
  tokens: "its tokens were spent",
  reply: "a reply left no room for a token",
  error: "its environment failed",
};

function mark(response) {
  if (response.unscored) return el("span", { class: "mark-of none" }, "? not scored");
  if (response.accuracy === null) return el("span", { class: "mark-of none" }, "? no accuracy");
  if (response.accuracy >= 1) return el("span", { class: "mark-of good" }, "✓ correct");
  if (response.accuracy <= 0) return el("span", { class: "mark-of bad" }, "✗ wrong");
  return el("span", { class: "mark-of warn" }, `◐ ${percent(response.accuracy)}`);
}

function signed(value) {
  return value === null ? MISSING : `${value > 0 ? "+" : ""}${number(value)}`;
}

/** A bar to the right for a gain, to the left for a loss. */
function signedBar(value, most) {
  const share = value === null || !most ? 0 : Math.min(1, Math.abs(value) / most) * 50;
  return el(
    "span",
    { class: "signed", "aria-hidden": "true" },
    el("span", {
      class: value < 0 ? "minus" : "plus",
      style: { width: `${share.toFixed(1)}%`, [value < 0 ? "right" : "left"]: "50%" },
    }),
  );
}

function inShort(r, reward) {
  const parts = [mark(r).textContent.slice(2), `reward ${number(reward)}`, `advantage ${signed(r.advantage)}`];
  return `Response ${r.sample}: ${[...parts, plural(r.length, "token")].join(", ")}`;
}

/** A column a response: its reward above, its advantage below; a click goes to the response. */
function strip(group, go) {
  const rewards = group.responses.map((r) => (r.shaped !== null ? r.shaped : r.reward));
  const most = Math.max(1e-9, ...rewards.map((v) => Math.abs(v || 0)));
  const far = Math.max(1e-9, ...group.responses.map((r) => Math.abs(r.advantage || 0)));
  const bar = (value, scale, y, half, name) => {
    if (value === null) return sv("circle", { cx: 9, cy: y, r: 1.5, fill: "var(--muted)" });
    const height = Math.max(1, (Math.abs(value) / scale) * half);
    return sv("rect", {
      x: 4,
      width: 10,
      y: value < 0 ? y : y - height,
      height,
      rx: 1.5,
      fill: `var(${name || (value < 0 ? "--minus" : "--plus")})`,
    });
  };
  return el(
    "div",
    { class: "strip" },
    el(
      "div",
      { class: "rows", "aria-hidden": "true" },
      el("span", {}, rewards.some((v, i) => v !== group.responses[i].reward) ? "shaped reward" : "reward"),
      el("span", {}, "advantage"),
    ),
    el(
      "ul",
      { "aria-label": "Rewards and advantages of the group" },
      group.responses.map((r, i) =>
        el(
          "li",
          {},
          el(
            "button",
            {
              type: "button",
              title: inShort(r, rewards[i]),
              "aria-label": inShort(r, rewards[i]),
              on: { click: () => go(i) },
            },
            sv(
              "svg",
              { width: 18, height: 92, viewBox: "0 0 18 92", "aria-hidden": "true" },
              sv("line", { x1: 0, x2: 18, y1: 24, y2: 24, stroke: "var(--line)" }),
              bar(rewards[i], most, 24, 21, r.accuracy === null ? "--muted" : null),
              sv("line", { x1: 0, x2: 18, y1: 68, y2: 68, stroke: "var(--line)" }),
              bar(r.advantage, far, 68, 21),
            ),
            el("span", { "aria-hidden": "true" }, r.sample),
          ),
        ),
      ),
    ),
  );
}

class GroupPanel {
  constructor(page) {
    Object.assign(this, { page, mode: "", order: "sample", group: null });
    this.root = el("section", { class: "group", "aria-label": "The open group", tabindex: -1 });
    this.clear();
  }

  clear() {
    put(this.root, el("p", { class: "empty" }, "Choose a group to see its responses side by side."));
  }

  /** `context`: {before, after: functions that open the neighbours, or null; prompt: one that opens its history}. */
  show(group, context) {
    Object.assign(this, { group, context, most: CARDS_SHOWN });
    const spread = group.responses.length;
    this.modes = Object.entries(TOKEN_MODES).filter(([, mode]) =>
      group.responses.some((r) => r.tokens && mode.has(r.tokens)),
    );
    if (!this.modes.some(([key]) => key === this.mode)) this.mode = "";
    this.cards = el("div", { class: "cards", tabindex: 0, role: "group", "aria-label": "Responses" });
    this.readout = el("p", { class: "readout", "aria-live": "polite" });
    this.legend = el("div", {});
    this.previous = el("button", { type: "button" }, "← Previous");
    this.next = el("button", { type: "button" }, "Next →");
    this.neighbours(context);
    put(
      this.root,
      el(
        "div",
        { class: "grouphead" },
        el("h3", {}, `Step ${number(group.step)}, group ${number(group.group)}`),
        chip(group.verdict, "verdict"),
        group.disposition ? chip(group.disposition, "disposition") : null,
        el("span", { class: "side" }, this.previous, this.next),
      ),
      group.why ? el("p", { class: "why" }, worded(group.why)) : null,
      el(
        "dl",
        { class: "pairs" },
        pair("correct", `${number(group.correct)} of ${number(group.scored)} scored`),
        pair("responses", number(group.size)),
        pair("mean length", `${number(group.length_mean)} tokens`),
        pair("cut off", number(group.truncated)),
        pair("weights when sent", `version ${number(group.born - 1)}`),
        pair("source", inline(group.source, 60)),
        pair(
          "prompt",
          el(
            "button",
            { type: "button", class: "link", on: { click: () => context.prompt() } },
            inline(group.prompt_id, 20),
            " and its history",
          ),
        ),
      ),
      el(
        "div",
        { class: "asked" },
        el("div", {}, el("p", { class: "cap" }, "Problem"), problemBlock(group, `${group.step}-${group.group}`)),
        el("div", { class: "gold" }, el("p", { class: "cap" }, "Gold answer"), textBlock(group.answer, "Gold answer")),
      ),
      spread
        ? strip(group, (i) => this.go(i))
        : el("p", { class: "empty" }, "The responses of this group are not in this page."),
      spread
        ? el(
            "div",
            { class: "controls" },
            this.modes.length
              ? field(
                  "Colour tokens by",
                  select(
                    [["", "nothing (plain text)"], ...this.modes.map(([key, mode]) => [key, mode.label])],
                    this.mode,
                    (value) => {
                      this.mode = value;
                      this.draw();
                    },
                  ),
                )
              : el("p", { class: "note" }, this.noTokens()),
            field(
              "Order",
              select(
                [
                  ["sample", "as sampled"],
                  ["advantage", "advantage"],
                  ["length", "length"],
                  ["logprob", "log-probability"],
                ],
                this.order,
                (value) => {
                  this.order = value;
                  this.draw();
                },
              ),
            ),
            this.legend,
          )
        : null,
      this.readout,
      this.cards,
    );
    this.draw();
  }

  /** Why this group cannot be coloured. */
  noTokens() {
    if (this.page.runView().rollouts.groups.some((one) => one.has_tokens))
      return "Token by token was recorded for other groups (filter “with tokens”).";
    return this.page.live
      ? "Nothing was recorded token by token for this group."
      : "This page holds no record token by token.";
  }

  /** The buttons that open the groups before and after; null where there is none. */
  neighbours({ before, after }) {
    for (const [button, move] of [
      [this.previous, before],
      [this.next, after],
    ]) {
      if (!button) continue;
      button.disabled = !move;
      button.onclick = move;
    }
  }

  draw() {
    const { group } = this;
    const by = {
      sample: (r) => r.sample,
      advantage: (r) => -(r.advantage === null ? -1e9 : r.advantage),
      length: (r) => -r.length,
      logprob: (r) => (r.logprob === null ? 1e9 : r.logprob),
    }[this.order];
    const far = Math.max(1e-9, ...group.responses.map((r) => Math.abs(r.advantage || 0)));
    this.sorted = [...group.responses].sort((a, b) => by(a) - by(b) || a.sample - b.sample);
    put(this.legend, this.mode ? [tokenLegend(this.mode, group.responses), this.nothingStandsOut()] : null);
    this.readout.hidden = !this.mode;
    this.readout.textContent = "Point at a token, or focus a response and use the arrow keys, to read its numbers.";
    this.folded = equalOnes(this.sorted);
    const hidden = this.folded.length - this.most;
    const more = () => {
      this.most = Infinity;
      this.draw();
    };
    put(
      this.cards,
      this.folded.slice(0, this.most).map((equal) => this.card(equal, far)),
      hidden > 0
        ? el("button", { type: "button", on: { click: more } }, `Show ${plural(hidden, "further answer")}`)
        : null,
    );
  }

  /** Where no token has a colour, say so: a plain text could also mean that nothing was recorded. */
  nothingStandsOut() {
    const { has, paint, legend } = TOKEN_MODES[this.mode];
    const plain = legend && legend.find(([name]) => name === "");
    const told = this.group.responses.map((r) => r.tokens).filter((tokens) => tokens && has(tokens));
    if (!plain || !told.every((tokens) => tokens.pieces.every((_, i) => paint(tokens, i) === ""))) return null;
    return el("p", { class: "note" }, `All tokens recorded here are in the class without a colour: ${plain[1]}.`);
  }

  /** The card of one response, or of several equal ones. */
  card(equal, far) {
    const [r] = equal;
    const samples = equal.map((one) => one.sample);
    const name = equal.length > 1 ? `Responses ${samples.join(", ")}` : `Response ${r.sample}`;
    const read = (parts) =>
      put(
        this.readout,
        el("b", {}, `${name}, `),
        parts.map((part, i) => el("span", { class: i === 1 ? "piece" : "" }, visible(part))),
      );
    const parts = Object.entries(r.rewards).filter(([key, value]) => key !== "accuracy" || value !== r.accuracy);
    const body =
      this.mode && r.tokens
        ? tokenBlock(r.tokens, this.mode, name, read, tokensAtFirst(Math.min(this.most, this.folded.length)))
        : r.turns
          ? turnsBlock(r.turns, name)
          : textBlock(r.text, name);
    return el(
      "article",
      { class: "response", "data-samples": samples.join(" "), "aria-label": name, tabindex: -1 },
      el(
        "header",
        {},
        el("b", {}, `#${r.sample}`),
        equal.length > 1 ? el("span", { class: "chip", title: name }, `${number(equal.length)} equal`) : null,
        mark(r),
        el(
          "span",
          { class: "advantage", title: "advantage" },
          signedBar(r.advantage, far),
          el("span", {}, signed(r.advantage)),
        ),
      ),
      body,
      r.unscored ? el("p", { class: "why" }, "Not scored: ", visible(r.unscored)) : null,
      el(
        "dl",
        { class: "pairs" },
        pair("reward", number(r.reward)),
        parts.map(([key, value]) => pair(inline(key, 40), number(value))),
        r.penalty ? pair("penalty", number(r.penalty)) : null,
        r.shaped !== null && r.shaped !== r.reward ? pair("shaped", number(r.shaped)) : null,
        pair("length", plural(r.length, "token")),
        pair("finish", own(FINISHES, r.finish) || inline(r.finish, 30)),
        r.ended ? pair("episode", own(EPISODES, r.ended) || inline(r.ended, 30)) : null,
        r.logprob !== null ? pair("mean log-prob", number(r.logprob)) : null,
        r.voter === false ? pair("vote", "none: not in the baseline, no loss") : null,
      ),
    );
  }

  go(i) {
    const { sample } = this.group.responses[i];
    const found = () =>
      [...this.cards.children].find((one) => (one.dataset.samples || "").split(" ").includes(String(sample)));
    if (!found()) {
      this.most = Infinity;
      this.draw();
    }
    const node = found();
    node.scrollIntoView({ block: "nearest", inline: "start" });
    node.focus({ preventScroll: true });
  }
}

/** An episode by its turns: what the environment said is shaded. */
function turnsBlock(turns, label) {
  const notes = (turn) => [
    turn.calls.length ? ` calls ${turn.calls.join(", ")}` : "",
    turn.reward ? ` reward ${number(turn.reward)}` : "",
  ];
  return el(
    "div",
    { class: "text episode", tabindex: 0, role: "group", "aria-label": label },
    turns
      .filter((turn) => turn.text !== "" || turn.who === "assistant")
      .map((turn) =>
        el(
          "div",
          { class: turn.who === "assistant" ? "turn" : "turn reply", dir: "auto" },
          el("span", { class: "who" }, visible(turn.who + notes(turn).join(""))),
          visible(wellCut(turn.text, CUT)),
        ),
      ),
  );
}

/** Responses with equal text and scores together, in the order of their first. */
function equalOnes(responses) {
  const found = new Map();
  for (const r of responses) {
    const what = JSON.stringify([r.text, r.finish, r.length, r.accuracy, r.rewards, r.shaped, r.advantage, r.voter, r.unscored]);
    found.set(what, [...(found.get(what) || []), r]);
  }
  return [...found.values()];
}

function pair(name, value) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value));
}
