// The list of runs: a row each, kept in place while its numbers change.

const STORE = "dapo-runs";
const SIZE = { width: 168, height: 44, edge: 4 };
const SORTS = {
  newest: { label: "Newest first", value: (run) => -(run.updated || run.started || 0) },
  name: { label: "Name", value: (run) => run.name.toLowerCase() },
  accuracy: { label: "Held-out accuracy", value: (run) => -(lastOf(run.accuracy) ?? -1) },
  progress: { label: "Progress", value: (run) => -(run.steps ? run.step / run.steps : 0) },
  state: { label: "State", value: (run) => own(ORDER, run.state) },
  warnings: { label: "Warnings", value: (run) => -(1000 * run.bad + run.advice) },
};
const ORDER = { running: 0, failed: 1, killed: 2, unfilled: 3, interrupted: 4, unknown: 5, finished: 6 };

const stateOf = (run) => own(STATES, run.state) || STATES.unknown;
const kept = { search: "", sort: "newest", chosen: [] };
try {
  Object.assign(kept, JSON.parse(sessionStorage.getItem(STORE) || "{}"));
} catch {
  // without a storage, the search lasts as long as the page
}
const chosen = new Set(Array.isArray(kept.chosen) ? kept.chosen : []);
if (!Object.hasOwn(SORTS, kept.sort)) kept.sort = "newest";
const rows = new Map();
let runs = [];
let notices = { led_out: 0, cut: false, waiting: 0, folder: "" };
let arrived = false;

function remember() {
  try {
    sessionStorage.setItem(STORE, JSON.stringify({ ...kept, chosen: [...chosen] }));
  } catch {
    // see above
  }
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

function firstOf(values) {
  return values.find((value) => value !== null) ?? null;
}

/** How long ago, in the two largest units that matter. */
function ago(unix) {
  if (unix === null) return MISSING;
  const past = Date.now() / 1000 - unix;
  if (past < -60) return moment(unix); // clocks that differ
  if (past < 5) return "just now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  if (past < 86400 * 30) return `${plural(Math.floor(past / 86400), "day")} ago`;
  return moment(unix).slice(0, 10);
}

/** Held-out accuracy as dots, training accuracy as a line, 0 to 1 upwards, steps to the right. */
function curve(run) {
  const { width, height, edge } = SIZE;
  const dots = run.accuracy_steps || run.accuracy.map((_, i) => i);
  const line = run.reward_steps || run.reward.map((_, i) => i);
  const most = Math.max(1, ...dots, ...line);
  const x = (step) => (edge + (step / most) * (width - 2 * edge)).toFixed(1);
  const y = (value) => (height - edge - Math.min(1, Math.max(0, value)) * (height - 2 * edge)).toFixed(1);
  const stretches = [];
  let open = false;
  run.reward.forEach((value, i) => {
    if (value !== null) stretches.push(`${open ? "L" : "M"}${x(line[i])} ${y(value)}`);
    open = value !== null;
  });
  const first = firstOf(run.accuracy);
  const now = lastOf(run.accuracy);
  const told = now === null ? "not measured yet" : `from ${percent(first)} to ${percent(now)}`;
  const trained = lastOf(run.reward);
  const label = `Held-out accuracy ${told}${trained === null ? "" : `; training accuracy now ${percent(trained)}`}`;
  const r = run.accuracy.length > 20 ? 1.8 : 2.6;
  const dot = (value, i) => value !== null && html`<circle class="dot" cx=${x(dots[i])} cy=${y(value)} r=${r} />`;
  return html`
    <svg class="curve" role="img" aria-label=${label} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
      <title>${label}</title>
      ${[0, 0.5, 1].map((level) => html`<line class="level" x1="0" x2=${width} y1=${y(level)} y2=${y(level)} />`)}
      ${stretches.length ? html`<path class="line" d=${stretches.join("")} fill="none" />` : null}
      ${run.accuracy.map(dot)}
    </svg>`;
}

function progress(run) {
  const share = run.steps > 0 ? Math.min(1, run.step / run.steps) : 0;
  const done = { width: `${(100 * share).toFixed(1)}%` };
  return html`
    <span class="steps">${number(run.step)}<span class="of"> / ${run.steps ? number(run.steps) : "?"}</span></span>
    <span class=${`bar ${stateOf(run)[2]}`} aria-hidden="true"><span style=${done} /></span>`;
}

function accuracy(run) {
  const now = lastOf(run.accuracy);
  if (now === null) return html`<span class="faint">${MISSING}</span>`;
  const first = firstOf(run.accuracy);
  return html`
    <span class=${now < first ? "fell" : ""}>
      <strong>${percent(now)}</strong>
      ${run.accuracy.length > 1 ? html`<span class="of"> from ${percent(first)}</span>` : null}
    </span>`;
}

/** A row whose cells change only where a number did, so that a focus or a selected text stays. */
function makeRow(name) {
  const box = html`
    <input type="checkbox" aria-label=${`Compare ${name}`} onchange=${() => choose(name, box.checked)} />`;
  const keys = ["run", "state", "progress", "curve", "accuracy", "warnings", "updated"];
  const cells = Object.fromEntries(keys.map((key) => [key, html`<td class=${`c-${key}`} role="cell" />`]));
  const node = html`
    <tr role="row" data-run=${name}>
      <td class="c-box" role="cell"><label>${box}</label></td>${Object.values(cells)}
    </tr>`;
  const link = linkTo(addressOfRun(name), { class: "name" }, inline(name));
  const about = html`<span class="about" />`;
  put(cells.run, link, about);
  const seen = {};
  const fill = (key, what, make) => {
    const text = JSON.stringify(what);
    if (seen[key] === text) return;
    seen[key] = text;
    put(cells[key], make());
  };
  const update = (run) => {
    box.checked = chosen.has(name);
    node.classList.toggle("chosen", box.checked);
    const parts = [run.model, run.preset && `preset ${run.preset}`].filter(Boolean).join(" · ");
    if (about.textContent !== parts) about.textContent = oneLine(parts, 120);
    about.title = oneLine(run.model, 300);
    fill("state", [run.state, run.title], () => {
      const [word, sign, tone] = stateOf(run);
      return html`
        <span class=${`badge ${tone}`} data-state=${run.state} title=${oneLine(run.title, 200)}>
          <span aria-hidden="true">${sign} </span><span class="state">${word}</span>
        </span>`;
    });
    fill("progress", [run.step, run.steps, run.state], () => progress(run));
    fill("curve", [run.accuracy, run.accuracy_steps, run.reward, run.reward_steps], () => curve(run));
    fill("accuracy", run.accuracy, () => accuracy(run));
    fill("warnings", `${run.bad} ${run.advice}`, () => {
      if (!run.advice) return html`<span class="faint">none</span>`;
      const bad = run.bad ? `, ${run.bad} bad` : "";
      return html`<span class=${bad ? "warned bad" : "warned"}>${plural(run.advice, "warning")}${bad}</span>`;
    });
    const when = run.updated || run.started;
    fill("updated", `${ago(when)} ${moment(when)}`, () => html`<span title=${moment(when)}>${ago(when)}</span>`);
  };
  return { node, update };
}

function choose(name, on) {
  if (on) chosen.add(name);
  else chosen.delete(name);
  remember();
  show();
}

// ------------------------------------------------------------------------------------------------------------ frame

const looked = () => {
  kept.search = search.value;
  remember();
  show();
};
const search = html`
  <input type="search" placeholder="Name, model, preset, state" value=${kept.search} autocomplete="off" spellcheck="false"
    oninput=${looked} />`;
const sorting = select(Object.entries(SORTS).map(([key, sort]) => [key, sort.label]), kept.sort, (key) => sortBy(key));
const compare = linkTo("/compare", { class: "button", id: "compare" }, "Compare");
const clear = button("Clear", () => {
  chosen.clear();
  remember();
  show();
}, "quiet");
const hint = html`<span class="hint">Choose another to compare</span>`;
const choice = html`<div class="choice" hidden>${hint}${compare}${clear}</div>`;
const count = html`<p class="count" role="status" />`;
const aside = html`<p class="aside" hidden />`;
const COLUMNS = [
  ["run", "Run", "name"],
  ["state", "State", "state"],
  ["progress", "Steps", "progress"],
  ["curve", "Accuracy over steps", ""],
  ["accuracy", "Held-out accuracy", "accuracy"],
  ["warnings", "Warnings", "warnings"],
  ["updated", "Last update", "newest"],
];
const heads = COLUMNS.map(([key, text, sort]) => html`
  <th class=${`c-${key}`} role="columnheader" scope="col" data-sort=${sort}>
    ${sort ? button(text, () => sortBy(sort), "sorter") : text}
  </th>`);
const body = html`<tbody role="rowgroup" />`;
const table = html`
  <table class="runs" role="table" aria-label="Runs">
    <thead role="rowgroup">
      <tr role="row">
        <th class="c-box" role="columnheader" scope="col"><span class="offscreen">Compare</span></th>${heads}
      </tr>
    </thead>
    ${body}
  </table>`;
const empty = html`<div class="empty" hidden />`;
const legend = html`
  <p class="legend">
    <svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"><circle class="dot" cx="6" cy="6" r="3" /></svg>
    ${" held-out accuracy "}
    <svg width="20" height="12" viewBox="0 0 20 12" aria-hidden="true"><path class="line" d="M1 6L19 6" fill="none" /></svg>
    ${" training accuracy, lines at 0, 50 and 100%"}
  </p>`;

function sortBy(key) {
  kept.sort = key;
  sorting.value = key;
  remember();
  show();
}

function showChoice() {
  const names = runs.map((run) => run.name).filter((name) => chosen.has(name));
  choice.hidden = names.length === 0;
  const most = names.slice(0, 20);
  hint.hidden = names.length > 1;
  compare.hidden = names.length < 2;
  compare.setAttribute("href", `/compare?${most.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`);
  compare.textContent = names.length > most.length ? `Compare the first ${most.length} of ${names.length} runs` : `Compare ${names.length} runs`;
}

function shown() {
  const words = kept.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => {
    const text = [run.name, run.model, run.preset, stateOf(run)[0], run.title].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const { value } = SORTS[kept.sort];
  return found
    .map((run, i) => [value(run), i, run])
    .sort(([a, i], [b, j]) => (a < b ? -1 : a > b ? 1 : i - j))
    .map(([, , run]) => run);
}

function show() {
  const list = shown();
  const names = new Set(list.map((run) => run.name));
  for (const [name, row] of rows) if (!names.has(name)) row.node.remove();
  for (const name of rows.keys()) if (!runs.some((run) => run.name === name)) rows.delete(name);
  list.forEach((run, i) => {
    if (!rows.has(run.name)) rows.set(run.name, makeRow(run.name));
    const row = rows.get(run.name);
    row.update(run);
    if (body.children[i] !== row.node) body.insertBefore(row.node, body.children[i] || null);
  });
  for (const head of heads) {
    if (!head.dataset.sort) continue;
    const on = head.dataset.sort === kept.sort;
    if (on) head.setAttribute("aria-sort", kept.sort === "name" || kept.sort === "state" ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  table.hidden = list.length === 0;
  legend.hidden = list.length === 0;
  empty.hidden = list.length > 0 || !arrived || (runs.length === 0 && notices.waiting > 0);
  if (runs.length === 0)
    put(empty, html`
      <p>No runs in ${oneLine(notices.folder, 80)} yet.</p>
      <p><code>dapo train quickstart</code> makes one; it shows here by itself.</p>`);
  else if (list.length === 0) put(empty, html`<p>No run matches the search.</p>`);
  const going = runs.filter((run) => run.state === "running").length;
  const more = notices.waiting ? `, reading ${number(notices.waiting)} more` : "";
  const told = !arrived ? "" : `${list.length === runs.length ? plural(runs.length, "run") : `${list.length} of ${plural(runs.length, "run")}`}${going ? `, ${going} running` : ""}${more}`;
  if (count.textContent !== told) count.textContent = told;
  const said = [
    notices.led_out ? `${plural(notices.led_out, "link")} out of this folder not followed. To see what is there, serve that folder.` : "",
    notices.cut ? "The folder is very large; only the first few thousand folders were looked into." : "",
  ].filter(Boolean).join(" ");
  aside.hidden = !said;
  aside.textContent = said;
  showChoice();
}

function take(content) {
  runs = content.runs;
  notices = content;
  arrived = true;
  document.title = `${oneLine(content.folder, 60)} · dapo`;
  title.textContent = oneLine(content.folder, 60);
  if (!content.waiting) for (const name of chosen) if (!runs.some((run) => run.name === name)) chosen.delete(name);
  foot.textContent = `dapo ${content.version} · read-only · this page loads nothing but what its own server says`;
  show();
  return content.waiting ? "more" : "";
}

theme.start();
const title = html`<h1>Runs</h1>`;
const foot = document.getElementById("foot");
const freshness = html`<span role="status" />`;
const stands = touch(freshness);
put(document.getElementById("top"), html`
  <div class="head"><div>${title}${count}</div><div class="side">${freshness}${theme.control()}</div></div>`);
put(document.getElementById("runs"), html`
  <div class="tools">${field("Search", search, "wide")}${field("Sort by", sorting)}${choice}</div>
  ${aside}${legend}<div class="sheet">${table}</div>${empty}`);
const asking = poller("/api/runs", take, (how) => stands(how, arrived && !runs.some((run) => run.state === "running")), () => runs.some((run) => run.state === "running"));
asking.ask();
setInterval(() => { if (arrived && !document.hidden) show(); }, 5000);
