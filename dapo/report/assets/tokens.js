// A response token by token: coloured by what the sampler or the learner thought of each, with the numbers at hand.

const TOKENS_SHOWN = 1500;
const TOKENS_IN_GROUP = 20000;

function binned(edges, classes) {
  return (value) => {
    if (value === null || value === undefined) return "t-none";
    let i = 0;
    while (i < edges.length && value >= edges[i]) i += 1;
    return classes[i];
  };
}

const SEQUENCE = ["", "t-s1", "t-s2", "t-s3", "t-s4"];
const DIVERGING = ["t-n2", "t-n1", "", "t-p1", "t-p2"];
const UNLIKELY = binned([0.1, 0.7, 1.6, 3], SEQUENCE);
const OPEN = binned([0.1, 0.5, 1, 2], SEQUENCE);
const MOVED = binned([0.8, 0.95, 1.05, 1.25], DIVERGING);
const APART = binned([-0.1, -0.01, 0.01, 0.1], DIVERGING);
const CLIPS = ["none", "low", "high", "dual"];
const CLIPPED = ["", "t-low", "t-high", "t-dual"];

const named = (classes, ...texts) => texts.map((text, i) => [classes[i], text]);
const LIKELIHOODS = named(SEQUENCE, "likely, p > 90%", "50–90%", "20–50%", "5–20%", "p < 5%");

/** What tokens can be coloured by: has it been recorded, the class of token i, and the legend. */
const TOKEN_MODES = {
  sampler: {
    label: "log-probability (sampler)",
    has: (t) => t.sampler.some((v) => v !== null),
    paint: (t, i) => UNLIKELY(t.sampler[i] === null ? null : -t.sampler[i]),
    legend: LIKELIHOODS,
  },
  learner: {
    label: "log-probability (learner)",
    has: (t) => !!t.learner,
    paint: (t, i) => UNLIKELY(t.learner[i] === null ? null : -t.learner[i]),
    legend: LIKELIHOODS,
  },
  gap: {
    label: "gap (learner − sampler)",
    has: (t) => !!t.learner,
    paint: (t, i) => APART(t.learner[i] === null || t.sampler[i] === null ? null : t.learner[i] - t.sampler[i]),
    legend: named(
      DIVERGING,
      "≤ −0.1 nats",
      "−0.1 to −0.01",
      "alike",
      "0.01 to 0.1",
      "≥ 0.1 (the policy may have moved since)",
    ),
  },
  ratio: {
    label: "ratio",
    has: (t) => !!t.ratio,
    paint: (t, i) => MOVED(t.ratio[i]),
    legend: named(DIVERGING, "r < 0.8", "0.8–0.95", "0.95–1.05", "1.05–1.25", "r ≥ 1.25"),
  },
  clip: {
    label: "clip",
    has: (t) => !!t.clip,
    paint: (t, i) => CLIPPED[t.clip[i]] || "",
    legend: named(CLIPPED, "not clipped", "low", "high", "dual"),
  },
  entropy: {
    label: "entropy",
    has: (t) => !!t.entropy,
    paint: (t, i) => OPEN(t.entropy[i]),
    legend: named(SEQUENCE, "< 0.1 nats", "0.1–0.5", "0.5–1", "1–2", "≥ 2"),
  },
  version: {
    label: "version of the weights",
    has: (t) => t.versions.length > 0,
    paint: (t, i) => `t-v${((t.versions[i] % 4) + 4) % 4}`,
    legend: null,
  },
};

const BLANKS = { " ": "·", "\u00a0": "⍽", "\t": "⇥\t", "\n": "↵\n" };

/** A piece with its blanks visible. */
function pieceNodes(piece) {
  if (piece === "") return [html`<span class="odd">∅</span>`];
  const seen = (part) => (Object.hasOwn(BLANKS, part) ? html`<span class="blank">${BLANKS[part]}</span>` : visible(part));
  return piece.split(/([ \n\t\u00a0])/).filter((part) => part !== "").map(seen);
}

/** Did the program put token i in, a reply of an environment for instance? */
function isGiven(tokens, i) {
  return !!tokens.given && tokens.given.includes(i);
}

/** All that is known of token i, in one line. */
function tokenLine(tokens, i) {
  const read = (values) => (values && values[i] !== null && values[i] !== undefined ? values[i] : null);
  const logprob = (v) => (v === null ? MISSING : `${minus(v.toFixed(4))} (p ${percent(Math.exp(v))})`);
  const parts = [`token ${number(i + 1)} of ${number(tokens.pieces.length)}`, JSON.stringify(tokens.pieces[i])];
  if (isGiven(tokens, i)) return [...parts, "put in by the program: not sampled, no loss"];
  parts.push(`sampler ${logprob(read(tokens.sampler))}`);
  if (tokens.learner) parts.push(`learner ${logprob(read(tokens.learner))}`);
  if (tokens.ratio) parts.push(`ratio ${number(read(tokens.ratio))}`);
  if (tokens.entropy) parts.push(`entropy ${number(read(tokens.entropy))} nats`);
  if (tokens.clip) parts.push(`clip ${CLIPS[read(tokens.clip) || 0]}`);
  if (i < tokens.versions.length) parts.push(`weights ${number(tokens.versions[i])}`);
  return parts;
}

function tokenLegend(mode, responses) {
  const { legend } = TOKEN_MODES[mode];
  let entries = legend;
  if (!entries) {
    const versions = [...new Set(responses.flatMap((r) => (r.tokens ? r.tokens.versions : [])))].sort((a, b) => a - b);
    entries = versions.slice(-8).map((v) => [`t-v${((v % 4) + 4) % 4}`, `weights ${v}`]);
  }
  if (responses.some((r) => r.tokens && (r.tokens.given || []).length))
    entries = [...entries, ["t-given", "put in by the program, a reply for instance: no loss"]];
  return html`
    <ul class="tokenlegend" aria-label="Colours of the tokens">
      ${entries.map(([name, text]) => html`<li><span class=${`tok ${name}`}>abc</span> ${text}</li>`)}
    </ul>`;
}

/** How many tokens of each of `count` responses are drawn at first, so that a large group does not stop the page. */
function tokensAtFirst(count) {
  return Math.max(100, Math.min(TOKENS_SHOWN, Math.floor(TOKENS_IN_GROUP / Math.max(1, count))));
}

/** The tokens of a response in `mode`; `read(parts)` is told of the one under the pointer or the keyboard. */
function tokenBlock(tokens, mode, label, read, shown) {
  const said = `${label} token by token. Arrow keys read single tokens.`;
  const block = html`<div class="text tokens" tabindex="0" role="group" aria-label=${said} />`;
  const spans = [];
  let current = -1;
  const given = new Set(tokens.given || []);
  const colour = TOKEN_MODES[mode].has(tokens) ? TOKEN_MODES[mode].paint : () => "t-none";
  const paint = (of, i) => (given.has(i) ? "t-given" : colour(of, i));
  const show = (i) => {
    if (current >= 0) spans[current].classList.remove("here");
    current = i;
    if (i < 0) return;
    spans[i].classList.add("here");
    read(tokenLine(tokens, i));
  };
  const grow = (to) => {
    const part = document.createDocumentFragment();
    for (let i = spans.length; i < Math.min(to, tokens.pieces.length); i += 1) {
      const span = html`<span class=${`tok ${paint(tokens, i)}`} data-i=${i}>${pieceNodes(tokens.pieces[i])}</span>`;
      spans.push(span);
      part.append(span);
    }
    block.append(part);
  };
  grow(shown);
  if (spans.length < tokens.pieces.length) {
    const more = button(`Show the other ${number(tokens.pieces.length - spans.length)} tokens`, () => {
      more.remove();
      grow(tokens.pieces.length);
      block.focus();
    }, "quiet");
    block.append(more);
  }
  block.addEventListener("mouseover", (event) => {
    const span = event.target.closest(".tok");
    if (span && block.contains(span)) show(Number(span.dataset.i));
  });
  block.addEventListener("mouseleave", () => document.activeElement !== block && show(-1));
  block.addEventListener("blur", () => show(-1));
  block.addEventListener("keydown", (event) => {
    const to = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (to === undefined || event.target !== block) return;
    event.preventDefault();
    show(Math.max(0, Math.min(spans.length - 1, to)));
    spans[current].scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return block;
}
