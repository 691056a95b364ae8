// How lines are told apart and how far an axis reaches.

/** The bounds of the y axis: zero is in sight unless all values lie far from it. */
function boundsOf(spec, columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    for (const v of column) {
      if (v === null || v === undefined) continue;
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
  }
  if (low > high) return [0, 1];
  if (spec.kind === "stack") return [0, Math.abs(high - 1) < 0.02 ? 1 : high * 1.04 || 1];
  if (low === high)
    return low === 0 ? [0, spec.unit === "share" ? 0.1 : 1] : [Math.min(0, low * 1.2), Math.max(0, low * 1.2)];
  if (low >= 0 && low < high * 0.6) low = 0;
  if (high <= 0 && high > low * 0.6) high = 0;
  const room = (high - low) * 0.06;
  const top = spec.unit === "share" && high <= 1 ? Math.min(1.02, high + room) : high + room;
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : top];
}

/** A small mark of a row: line, dash and marker as they are drawn. */
function swatch(row, stack) {
  const colour = `var(${row.colour})`;
  if (stack)
    return html`
      <svg class="swatch" width="14" height="12" viewBox="0 0 14 12" aria-hidden="true">
        <rect x="1" y="1" width="12" height="10" rx="2" fill=${colour} />
      </svg>`;
  return html`
    <svg class="swatch" width="26" height="12" viewBox="0 0 26 12" aria-hidden="true">
      <line x1="1" y1="6" x2="25" y2="6" stroke=${colour} stroke-width="2" stroke-dasharray=${row.dash.join(" ")} />
      <path d=${markerPath(row.marker, 13, 6, 3.2)} fill=${colour} stroke=${colour} stroke-width="1" />
    </svg>`;
}

function markerPath(marker, x, y, r) {
  switch (marker) {
    case "square":
      return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    case "triangle":
      return `M${x} ${y - r * 1.2}L${x + r * 1.2} ${y + r}L${x - r * 1.2} ${y + r}z`;
    case "diamond":
      return `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}z`;
    case "cross":
      return `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`;
    default:
      return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  }
}

function unitName(unit) {
  return { share: "%", 1: "no unit", seconds: "s" }[unit] || unit;
}

/** The numbers of a chart as a table, a line for each step that has one. */
function tableOf(spec, rows, x) {
  const there = x
    .map((_, i) => i)
    .filter((i) => rows.some((row) => row.values[i] !== null && row.values[i] !== undefined));
  const show = (v) => (v === null || v === undefined ? MISSING : measured(v, spec.unit));
  const between = (row, i) =>
    row.low && row.low[i] !== null && row.low[i] !== undefined ? ` (${show(row.low[i])} to ${show(row.high[i])})` : "";
  return html`
    <table>
      <caption>${`${spec.title}, ${unitName(spec.unit)}`}</caption>
      ${headOf(["step", ...rows.map((row) => inline(row.label, 60))])}
      <tbody>${there.map((i) => html`
        <tr>
          <th scope="row">${number(x[i])}</th>
          ${rows.map((row) => html`<td>${show(row.values[i])}${between(row, i)}</td>`)}
        </tr>`)}
      </tbody>
    </table>`;
}

const SPARK = { width: 96, height: 24, edge: 2 };

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

/** The rows of the first metric of a chart: one an entity. */
function mainRows(rows) {
  return rows.filter((row) => row.key === rows[0].key);
}

/** What a stack adds up to; of shares, which add up to one, the first. */
function wholeOf(spec, rows) {
  return spec.unit === "share" ? rows[0].values : stacked(rows)[rows.length - 1];
}

/** A curve of the size of a word: its shape alone. */
function sparkline(rows) {
  const { width, height, edge } = SPARK;
  const there = rows.flatMap((row) => row.values).filter((v) => v !== null && v !== undefined);
  const [low, high] = [Math.min(...there), Math.max(...there)];
  const y = (v) => (high > low ? height - edge - ((v - low) / (high - low)) * (height - 2 * edge) : height / 2);
  const path = ({ values, colour }) => {
    const last = Math.max(1, values.length - 1);
    const x = (i) => (i / last) * (width - 4) + 2;
    const points = values
      .map((v, i) => (v === null || v === undefined ? null : `${x(i).toFixed(1)} ${y(v).toFixed(1)}`))
      .filter(Boolean);
    return html`<path d=${`M${points.join("L")}`} stroke=${`var(${colour})`} fill="none" stroke-width="1.5" />`;
  };
  return html`
    <svg class="spark" viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} aria-hidden="true">
      ${rows.map(path)}
    </svg>`;
}
