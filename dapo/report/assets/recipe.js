// The recipe and its difference from the preset, how runs differ from one another, and every number with its meaning.

const NOT_THERE = "none"; // How the reader writes what one side of a difference has not.
const VALUE_SHOWN = 60;

/** A setting's value, shortened to where it differs from `others`; pointing at it shows the whole. */
function settingCell(value, others, className) {
  let at = 0;
  while (at < value.length && others.every((other) => other[at] === value[at])) at += 1;
  const from = value.length > VALUE_SHOWN && at > VALUE_SHOWN / 2 ? at - 20 : 0;
  const text = oneLine(from ? `… ${value.slice(from)}` : value, VALUE_SHOWN);
  return el("td", {}, el("code", { class: className, title: value.length > VALUE_SHOWN ? value : null }, text));
}

class RecipeSection {
  constructor(root, page) {
    Object.assign(this, { root, page });
    this.body = el("div", {});
    this.numbers = el(
      "details",
      { class: "allnumbers", "data-key": "numbers", on: { toggle: () => this.numbers.open && this.fill() } },
      el("summary", {}, "Every number of the run, with its meaning"),
      el("div", {}),
    );
    root.append(this.body, this.numbers);
  }

  update() {
    const { runs } = this.page.bundle;
    put(
      this.body,
      runs.length > 1 ? this.between(runs) : null,
      runs.map((run) => this.one(run, runs.length > 1)),
    );
    if (this.numbers.open) this.fill();
  }

  one(run, several) {
    const { recipe } = run;
    if (!recipe)
      return el(
        "p",
        { class: "empty" },
        several ? [inline(run.label, 60), ": "] : null,
        "its recipe could not be read.",
      );
    const words = recipe.difference.length
      ? `Preset ${recipe.preset || "none"}, with ${plural(recipe.difference.length, "setting")} of its own.`
      : `Preset ${recipe.preset || "none"}, as it is.`;
    const body = [
      el("p", { class: "facts" }, visible(words), " Folder: ", el("code", {}, visible(run.folder))),
      this.machines(run),
      recipe.difference.length + recipe.made_of.length
        ? el(
            "div",
            { class: "scroll tall", tabindex: 0, role: "group", "aria-label": "Model, data and difference from the preset" },
            el(
              "table",
              { class: "difference" },
              el("caption", {}, "Model, data, and the difference from the preset"),
              el(
                "thead",
                {},
                el(
                  "tr",
                  {},
                  ["Setting", "Preset", "This run"].map((name) => el("th", { scope: "col" }, name)),
                ),
              ),
              el(
                "tbody",
                {},
                [...recipe.made_of.map(([path, value]) => [path, MISSING, value]), ...recipe.difference].map(([path, from, to]) =>
                  el(
                    "tr",
                    {},
                    el("th", { scope: "row" }, el("code", {}, visible(path))),
                    settingCell(from, [from, to], "was"),
                    settingCell(to, [from === MISSING ? "" : from, to], "is"),
                  ),
                ),
              ),
            ),
          )
        : null,
      el(
        "details",
        { "data-key": `yaml-${run.label}` },
        el("summary", {}, "The whole recipe, resolved"),
        textBlock(recipe.resolved, "Resolved recipe", "yaml"),
      ),
    ];
    return several
      ? el("details", { "data-key": `recipe-${run.label}` }, el("summary", {}, inline(run.label, 80)), body)
      : el("div", { class: "ofrun" }, body);
  }

  /** On what the run was computed: a column for its start and for each resume on another machine or version. */
  machines(run) {
    const { machines } = run;
    if (!machines.length) return null;
    const names = [...new Set(machines.flatMap((machine) => machine.facts.map(([name]) => name)))];
    const value = (machine, name) => (machine.facts.find(([one]) => one === name) || [name, MISSING])[1];
    const since = (machine, i) => (i === 0 && machine.step === 0 ? "From the start" : `After step ${number(machine.step)}`);
    const table = el(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "Machine and versions" },
      el(
        "table",
        { class: "machines" },
        machines.length > 1
          ? el(
              "thead",
              {},
              el(
                "tr",
                {},
                el("th", { scope: "col" }, "What"),
                machines.map((machine, i) => el("th", { scope: "col" }, since(machine, i))),
              ),
            )
          : null,
        el(
          "tbody",
          {},
          names.map((name) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, visible(name)),
              machines.map((machine) => el("td", {}, visible(value(machine, name)))),
            ),
          ),
        ),
      ),
    );
    const moved = machines.length > 1 ? ` (${machines.length} of them, by resumes)` : "";
    return el("details", { "data-key": `machine-${run.label}` }, el("summary", {}, `Machine and versions${moved}`), table);
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
      return el(
        "p",
        { class: "facts" },
        "The recipes of these runs do not differ, as far as model, data and differences from the preset tell.",
      );
    return el(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "How the runs differ" },
      el(
        "table",
        { class: "difference" },
        el("caption", {}, "How the runs differ"),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, "Setting"),
            runs.map((run) => el("th", { scope: "col" }, inline(run.label, 40))),
          ),
        ),
        el(
          "tbody",
          {},
          differing.map(([path, values]) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, el("code", {}, visible(path))),
              values.map((value) => settingCell(value, values)),
            ),
          ),
        ),
      ),
    );
  }

  fill() {
    const { runs, glossary } = this.page.bundle;
    const keys = [...allKeys(this.page.bundle)].sort();
    const ends = (run, key) => {
      const there = (own(run.curves.values, key) || []).filter((v) => v !== null);
      if (!there.length) return MISSING;
      const line = own(glossary, key);
      const show = (v) => measured(v, line ? line.unit : "1");
      return there[0] === there[there.length - 1]
        ? show(there[0])
        : `${show(there[0])} → ${show(there[there.length - 1])}`;
    };
    put(
      this.numbers.lastChild,
      el(
        "div",
        { class: "scroll tall", tabindex: 0, role: "group", "aria-label": "Every number" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "Key"),
              runs.map((run) => el("th", { scope: "col" }, runs.length > 1 ? inline(run.label, 30) : "First → last")),
              el("th", { scope: "col" }, "Unit"),
              el("th", { scope: "col" }, "Meaning"),
            ),
          ),
          el(
            "tbody",
            {},
            keys.map((key) => {
              const line = own(glossary, key);
              return el(
                "tr",
                {},
                el("th", { scope: "row" }, el("code", {}, visible(key))),
                runs.map((run) => el("td", { class: "nowrap" }, ends(run, key))),
                el("td", {}, line ? unitName(line.unit) : ""),
                el("td", {}, line ? visible(line.meaning) : ""),
              );
            }),
          ),
        ),
      ),
    );
  }
}
