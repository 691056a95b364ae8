// Text of models and data, shown as it is: what would not show, or would bend what stands around it, is named.

const CONTROL_NAMES = new Map([
  [0x200b, "ZWSP"],
  [0x200c, "ZWNJ"],
  [0x200d, "ZWJ"],
  [0x200e, "LRM"],
  [0x200f, "RLM"],
  [0x202a, "LRE"],
  [0x202b, "RLE"],
  [0x202c, "PDF"],
  [0x202d, "LRO"],
  [0x202e, "RLO"],
  [0x2028, "LS"],
  [0x2029, "PS"],
  [0x2060, "WJ"],
  [0x2066, "LRI"],
  [0x2067, "RLI"],
  [0x2068, "FSI"],
  [0x2069, "PDI"],
  [0x61c, "ALM"],
  [0xad, "SHY"],
  [0xfeff, "BOM"],
  [0x7f, "DEL"],
]);
const ODD = new RegExp(
  [
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c]", // controls less tab and newline, soft hyphen
    "[\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]", // no width, line separators, direction
    "[\\ud800-\\udbff](?![\\udc00-\\udfff])", // halves of a pair alone
    "(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
  ].join("|"),
  "g",
);
const CUT = 20000;

/** How a character that does not show is written: a control picture, a name, or its code. */
function namedControl(code) {
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (CONTROL_NAMES.has(code)) return `⟨${CONTROL_NAMES.get(code)}⟩`;
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** The text as one line of plain characters, at most `most` of them; for tables and titles. */
function oneLine(text, most) {
  const long = text.length > most * 2 ? text.slice(0, most * 2) : text;
  const flat = long
    .replace(/\s+/g, " ")
    .replace(ODD, (c) => namedControl(c.charCodeAt(0)))
    .trim();
  return flat.length > most || text.length > most * 2 ? `${wellCut(flat, most)} …` : flat;
}

function wellCut(text, most) {
  const end = /[\ud800-\udbff]/.test(text.charAt(most - 1)) ? most - 1 : most;
  return text.slice(0, end);
}

/** Nodes that show `text` with every character visible. */
function visible(text) {
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(ODD)) {
    if (match.index > last) nodes.push(document.createTextNode(text.slice(last, match.index)));
    const code = match[0].charCodeAt(0);
    const title = `character U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(html`<span class="odd" title=${title}>${namedControl(code)}</span>`);
    last = match.index + 1;
  }
  if (last < text.length) nodes.push(document.createTextNode(text.slice(last)));
  return nodes;
}

/** Sentences of this package: what stands between backticks is code. The names in them are untrusted all the same. */
function worded(text) {
  return text.split(/`([^`\n]+)`/).map((part, i) => (i % 2 ? html`<code>${visible(part)}</code>` : visible(part)));
}

/** A problem as the data has it; what the model saw, template and all, on demand. */
function problemBlock(one, key) {
  if (one.prompt === one.problem) return textBlock(one.problem, "Problem");
  return html`
    ${textBlock(one.problem, "Problem")}
    <details class="template" data-key=${`template-${key}`}>
      <summary>As the model saw it</summary>
      ${textBlock(one.prompt, "Prompt")}
    </details>`;
}

/** A block of text as it came. Very long ones show their beginning, and the rest when asked. */
function textBlock(text, label, className) {
  const head = text.length > CUT ? wellCut(text, CUT) : text;
  const rest = text.slice(head.length);
  const show = () => {
    more.replaceWith(...visible(rest));
    block.focus();
  };
  const more = rest && button(`Show the other ${number(rest.length)} characters`, show, "quiet");
  const block = html`
    <pre class=${`text ${className || ""}`} dir="auto" tabindex="0" role="group" aria-label=${label}>
      ${text === "" ? html`<span class="faint">(empty)</span>` : visible(head)}${rest ? ["\n", more] : null}
    </pre>`;
  return block;
}

/** Text within a line (names of runs, data sets, rewards): isolated, so that it cannot turn its surroundings. */
function inline(text, most) {
  return html`<bdi class="inline">${visible(most && text.length > most ? `${wellCut(text, most)} …` : text)}</bdi>`;
}
