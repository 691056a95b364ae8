// Warnings found by rules: what was seen, what to do, and the charts to look at.

const SEVERITIES = { bad: ["Bad", "✗"], warn: ["Warning", "!"], note: ["Note", "i"] };

/** The warnings that are bad, each with its place in the run's list. */
function urgentOf(run) {
  return run.advice.map((one, index) => [one, index]).filter(([one]) => one.severity === "bad");
}

/** What the banner tells already is left to the list of warnings. */
function urgentBelow(run) {
  return urgentOf(run).filter(([one]) => run.status.state !== "unfilled" || one.rule !== "batch_unfilled");
}

function urgent(page, run) {
  const bad = urgentBelow(run);
  if (!bad.length) return null;
  return html`
    <div class="urgent">
      <h3>${bad.length === 1 ? "One thing is badly wrong" : `${bad.length} things are badly wrong`}</h3>
      <ul>${bad.map(([one, index], i) => html`
        <li>
          <b>${worded(one.title)}</b>. ${i === 0 ? [worded(one.said), " "] : null}
          <a href=${`#${page.adviceId(run, index)}`}>What to do</a>
        </li>`)}
      </ul>
    </div>`;
}

function urgentInShort(page, run) {
  const bad = urgentBelow(run);
  if (!bad.length) return null;
  const links = bad.map(([one, index], i) => html`
    ${i ? "; " : ""}<a href=${`#${page.adviceId(run, index)}`}>${worded(one.title)}</a>`);
  return html`<p class="urgent"><b>Badly wrong: </b>${links}</p>`;
}

class AdviceSection {
  constructor(root, page) {
    Object.assign(this, { root, page });
    this.body = html`<div />`;
    root.append(this.body);
  }

  update() {
    const { page } = this;
    const order = { bad: 0, warn: 1, note: 2 };
    const all = page.bundle.runs.flatMap((run) => run.advice.map((one, index) => ({ run, one, index })));
    const several = page.bundle.runs.length > 1;
    if (several) all.sort((a, b) => order[a.one.severity] - order[b.one.severity]); // within a run its own order stays
    const nothing = "No rule found anything in the numbers: entropy, clipping, the gap, filling, verifiers and lengths.";
    put(this.body, all.length
      ? html`<ol class="advice">${all.map(({ run, one, index }) => this.item(run, one, index, several))}</ol>`
      : html`<p class="empty">${nothing}</p>`);
    const count = (severity) => all.filter(({ one }) => one.severity === severity).length;
    return { all: count("bad") + count("warn"), bad: count("bad") };
  }

  item(run, one, index, several) {
    const [word, sign] = own(SEVERITIES, one.severity) || SEVERITIES.note;
    const steps =
      one.first_step === one.last_step
        ? `step ${number(one.first_step)}`
        : `steps ${number(one.first_step)} to ${number(one.last_step)}`;
    const charts = new Set(one.keys.map((key) => this.page.chartOf(key, run.label)).filter(Boolean));
    const look = (chart) => button(visible(chart.spec.title), () => this.page.showChart(chart), "link");
    return html`
      <li class=${`card one ${one.severity}`} id=${this.page.adviceId(run, index)} tabindex="-1">
        <p class="head">
          <span class=${`badge ${one.severity}`}><span aria-hidden="true">${sign} </span>${word}</span>
          <span class="facts">${several ? [inline(run.label, 60), " · "] : null}${steps}</span>
        </p>
        <h3>${worded(one.title)}</h3>
        <p>${worded(one.said)}</p>
        <p class="move"><b>What to do: </b>${worded(one.move)}</p>
        ${charts.size ? html`<p class="look">Look at: ${[...charts].map(look)}</p>` : null}
      </li>`;
  }
}
