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
  const told = (tone, text) => html`<span class=${`mark-of ${tone}`}>${text}</span>`;
  if (response.unscored) return told("none", "? not scored");
  if (response.accuracy === null) return told("none", "? no accuracy");
  if (response.accuracy >= 1) return told("good", "✓ correct");
  if (response.accuracy <= 0) return told("bad", "✗ wrong");
  return told("warn", `◐ ${percent(response.accuracy)}`);
}

function signed(value) {
  return value === null ? MISSING : `${value > 0 ? "+" : ""}${number(value)}`;
}

/** A bar to the right for a gain, to the left for a loss. */
function signedBar(value, most) {
  const share = value === null || !most ? 0 : Math.min(1, Math.abs(value) / most) * 50;
  const style = { width: `${share.toFixed(1)}%`, [value < 0 ? "right" : "left"]: "50%" };
  const bar = html`<span class=${value < 0 ? "minus" : "plus"} style=${style} />`;
  return html`<span class="signed" aria-hidden="true">${bar}</span>`;
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
    if (value === null) return html`<circle cx="9" cy=${y} r="1.5" fill="var(--muted)" />`;
    const height = Math.max(1, (Math.abs(value) / scale) * half);
    const colour = `var(${name || (value < 0 ? "--minus" : "--plus")})`;
    return html`<rect x="4" width="10" y=${value < 0 ? y : y - height} height=${height} rx="1.5" fill=${colour} />`;
  };
  const column = (r, i) => html`
    <li>
      <button type="button" title=${inShort(r, rewards[i])} aria-label=${inShort(r, rewards[i])} onclick=${() => go(i)}>
        <svg width="18" height="92" viewBox="0 0 18 92" aria-hidden="true">
          <line x1="0" x2="18" y1="24" y2="24" stroke="var(--line)" />
          ${bar(rewards[i], most, 24, 21, r.accuracy === null ? "--muted" : null)}
          <line x1="0" x2="18" y1="68" y2="68" stroke="var(--line)" />
          ${bar(r.advantage, far, 68, 21)}
        </svg>
        <span aria-hidden="true">${r.sample}</span>
      </button>
    </li>`;
  const what = rewards.some((v, i) => v !== group.responses[i].reward) ? "shaped reward" : "reward";
  return html`
    <div class="strip">
      <div class="rows" aria-hidden="true"><span>${what}</span><span>advantage</span></div>
      <ul aria-label="Rewards and advantages of the group">${group.responses.map(column)}</ul>
    </div>`;
}

class GroupPanel {
  constructor(page) {
    Object.assign(this, { page, mode: "", order: "sample", group: null });
    this.root = html`<section class="group" aria-label="The open group" tabindex="-1" />`;
    this.clear();
  }

  clear() {
    put(this.root, html`<p class="empty">Choose a group to see its responses side by side.</p>`);
  }

  /** `context`: {before, after: functions that open the neighbours, or null; prompt: one that opens its history}. */
  show(group, context) {
    Object.assign(this, { group, context, most: CARDS_SHOWN });
    const spread = group.responses.length;
    this.modes = Object.entries(TOKEN_MODES).filter(([, mode]) =>
      group.responses.some((r) => r.tokens && mode.has(r.tokens)),
    );
    if (!this.modes.some(([key]) => key === this.mode)) this.mode = "";
    this.cards = html`<div class="cards" tabindex="0" role="group" aria-label="Responses" />`;
    this.readout = html`<p class="readout" aria-live="polite" />`;
    this.legend = html`<div />`;
    this.previous = button("← Previous");
    this.next = button("Next →");
    this.neighbours(context);
    const prompt = button([inline(group.prompt_id, 20), " and its history"], () => context.prompt(), "link");
    put(this.root, html`
      <div class="grouphead">
        <h3>Step ${number(group.step)}, group ${number(group.group)}</h3>
        ${chip(group.verdict, "verdict")}
        ${group.disposition ? chip(group.disposition, "disposition") : null}
        <span class="side">${this.previous}${this.next}</span>
      </div>
      ${group.why ? html`<p class="why">${worded(group.why)}</p>` : null}
      <dl class="pairs">
        ${pair("correct", `${number(group.correct)} of ${number(group.scored)} scored`)}
        ${pair("responses", number(group.size))}
        ${pair("mean length", `${number(group.length_mean)} tokens`)}
        ${pair("cut off", number(group.truncated))}
        ${pair("weights when sent", `version ${number(group.born - 1)}`)}
        ${pair("source", inline(group.source, 60))}
        ${pair("prompt", prompt)}
      </dl>
      ${askedOf(problemBlock(group, `${group.step}-${group.group}`), group.answer)}
      ${spread ? null : html`<p class="empty">The responses of this group are not in this page.</p>`}
      ${spread ? strip(group, (i) => this.go(i)) : null}
      ${spread ? html`<div class="controls">${this.colours()}${this.orders()}${this.legend}</div>` : null}
      ${this.readout}${this.cards}`);
    this.draw();
  }

  /** The choice of what tokens are coloured by, or why there is none. */
  colours() {
    if (!this.modes.length) return html`<p class="note">${this.noTokens()}</p>`;
    const options = [["", "nothing (plain text)"], ...this.modes.map(([key, mode]) => [key, mode.label])];
    return field("Colour tokens by", select(options, this.mode, (mode) => this.draw({ mode })));
  }

  orders() {
    const options = [
      ["sample", "as sampled"],
      ["advantage", "advantage"],
      ["length", "length"],
      ["logprob", "log-probability"],
    ];
    return field("Order", select(options, this.order, (order) => this.draw({ order })));
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

  draw(chosen) {
    const { group } = Object.assign(this, chosen);
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
    put(
      this.cards,
      this.folded.slice(0, this.most).map((equal) => this.card(equal, far)),
      hidden > 0 ? button(`Show ${plural(hidden, "further answer")}`, () => this.draw({ most: Infinity })) : null,
    );
  }

  /** Where no token has a colour, say so: a plain text could also mean that nothing was recorded. */
  nothingStandsOut() {
    const { has, paint, legend } = TOKEN_MODES[this.mode];
    const plain = legend && legend.find(([name]) => name === "");
    const told = this.group.responses.map((r) => r.tokens).filter((tokens) => tokens && has(tokens));
    if (!plain || !told.every((tokens) => tokens.pieces.every((_, i) => paint(tokens, i) === ""))) return null;
    return html`<p class="note">All tokens recorded here are in the class without a colour: ${plain[1]}.</p>`;
  }

  /** The card of one response, or of several equal ones. */
  card(equal, far) {
    const [r] = equal;
    const samples = equal.map((one) => one.sample);
    const name = equal.length > 1 ? `Responses ${samples.join(", ")}` : `Response ${r.sample}`;
    const piece = (part, i) => html`<span class=${i === 1 ? "piece" : ""}>${visible(part)}</span>`;
    const read = (parts) => put(this.readout, html`<b>${name}, </b>`, parts.map(piece));
    const parts = Object.entries(r.rewards).filter(([key, value]) => key !== "accuracy" || value !== r.accuracy);
    const body =
      this.mode && r.tokens
        ? tokenBlock(r.tokens, this.mode, name, read, tokensAtFirst(Math.min(this.most, this.folded.length)))
        : r.turns
          ? turnsBlock(r.turns, name)
          : textBlock(r.text, name);
    return html`
      <article class="response" data-samples=${samples.join(" ")} aria-label=${name} tabindex="-1">
        <header>
          <b>#${r.sample}</b>
          ${equal.length > 1 ? html`<span class="chip" title=${name}>${number(equal.length)} equal</span>` : null}
          ${mark(r)}
          <span class="advantage" title="advantage">
            ${signedBar(r.advantage, far)}<span>${signed(r.advantage)}</span>
          </span>
        </header>
        ${body}
        ${r.unscored ? html`<p class="why">Not scored: ${visible(r.unscored)}</p>` : null}
        <dl class="pairs">
          ${pair("reward", number(r.reward))}
          ${parts.map(([key, value]) => pair(inline(key, 40), number(value)))}
          ${r.penalty ? pair("penalty", number(r.penalty)) : null}
          ${r.shaped !== null && r.shaped !== r.reward ? pair("shaped", number(r.shaped)) : null}
          ${pair("length", plural(r.length, "token"))}
          ${pair("finish", own(FINISHES, r.finish) || inline(r.finish, 30))}
          ${r.ended ? pair("episode", own(EPISODES, r.ended) || inline(r.ended, 30)) : null}
          ${r.logprob !== null ? pair("mean log-prob", number(r.logprob)) : null}
          ${r.voter === false ? pair("vote", "none: not in the baseline, no loss") : null}
        </dl>
      </article>`;
  }

  go(i) {
    const { sample } = this.group.responses[i];
    const found = () =>
      [...this.cards.children].find((one) => (one.dataset.samples || "").split(" ").includes(String(sample)));
    if (!found()) this.draw({ most: Infinity });
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
    ...Object.entries(turn.facts).map(([name, value]) => ` ${name} ${number(value)}`),
  ];
  const block = (turn) => html`
    <div class=${turn.who === "assistant" ? "turn" : "turn reply"} dir="auto">
      <span class="who">${visible(turn.who + notes(turn).join(""))}</span>
      ${visible(wellCut(turn.text, CUT))}
    </div>`;
  const told = turns.filter((turn) => turn.text !== "" || turn.who === "assistant");
  return html`<div class="text episode" tabindex="0" role="group" aria-label=${label}>${told.map(block)}</div>`;
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
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}

/** A problem beside its gold answer. */
function askedOf(problem, answer) {
  return html`
    <div class="asked">
      <div><p class="cap">Problem</p>${problem}</div>
      <div class="gold"><p class="cap">Gold answer</p>${textBlock(answer, "Gold answer")}</div>
    </div>`;
}
