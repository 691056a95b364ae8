// Elements made from names and text. Text becomes text nodes and nothing else: no markup is ever parsed here.

const SVG = "http://www.w3.org/2000/svg";
const ALLOWED = new Set(
  (
    "class id role title type for name value placeholder tabindex href lang dir colspan rowspan scope hidden open " +
    "disabled checked selected min max step width height viewBox d x y x1 x2 y1 y2 cx cy r rx fill stroke points transform " +
    "preserveAspectRatio autocomplete spellcheck inputmode"
  ).split(" "),
);
const ALLOWED_FAMILY = /^(aria|data|stroke|text|font|dominant)-[a-z-]+$/;

/** An element. `attributes` may hold `on: {event: handler}`, `style: {property: value}`; null leaves one out. */
function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function sv(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
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
  const id = control.id || fresh("field");
  control.id = id;
  return el("div", { class: `field ${className || ""}` }, el("label", { for: id }, label), control);
}

function select(options, value, change) {
  const node = el(
    "select",
    { on: { change: () => change(node.value) } },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
  );
  return node;
}

/** Set the options of a select anew, keeping what was chosen where it still exists. */
function reselect(node, options, value) {
  const same = options.length === node.options.length && options.every(([key], i) => node.options[i].value === key);
  if (!same) node.replaceChildren(...options.map(([key, text]) => el("option", { value: key }, text)));
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
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": label });
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
    buttons.push(
      el(
        "button",
        { type: "button", role: "tab", id, "aria-controls": panel.id, on: { click: () => choose(key), keydown: keys } },
        text,
      ),
    );
  });
  add(list, buttons);
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
