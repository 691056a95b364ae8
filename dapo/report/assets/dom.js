// Elements from templates. What stands in `${...}` becomes text nodes, elements or attributes, and is never parsed.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "line", "rect", "circle", "path", "polyline", "text", "title"]);
const ALLOWED = new Set(
  (
    "class id role title type for name value placeholder tabindex href lang dir colspan rowspan scope hidden open " +
    "disabled checked selected min max step width height viewBox d x y x1 x2 y1 y2 cx cy r rx fill stroke points transform " +
    "preserveAspectRatio autocomplete spellcheck inputmode"
  ).split(" "),
);
const ALLOWED_FAMILY = /^(aria|data|stroke|text|font|dominant)-[a-z-]+$/;

/** An element, or several: html`<p class=${name}>${text}</p>`. A template's own text is the only markup. */
const html = htm.bind(function (tag, attributes, ...children) {
  this[0] = 3; // the library would else give the same element again and again
  return el(tag, attributes, ...children);
});

/** An element. Attributes: `onclick` and the like take functions, `style` {property: value}; null leaves one out. */
function el(tag, attributes, ...children) {
  const node = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) node.style.setProperty(key, to);
    else if (!ALLOWED.has(name) && !ALLOWED_FAMILY.test(name)) throw new Error(`el: no attribute ${name} here`);
    else if (name === "href" && !String(value).startsWith("#")) throw new Error("el: links stay within the page");
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(node, child);
    else node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace what is in `node`, keeping open `details` that carry a data-key open. */
function put(node, ...children) {
  const open = new Set();
  for (const one of node.querySelectorAll("details[open][data-key]")) open.add(one.dataset.key);
  node.replaceChildren();
  add(node, children);
  for (const one of node.querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = true;
  return node;
}

/** The own property of an object; names come from data and may be those of Object.prototype. */
function own(object, name) {
  return object && Object.hasOwn(object, name) ? object[name] : undefined;
}

let serial = 0;
/** An id that no text of a run can collide with. */
function fresh(prefix) {
  serial += 1;
  return `${prefix}-${serial}`;
}

/** A labelled control of a form. */
function field(label, control, className) {
  control.id = control.id || fresh("field");
  return html`<div class=${`field ${className || ""}`}><label for=${control.id}>${label}</label>${control}</div>`;
}

function select(options, value, change) {
  const node = html`
    <select onchange=${() => change(node.value)}>
      ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}
    </select>`;
  return node;
}

function button(text, click, className) {
  return html`<button type="button" class=${className || null} onclick=${click}>${text}</button>`;
}

/** A box for a text to look for; `change(text)` once typing pauses. */
function searchBox(placeholder, change) {
  const slowly = debounced(() => change(box.value), 180);
  const box = html`<input type="search" placeholder=${placeholder} spellcheck="false" oninput=${slowly} />`;
  return box;
}

/** The head of a table: a cell for each column. */
function headOf(columns) {
  return html`<thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>`;
}

/** A box in which something wide scrolls. */
function scrolled(label, node, className) {
  return html`<div class=${`scroll ${className || ""}`} tabindex="0" role="group" aria-label=${label}>${node}</div>`;
}

/** Set the options of a select anew, keeping what was chosen where it still exists. */
function reselect(node, options, value) {
  const same = options.length === node.options.length && options.every(([key], i) => node.options[i].value === key);
  if (!same) node.replaceChildren(...options.map(([key, text]) => html`<option value=${key}>${text}</option>`));
  else options.forEach(([, text], i) => (node.options[i].textContent = text));
  node.value = options.some(([key]) => key === value) ? value : options[0][0];
}

/** Tabs by the pattern of the ARIA practices: arrows move, Home and End jump. `tabs`: [key, label, panel]. */
function tabs(label, entries, chosen, change) {
  const buttons = [];
  const choose = (key, focus) => {
    entries.forEach(([name, , panel], i) => {
      const on = name === key;
      buttons[i].setAttribute("aria-selected", String(on));
      buttons[i].tabIndex = on ? 0 : -1;
      panel.hidden = !on;
      if (on && focus) buttons[i].focus();
    });
    if (change) change(key);
  };
  entries.forEach(([key, text, panel], i) => {
    const id = fresh("tab");
    panel.id = panel.id || fresh("panel");
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", id);
    const keys = (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: entries.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(entries[(to + entries.length) % entries.length][0], true);
    };
    buttons.push(html`
      <button type="button" role="tab" id=${id} aria-controls=${panel.id}
        onclick=${() => choose(key)} onkeydown=${keys}>
        ${text}
      </button>`);
  });
  const list = html`<div class="tabs" role="tablist" aria-label=${label}>${buttons}</div>`;
  choose(chosen);
  return { list, choose };
}

/** Wait with `run` until calls stop coming for `wait` milliseconds. */
function debounced(run, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), wait);
  };
}
