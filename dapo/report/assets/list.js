// A long table of rows that open something: Tabulator draws only what is in sight; the keyboard walks its rows.

const VERDICTS = {
  kept: ["kept", "good"],
  all_correct: ["all correct", "easy"],
  all_wrong: ["all wrong", "hard"],
  uniform: ["uniform", ""],
  out_of_band: ["out of band", ""],
  too_few_scored: ["too few scored", "warn"],
};

function chip(value, kind) {
  const [text, tone] = kind === "verdict" ? own(VERDICTS, value) || [value || "open", ""] : [value || "none", ""];
  return html`<span class=${`chip ${tone}`}>${inline(String(text), 30)}</span>`;
}

/** "5 / 16" and the same as a bar. */
function rate(correct, scored) {
  const share = scored ? correct / scored : 0;
  const bar = html`<span style=${{ width: `${(share * 100).toFixed(1)}%` }} />`;
  return html`
    <span class="rate" title=${scored ? percent(share) : "nothing scored"}>
      <span class="meter" aria-hidden="true">${bar}</span>${number(correct)}/${number(scored)}
    </span>`;
}

const numeric = (text) => html`<span class="num">${text}</span>`;

class List {
  /** `columns`: [{title, field, width, node(row), ...}]; a row has a `key`; `open(row)`: by click and Enter. */
  constructor(label, columns, open, height) {
    Object.assign(this, { open, chosen: null, current: null, focused: false });
    const holder = html`<div />`;
    this.root = html`<div class="list">${holder}</div>`;
    this.ready = new Promise((resolve) => {
      this.table = new Tabulator(holder, {
        data: [],
        index: "key",
        height,
        layout: "fitColumns",
        responsiveLayout: "hide",
        nestedFieldSeparator: false,
        keybindings: false,
        placeholder: html`<span class="faint">Nothing fits these filters.</span>`,
        columnDefaults: { headerHozAlign: "left", vertAlign: "middle", resizable: false, headerSortTristate: true },
        columns: columns.map(({ node, ...column }) => ({
          ...column,
          formatter: (cell) => node(cell.getData()),
        })),
        rowFormatter: (row) => this.dress(row),
      });
      this.table.on("tableBuilt", resolve);
      this.table.on("rowClick", (event, row) => this.pick(row));
    });
    this.ready.then(() => this.keyboard(label));
  }

  /** The grid itself keeps the focus and names its current row, since rows out of sight are not in the page. */
  keyboard(label) {
    const grid = this.table.element;
    grid.setAttribute("aria-label", `${label}: arrow keys walk, Enter opens`);
    grid.tabIndex = -1;
    // What scrolls has to hold something that Tab reaches: the rows, as long as the grid has not the focus. They pass it
    // on to the grid, and are out of Tab's way while it is there, so that the list is one stop for the keyboard.
    const holder = grid.querySelector(".tabulator-tableholder");
    holder.removeAttribute("tabindex");
    holder.setAttribute("role", "presentation");
    grid.addEventListener("focusin", (event) => {
      this.reached(true);
      if (event.target !== grid && event.target.classList.contains("tabulator-row")) grid.focus({ preventScroll: true });
    });
    grid.addEventListener("focusout", (event) => grid.contains(event.relatedTarget) || this.reached(false));
    grid.addEventListener("keydown", (event) => event.target === grid && this.key(event));
    grid.addEventListener(
      "focus",
      () => this.current === null && this.walk(this.row(this.chosen) || this.table.getRows("active")[0]),
    );
  }

  reached(focused) {
    this.focused = focused;
    const { element } = this.table;
    for (const node of element.querySelectorAll(".tabulator-row")) node.tabIndex = focused ? -1 : 0;
    const holder = element.querySelector(".tabulator-tableholder"); // Else a browser makes it a stop of its own.
    if (focused) holder.tabIndex = -1;
    else holder.removeAttribute("tabindex");
  }

  row(key) {
    return key === null ? null : this.table.getRows("active").find((row) => row.getData().key === key) || null;
  }

  key(event) {
    const rows = this.table.getRows("active");
    const at = rows.findIndex((row) => row.getData().key === this.current);
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (at >= 0) this.pick(rows[at]);
      return;
    }
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + 10,
      PageUp: at - 10,
      Home: 0,
      End: rows.length - 1,
    }[event.key];
    if (to === undefined || !rows.length) return;
    event.preventDefault();
    this.walk(rows[Math.max(0, Math.min(rows.length - 1, to))]);
  }

  async walk(row) {
    if (!row) return;
    this.current = row.getData().key;
    if (row.getElement().isConnected) row.getElement().scrollIntoView({ block: "nearest", behavior: "instant" });
    else await this.table.scrollToRow(row, "center", true).catch(() => null); // Rows may have been replaced.
    for (const one of this.table.getRows("visible")) this.dress(one);
  }

  pick(row) {
    this.current = row.getData().key;
    this.mark(this.current);
    this.open(row.getData());
  }

  /** Show which row is open, and bring it into sight within the list. */
  mark(key) {
    this.chosen = key;
    const row = this.row(key);
    const visible = this.table.getRows("visible");
    for (const one of visible) this.dress(one);
    if (row && !visible.includes(row)) this.table.scrollToRow(row, "center", true).catch(() => null); // it may be replaced
  }

  dress(row) {
    const node = row.getElement();
    const on = row.getData().key === this.chosen;
    const here = row.getData().key === this.current;
    node.classList.toggle("chosen", on);
    node.classList.toggle("current", here);
    node.setAttribute("aria-selected", String(on));
    node.tabIndex = this.focused ? -1 : 0;
    if (!here) return;
    if (!node.id) node.id = fresh("row");
    this.table.element.setAttribute("aria-activedescendant", node.id);
  }

  /** The rows' data as they are sorted now. */
  order() {
    return this.table.initialized === false ? [] : this.table.getRows("active").map((row) => row.getData());
  }

  async fill(rows) {
    await this.ready;
    await this.table.replaceData(rows);
  }
}
