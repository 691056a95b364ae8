// The first screen: how each run stands or ended, what came of it in words and numbers, and what is wrong.

const TONES = { good: "✓ ", bad: "✗ ", warn: "! ", "": "" };

/** Whether the run did what it was made for: held-out accuracy rose by more than chance, and nothing is badly wrong. */
function succeeded(run) {
  return run.tiles.some((one) => one.tone === "good") && !urgentOf(run).length;
}

/** The colour of a run's state. One that reached its end has that of success only where it learned. */
function toneOf(run) {
  const [, , tone] = own(STATES, run.status.state) || STATES.unknown;
  return run.status.state === "finished" && succeeded(run) ? "good" : tone;
}

function badge(run) {
  const { status } = run;
  const [word, sign] = own(STATES, status.state) || STATES.unknown;
  const tone = toneOf(run);
  return html`
    <span class=${`badge ${tone}`} data-state=${status.state}><span aria-hidden="true">${sign} </span>${word}</span>`;
}

function definition(page, key) {
  const line = key ? own(page.bundle.glossary, key) : null;
  return line ? `${key} (${unitName(line.unit)}): ${line.meaning}` : "";
}

function header(page, root) {
  const name = html`<div class="names" />`;
  put(root, html`
    <div class="bar">
      ${page.live ? null : html`<span class="mark" aria-hidden="true">dapo</span>`}
      ${name}
      <div class="side">${page.freshness}${theme.control()}</div>
    </div>
    ${page.nav}`);
  return () => {
    const { runs } = page.bundle;
    const [one] = runs;
    const item = (run) => html`<li>${inline(run.label, 40)} ${badge(run)}${alarm(run)}</li>`;
    put(name, runs.length === 1
      ? html`<h1>${inline(one.label, 80)}</h1>${badge(one)}${alarm(one)}`
      : html`<h1>${runs.length} runs</h1><ul class="runs">${runs.map(item)}</ul>`);
  };
}

/** Beside the state: a run can finish and be badly wrong. */
function alarm(run) {
  const count = urgentOf(run).length;
  return count
    ? html`<a href="#warnings" class="badge bad alarm">${`✗ ${plural(count, "thing")} badly wrong`}</a>`
    : null;
}

/** "step 40 of 60 · steps took 23 s · ended 2026-01-01 12:00". A resumed run rests between its sessions. */
function facts(run) {
  const { step, steps, started, updated, state } = run.status;
  const parts = [steps ? `step ${number(step)} of ${number(steps)}` : `step ${number(step)}`];
  const took = run.tiles.find((one) => one.key === "time/step" && /^time in steps/i.test(one.label));
  if (took) parts.push(`steps took ${oneLine(took.value, 40)}`);
  if (started !== null) parts.push(`started ${moment(started)}`);
  if (updated !== null) parts.push(`${state === "running" ? "last heard of" : "ended"} ${moment(updated)}`);
  if (run.seed !== null) parts.push(`seed ${run.seed}`);
  return parts.join(" · ");
}

function progress(run) {
  const { status } = run;
  if (!status.steps) return null;
  const share = Math.max(0, Math.min(1, status.step / status.steps));
  return html`
    <div class=${`progress ${toneOf(run)}`} role="progressbar" aria-label="Steps done"
      aria-valuemin="0" aria-valuemax=${status.steps} aria-valuenow=${status.step}>
      <span style=${{ width: `${(share * 100).toFixed(1)}%` }} />
    </div>`;
}

/** What went wrong, where the run did not end well. */
function banner(run, several) {
  const { state, title, said, log } = run.status;
  if (state === "finished" || (state === "running" && !said)) return null;
  const [, sign, tone] = own(STATES, state) || STATES.unknown;
  const lines = log.join("\n");
  const open = (state === "failed" || state === "killed") && !several;
  return html`
    <div class=${`banner ${tone}`} role=${tone === "bad" ? "alert" : "note"}>
      <p class="title"><span aria-hidden="true">${sign} </span>${visible(title)}</p>
      ${said ? html`<p class="said">${worded(said)}</p>` : null}
      ${lines.trim() ? html`
        <details open=${open} data-key=${`log-${run.label}`} ontoggle=${(event) => toItsEnd(event.currentTarget)}>
          <summary>The end of its log (${plural(log.length, "line")})</summary>
          ${textBlock(lines, "The end of the run's log", "log")}
        </details>` : null}
    </div>`;
}

/** The last lines of a log say what ended the run. */
function toItsEnd(details) {
  const block = details.querySelector("pre");
  if (details.open && block) block.scrollTop = block.scrollHeight;
}

/** A number and its unit stay on one line. */
function kept(value) {
  return value.replace(/(\d) (?=[^\d\s(])/g, "$1\u00a0").replace(/(→|->) (?=\d)/g, "$1\u00a0");
}

function tile(page, one) {
  const meaning = definition(page, one.key);
  return html`
    <div class=${`tile ${one.tone}`}>
      <dt>
        ${visible(one.label)}
        ${meaning ? html`
          <details class="meaning" data-key=${`tile-${one.label}`}>
            <summary aria-label=${`What ${one.label} means`}>?</summary><p>${visible(meaning)}</p>
          </details>` : null}
      </dt>
      <dd>
        <b>
          ${one.tone && one.tone !== "good" ? html`<span aria-hidden="true">${TONES[one.tone]}</span>` : null}
          ${visible(kept(one.value))}
        </b>
        ${one.detail ? html`<small>${visible(one.detail)}</small>` : null}
      </dd>
    </div>`;
}

function notes(run) {
  if (!run.notes.length) return null;
  return html`
    <details class="notes" data-key=${`notes-${run.label}`}>
      <summary>${plural(run.notes.length, "note")} on what could not be read</summary>
      <ul>${run.notes.map((note) => html`<li>${visible(note)}</li>`)}</ul>
    </details>`;
}

/** The sentences of a run that its banner does not begin with. */
function further(run) {
  return run.sentences.filter((one) => !banner(run) || !run.status.said.startsWith(one));
}

function outcomeOfOne(page, run) {
  const [lead, ...rest] = further(run);
  return html`
    ${banner(run)}
    ${lead ? html`<p class="lead">${worded(lead)}</p>` : null}
    <p class="facts">${facts(run)}</p>
    ${progress(run)}
    ${urgent(page, run)}
    ${rest.length ? html`<div class="sentences">${rest.map((one) => html`<p>${worded(one)}</p>`)}</div>` : null}
    ${notes(run)}`;
}

/** The recipes against one another, a sentence each. */
function families(page) {
  const told = page.bundle.families.filter((family) => family.said);
  const name = (family) => (family.name ? inline(family.name, 160) : plural(family.runs.length, "seed"));
  return html`
    <ul class="families">
      ${told.map((one) => html`<li class=${one.tone}><b>${name(one)}: </b>${visible(one.said)}</li>`)}
    </ul>`;
}

/** A run's name, which a narrow column breaks between its words. */
function inParts(label) {
  return label.split(/(?<=[_/.-])/).map((part, i) => [i ? html`<wbr />` : null, inline(part, 60)]);
}

/** A column a run, a row a number. What stands under a number on a run's own page is its title here. */
function comparison(page, runs) {
  const labels = new Map();
  for (const run of runs) for (const one of run.tiles) if (!labels.has(one.label)) labels.set(one.label, one.key);
  const cell = (run, label) => {
    const one = run.tiles.find((other) => other.label === label);
    const text = one ? visible(kept(one.value)) : MISSING;
    return html`<td class=${one ? one.tone : ""} title=${one ? one.detail : null}>${text}</td>`;
  };
  const heads = runs.map((run) => [runMark(page, run), inParts(run.label), " ", badge(run)]);
  const rows = [...labels].map(([label, key]) => html`
    <tr>
      <th scope="row" title=${definition(page, key)}>${visible(label)}</th>
      ${runs.map((run) => cell(run, label))}
    </tr>`);
  return scrolled("The runs side by side", html`
    <table class="compare">${headOf(["Run", ...heads])}<tbody>${rows}</tbody></table>`);
}

/** A run among several: what happened to it, and its sentences folded. */
function ofRun(page, run) {
  const [lead, ...rest] = further(run);
  return html`
    <article class="ofrun">
      <h3>${runMark(page, run)}${inline(run.label, 80)} ${badge(run)}</h3>
      ${banner(run, true)}
      ${urgentInShort(page, run)}
      <details data-key=${`words-${run.label}`}>
        <summary>${worded(lead || "")}</summary>
        ${rest.map((one) => html`<p>${worded(one)}</p>`)}
        <p class="facts">${facts(run)}</p>
      </details>
      ${notes(run)}
    </article>`;
}

/** The mark that a run's lines carry in the charts. */
function runMark(page, run) {
  const entity = page.entities.find((one) => one.run === run.label || (one.members || []).includes(run.label));
  if (!entity || page.entities.length < 2) return null;
  const of = (looks) => looks[entity.index % looks.length];
  return swatch({ colour: of(COLOURS), dash: of(DASHES), marker: of(MARKERS) }, false);
}

class Outcome {
  constructor(root, page) {
    this.page = page;
    this.words = html`<div class="words" />`;
    this.tiles = html`<div />`;
    this.under = html`<div />`;
    add(root, [html`<div class="opening">${this.words}${this.tiles}</div>`, this.under]);
  }

  update() {
    const { page } = this;
    const { runs } = page.bundle;
    const tiles = runs.length === 1 ? runs[0].tiles : [];
    this.tiles.hidden = !tiles.length;
    put(this.tiles, html`<dl class="tiles">${tiles.map((one) => tile(page, one))}</dl>`);
    put(this.under, runs.length > 1 ? runs.map((run) => ofRun(page, run)) : null);
    if (!runs.length) put(this.words, html`<p class="lead">This page holds no run.</p>`);
    else if (runs.length === 1) put(this.words, outcomeOfOne(page, runs[0]));
    else put(this.words, families(page), comparison(page, runs));
  }
}
