// The recipe and its difference from the preset, how runs differ from one another, and every number with its meaning.

const NOT_THERE = "none"; // How the reader writes what one side of a difference has not.
const VALUE_SHOWN = 60;

/** A setting's value, shortened to where it differs from `others`; pointing at it shows the whole. */
function settingCell(value, others, className) {
  let at = 0;
  while (at < value.length && others.every((other) => other[at] === value[at])) at += 1;
  const from = value.length > VALUE_SHOWN && at > VALUE_SHOWN / 2 ? at - 20 : 0;
  const text = oneLine(from ? `… ${value.slice(from)}` : value, VALUE_SHOWN);
  return html`<td><code class=${className} title=${value.length > VALUE_SHOWN ? value : null}>${text}</code></td>`;
}

class RecipeSection {
  constructor(root, page) {
    Object.assign(this, { root, page });
    this.body = html`<div />`;
    this.numbers = html`
      <details class="allnumbers" data-key="numbers" ontoggle=${() => this.numbers.open && this.fill()}>
        <summary>Every number of the run, with its meaning</summary>
        <div />
      </details>`;
    root.append(this.body, this.numbers);
  }

  update() {
    const { runs } = this.page.bundle;
    put(this.body, runs.length > 1 ? this.between(runs) : null, runs.map((run) => this.one(run, runs.length > 1)));
    if (this.numbers.open) this.fill();
  }

  one(run, several) {
    const { recipe } = run;
    if (!recipe)
      return html`<p class="empty">${several ? [inline(run.label, 60), ": "] : null}its recipe could not be read.</p>`;
    const words = recipe.difference.length
      ? `Preset ${recipe.preset || "none"}, with ${plural(recipe.difference.length, "setting")} of its own.`
      : `Preset ${recipe.preset || "none"}, as it is.`;
    const settings = [...recipe.made_of.map(([path, value]) => [path, MISSING, value]), ...recipe.difference];
    const body = html`
      <p class="facts">${visible(words)} Folder: <code>${visible(run.folder)}</code></p>
      ${this.machines(run)}
      ${settings.length ? scrolled("Model, data and difference from the preset", html`
        <table class="difference">
          <caption>Model, data, and the difference from the preset</caption>
          ${headOf(["Setting", "Preset", "This run"])}
          <tbody>${settings.map(([path, from, to]) => html`
            <tr>
              <th scope="row"><code>${visible(path)}</code></th>
              ${settingCell(from, [from, to], "was")}
              ${settingCell(to, [from === MISSING ? "" : from, to], "is")}
            </tr>`)}
          </tbody>
        </table>`, "tall") : null}
      <details data-key=${`yaml-${run.label}`}>
        <summary>The whole recipe, resolved</summary>
        ${textBlock(recipe.resolved, "Resolved recipe", "yaml")}
      </details>`;
    return several
      ? html`<details data-key=${`recipe-${run.label}`}><summary>${inline(run.label, 80)}</summary>${body}</details>`
      : html`<div class="ofrun">${body}</div>`;
  }

  /** On what the run was computed: a column for its start and for each resume on another machine or version. */
  machines(run) {
    const { machines } = run;
    if (!machines.length) return null;
    const names = [...new Set(machines.flatMap((machine) => machine.facts.map(([name]) => name)))];
    const value = (machine, name) => (machine.facts.find(([one]) => one === name) || [name, MISSING])[1];
    const since = (machine, i) => (i === 0 && machine.step === 0 ? "From the start" : `After step ${number(machine.step)}`);
    const moved = machines.length > 1 ? ` (${machines.length} of them, by resumes)` : "";
    return html`
      <details data-key=${`machine-${run.label}`}>
        <summary>Machine and versions${moved}</summary>
        ${scrolled("Machine and versions", html`
          <table class="machines">
            ${machines.length > 1 ? headOf(["What", ...machines.map(since)]) : null}
            <tbody>${names.map((name) => html`
              <tr>
                <th scope="row">${visible(name)}</th>
                ${machines.map((machine) => html`<td>${visible(value(machine, name))}</td>`)}
              </tr>`)}
            </tbody>
          </table>`)}
      </details>`;
  }

  /** Settings in which the runs differ. */
  between(runs) {
    const paths = new Map();
    runs.forEach((run, i) => {
      const { made_of: parts, difference } = run.recipe || { made_of: [], difference: [] };
      for (const [path, preset, value] of [...parts.map(([path, value]) => [path, NOT_THERE, value]), ...difference]) {
        if (!paths.has(path)) paths.set(path, { preset, values: new Map() });
        paths.get(path).values.set(i, value);
      }
    });
    // A leaf of a list's item that a run does not name: its default, where the run has that item.
    const has = (item, i) => [...paths].some(([path, one]) => path.startsWith(item) && one.values.has(i));
    const at = ([path, { preset, values }], i) => {
      if (values.has(i)) return values.get(i);
      const item = /^.*\.\d+\./.exec(path);
      return preset === NOT_THERE && item && has(item[0], i) ? "(default)" : preset;
    };
    const differing = [...paths]
      .map(([path, one]) => [path, runs.map((_, i) => at([path, one], i))])
      .filter(([, values]) => new Set(values).size > 1);
    if (!differing.length)
      return html`
        <p class="facts">
          ${"The recipes of these runs do not differ, as far as model, data and differences from the preset tell."}
        </p>`;
    return scrolled("How the runs differ", html`
      <table class="difference">
        <caption>How the runs differ</caption>
        ${headOf(["Setting", ...runs.map((run) => inline(run.label, 40))])}
        <tbody>${differing.map(([path, values]) => html`
          <tr>
            <th scope="row"><code>${visible(path)}</code></th>
            ${values.map((value) => settingCell(value, values))}
          </tr>`)}
        </tbody>
      </table>`);
  }

  fill() {
    const { runs, glossary } = this.page.bundle;
    const keys = [...allKeys(this.page.bundle)].sort();
    const ends = (run, key) => {
      const there = (own(run.curves.values, key) || []).filter((v) => v !== null);
      if (!there.length) return MISSING;
      const line = own(glossary, key);
      const show = (v) => measured(v, line ? line.unit : "1");
      const [first, last] = [there[0], there[there.length - 1]];
      return first === last ? show(first) : `${show(first)} → ${show(last)}`;
    };
    const row = (key) => {
      const line = own(glossary, key);
      return html`
        <tr>
          <th scope="row"><code>${visible(key)}</code></th>
          ${runs.map((run) => html`<td class="nowrap">${ends(run, key)}</td>`)}
          <td>${line ? unitName(line.unit) : ""}</td>
          <td>${line ? visible(line.meaning) : ""}</td>
        </tr>`;
    };
    const columns = runs.map((run) => (runs.length > 1 ? inline(run.label, 30) : "First → last"));
    put(this.numbers.lastChild, scrolled("Every number", html`
      <table>${headOf(["Key", ...columns, "Unit", "Meaning"])}<tbody>${keys.map(row)}</tbody></table>`, "tall"));
  }
}
