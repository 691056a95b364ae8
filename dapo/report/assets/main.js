// Puts the page together, keeps what the reader chose, follows links, and takes news in place.

const SECTIONS = [
  ["outcome", "Outcome"],
  ["charts", "Charts"],
  ["warnings", "Warnings"],
  ["numbers", "More numbers"],
  ["cluster", "Cluster"],
  ["rollouts", "Rollouts"],
  ["time", "Time"],
  ["recipe", "Recipe"],
];

function reasonOf(error) {
  return error && error.message ? error.message : String(error);
}

/** Close the definitions that are open; the focus goes back to where one was opened. */
function closeMeanings() {
  for (const one of document.querySelectorAll("details.meaning[open]")) {
    one.open = false;
    if (one.contains(document.activeElement)) one.firstElementChild.focus();
  }
}

const page = {
  bundle: null,
  live: null,
  source: null,
  run: "",
  seeds: "band",
  range: null,
  extent: [0, 1],
  entities: [],
  ready: false,
  freshness: html`<span class="freshness" role="status" />`,

  runView() {
    return page.bundle.runs.find((run) => run.label === page.run) || page.bundle.runs[0];
  },

  /** Ask the source; where it fails, say so and go on. */
  async ask(question) {
    try {
      const answer = await question(page.source);
      page.trouble(null);
      return answer;
    } catch (error) {
      page.trouble(`The page's question was not answered (${reasonOf(error)}). Is the server still there?`);
      return null;
    }
  },

  trouble(text) {
    page.troubled.hidden = !text;
    if (text) put(page.troubled, visible(text));
  },

  adviceId(run, index) {
    return `advice-${page.bundle.runs.indexOf(run)}-${index}`;
  },

  /** The charts that are drawn, folded ones that are closed left out. */
  charts() {
    const opened = [...page.folded.folds.values()].map((fold) => fold.chart).filter(Boolean);
    return [...page.first.charts.values(), ...opened];
  },

  /** The chart, drawn or folded, that shows a metric of a run. Some charts are of one run alone (`spec.of`). */
  chartOf(key, run) {
    const all = [...page.first.charts.values(), ...page.folded.folds.values()];
    const shows = all.filter(({ rows }) => rows.some((row) => row.key === key));
    return shows.find(({ spec }) => spec.of && spec.of.includes(run)) || shows.find(({ spec }) => !spec.of) || null;
  },

  /** Look at a chart, and mark it for a moment. */
  showChart(folded) {
    const chart = folded.reveal();
    chart.root.scrollIntoView({ block: "center" });
    chart.plot.focus({ preventScroll: true });
    chart.root.classList.add("looked");
    setTimeout(() => chart.root.classList.remove("looked"), 2500);
  },

  zoom(range) {
    const [low, high] = page.extent;
    page.range =
      range && (range[0] > low || range[1] < high) ? [Math.max(low, range[0]), Math.min(high, range[1])] : null;
    if (page.range && page.range[1] <= page.range[0]) page.range = null;
    for (const chart of page.charts()) chart.zoom();
    page.controls.update();
  },

  showSeeds(value) {
    page.seeds = value;
    page.draw();
  },

  choose(label) {
    page.run = label;
    page.rollouts.update();
    page.time.update();
    for (const chooser of page.choosers) chooser();
  },

  /** Write what is open into the address, so that it can be sent to someone. */
  remember(parts) {
    const text = `#${new URLSearchParams(parts)}`;
    if (location.hash !== text) history.pushState(null, "", text);
  },

  /** Go where the address points. */
  async follow() {
    if (!location.hash.includes("=")) return;
    const parts = new URLSearchParams(location.hash.slice(1));
    const run = parts.get("run");
    if (run !== null && page.bundle.runs.some((one) => one.label === run) && run !== page.run) page.choose(run);
    if (parts.has("step") && parts.has("group"))
      await page.rollouts.openGroup(Number(parts.get("step")), Number(parts.get("group")), true);
    else if (parts.has("prompt")) await page.rollouts.openPrompt(parts.get("prompt"), true);
    else return;
    document.getElementById("rollouts").scrollIntoView();
  },

  /** News: the same page with other numbers. What is open, chosen and in sight stays. */
  update(bundle) {
    page.bundle = bundle;
    if (!bundle.runs.some((run) => run.label === page.run)) page.run = bundle.runs.length ? bundle.runs[0].label : "";
    const title = bundle.runs.length === 1 ? bundle.runs[0].label : `${bundle.runs.length} runs`;
    document.title = `${oneLine(title, 80)} · dapo`;
    page.draw();
  },

  draw() {
    const { bundle } = page;
    const x = unionOfSteps(bundle);
    page.entities = entitiesOf(bundle, page.seeds);
    const [low, high] = x.length ? [x[0], x[x.length - 1]] : [0, 1];
    page.extent = low === high ? [low - 0.5, high + 0.5] : [low, high];
    page.redrawHeader();
    page.outcome.update();
    page.show("numbers", page.folded.update(x, page.first.update(x)));
    const warnings = page.advice.update();
    const mark = page.marks.get("warnings");
    mark.textContent = warnings.all ? ` ${warnings.all}` : "";
    mark.classList.toggle("bad", warnings.bad > 0);
    page.recipe.update();
    page.controls.update();
    for (const chooser of page.choosers) chooser();
    page.show("cluster", page.cluster.update());
    if (bundle.runs.length) {
      page.time.update();
      page.rollouts.update();
    }
    page.show("rollouts", !bundle.runs.length || bundle.runs.some((run) => !run.supervised)); // whoever imitates has none
    const made = bundle.live ? `as of ${moment(bundle.made)}` : `made ${moment(bundle.made)}`;
    const loads = page.live ? "this page loads nothing but what its own server says" : "this page loads nothing";
    const libraries = "charts by uPlot, tables by Tabulator (MIT), templates by htm (Apache-2.0)";
    const foot = [`dapo ${oneLine(bundle.version, 30)}`, made, loads, libraries].join(" · ");
    put(document.getElementById("foot"), html`<p>${foot}</p>`);
  },

  build() {
    const main = document.getElementById("main");
    const parts = new Map();
    page.marks = new Map();
    const links = SECTIONS.map(([id, text]) => {
      const mark = html`<b class="count" />`;
      page.marks.set(id, mark);
      const title = `${id}-title`;
      parts.set(id, html`
        <section id=${id} aria-labelledby=${title} class="section"><h2 id=${title}>${text}</h2></section>`);
      return html`<li><a href=${`#${id}`}>${text}${mark}</a></li>`;
    });
    page.nav = html`<nav aria-label="Sections"><ul>${links}</ul></nav>`;
    page.troubled = html`<p class="trouble" role="alert" hidden />`;
    put(main, page.troubled, [...parts.values()]);
    page.redrawHeader = header(page, document.getElementById("top"));
    const charts = parts.get("charts");
    page.controls = new ChartControls(page);
    charts.append(html`<div class="sectionhead">${charts.firstChild}${page.controls.root}</div>`);
    page.choosers = [];
    page.outcome = new Outcome(parts.get("outcome"), page);
    page.first = new FirstCharts(charts, page);
    page.folded = new FoldedCharts(parts.get("numbers"), page);
    page.advice = new AdviceSection(parts.get("warnings"), page);
    page.cluster = new ClusterSection(parts.get("cluster"), page);
    page.rollouts = new Rollouts(parts.get("rollouts"), page);
    parts.get("time").append(page.runChooser());
    page.time = new TimeSection(parts.get("time"), page);
    page.recipe = new RecipeSection(parts.get("recipe"), page);
    page.spy(parts);
  },

  /** Show or hide a section, and its place in the navigation. */
  show(id, wanted) {
    document.getElementById(id).hidden = !wanted;
    page.nav.querySelector(`a[href="#${id}"]`).parentElement.hidden = !wanted;
  },

  /** A select of the run, for sections that show one run at a time. */
  runChooser() {
    const chooser = select([["", ""]], "", (value) => page.choose(value));
    const box = field("Run", chooser);
    page.choosers.push(() => {
      const { runs } = page.bundle;
      box.hidden = runs.length < 2;
      if (runs.length)
        reselect(
          chooser,
          runs.map((run) => [run.label, oneLine(run.label, 60)]),
          page.run,
        );
    });
    return box;
  },

  /** Mark the section in sight in the navigation. */
  spy(parts) {
    const links = new Map(
      [...page.nav.querySelectorAll("a")].map((link) => [link.getAttribute("href").slice(1), link]),
    );
    const seen = new Map();
    let picked = null; // A short last section cannot come to the top; the one chosen counts until the reader moves on.
    const tell = () => {
      const first = SECTIONS.find(([id]) => seen.get(id));
      const here = picked || (first && first[0]);
      for (const [id, link] of links) {
        if (id === here) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    };
    const pick = (id) => {
      picked = id;
      tell();
    };
    for (const [id, link] of links) link.addEventListener("click", () => pick(id));
    for (const name of ["wheel", "touchmove", "keydown"]) addEventListener(name, () => (picked = null), { passive: true });
    // Below html's scroll-padding-top, so that the section before the one at the top is out of sight.
    const watch = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) seen.set(entry.target.id, entry.isIntersecting);
        tell();
      },
      { rootMargin: "-118px 0px -60% 0px" },
    );
    for (const part of parts.values()) watch.observe(part);
  },

  async start() {
    theme.start();
    theme.listeners.push(() => page.charts().forEach((chart) => chart.repaint()));
    page.live = await unpacked("live");
    page.source = page.live ? liveSource(page.live, page) : embeddedSource(await unpacked("bundle"));
    const bundle = await page.source.bundle();
    page.bundle = bundle;
    page.build();
    page.update(bundle);
    addEventListener("hashchange", () => page.follow());
    addEventListener("popstate", () => page.follow());
    addEventListener("keydown", (event) => event.key === "Escape" && closeMeanings());
    page.ready = true;
    window.dapoPage = page;
    await page.follow();
    document.documentElement.dataset.ready = "true";
  },
};

page.start().catch((error) => {
  const place = document.getElementById("loading") || document.getElementById("main");
  const old = typeof DecompressionStream === "undefined" ? " Its data need a browser of 2023 or later." : "";
  place.textContent = `This page could not be drawn: ${reasonOf(error)}.${old}`;
  throw error;
});
