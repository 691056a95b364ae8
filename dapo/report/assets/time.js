// Where the time went: a bar of the phases, their seconds, and how old the tokens were that trained.

/** A cell with a bar of `part` (0 to 1) and a share in words. */
function meterCell(part, share) {
  const bar = html`<span style=${{ width: `${(part * 100).toFixed(1)}%` }} />`;
  return html`<td><span class="rate"><span class="meter" aria-hidden="true">${bar}</span>${percent(share)}</span></td>`;
}

function sumsTable(caption, columns, rows) {
  return scrolled(caption, html`
    <table class="sums"><caption>${caption}</caption>${headOf(columns)}<tbody>${rows}</tbody></table>`);
}

class TimeSection {
  constructor(root, page) {
    this.page = page;
    this.body = html`<div />`;
    root.append(this.body);
  }

  update() {
    const { phases, busy, ages, note } = this.page.runView().time;
    const where = this.page.live ? "at the top of" : "beside";
    put(this.body, phases.length
      ? html`
        <p>Every span is in trace.json, ${where} this page: open it at ui.perfetto.dev.</p>
        ${this.spent(phases)}`
      : html`<p class="empty">No time was recorded: the run has not finished a step.</p>`);
    const worked = busy.map(([name, share]) => `${oneLine(name, 30)} ${percent(share)}`).join(", ");
    add(this.body, [
      worked ? html`<p>Of the time in all: ${worked}.</p>` : null,
      ages.length ? this.aged(ages) : null,
      note ? html`<p class="note">${visible(note)}</p>` : null,
    ]);
  }

  aged(ages) {
    const oldest = Math.max(...ages.map(([, share]) => share)) || 1;
    const row = ([age, share]) => html`
      <tr><th scope="row">${number(age)}</th>${meterCell(share / oldest, share)}</tr>`;
    const columns = ["Age", "Share of the tokens"];
    return sumsTable("Ages of trained tokens, in versions of the weights", columns, ages.map(row));
  }

  spent(phases) {
    const whole = phases.reduce((sum, [, all]) => sum + all, 0) || 1;
    const { series } = this.page.bundle.charts.find(({ id }) => id === "time") || { series: [] };
    const colour = (phase) => `var(${(series.find(({ label }) => label === phase) || {}).colour || "--other"})`;
    const part = ([phase, all]) => html`<i style=${{ background: colour(phase), flex: String(all / whole) }} />`;
    const row = ([phase, all, median, longest]) => html`
      <tr>
        <th scope="row"><i class="phase" style=${{ background: colour(phase) }} />${inline(phase, 40)}</th>
        <td>${seconds(all)}</td>
        ${meterCell(all / whole, all / whole)}
        <td>${seconds(median)}</td>
        <td>${seconds(longest)}</td>
      </tr>`;
    return html`
      <div class="timebar" aria-hidden="true">${phases.map(part)}</div>
      ${sumsTable("Busy seconds by phase; a phase may lie inside another",
        ["Phase", "Seconds", "Share", "Median of a step", "Longest step"], phases.map(row))}`;
  }
}
