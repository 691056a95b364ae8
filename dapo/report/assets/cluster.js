// The processes of a run that has several: what each is, where it runs, and whether it works.

class ClusterSection {
  constructor(root, page) {
    this.page = page;
    this.body = el("div", {});
    root.append(this.body);
  }

  update() {
    const runs = this.page.bundle.runs.filter((run) => run.processes.length);
    put(
      this.body,
      runs.map((run) => [this.page.bundle.runs.length > 1 ? el("h3", {}, inline(run.label, 80)) : null, this.table(run)]),
    );
    return runs.length > 0;
  }

  table(run) {
    const { updated } = run.status;
    const lost = run.curves.values["cluster/engine_losses"];
    const losses = lost ? lost.reduce((sum, v) => sum + (v || 0), 0) : 0;
    const ago = (end) => (end === null || updated === null ? MISSING : `${seconds(Math.max(0, updated - end))} before`);
    const head = ["Process", "Role", "Machine", "State", "Restarts", "Last turn", "Ended", "Memory"];
    return [
      el("p", { class: "facts" }, this.said(run, losses)),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "group", "aria-label": "Processes of the run" },
        el(
          "table",
          { class: "compare cluster" },
          el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
          el(
            "tbody",
            {},
            run.processes.map((one) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, inline(one.name, 60)),
                el("td", {}, inline(one.role, 20)),
                el("td", { title: one.process === null ? null : `process ${one.process}` }, inline(one.machine, 60)),
                el("td", { class: one.alive ? "" : "bad" }, one.alive ? "at work" : "\u2717 not at work"),
                el("td", { class: one.restarts ? "warn" : "" }, number(one.restarts)),
                el("td", {}, seconds(one.turn_seconds)),
                el("td", {}, ago(one.last_turn)),
                el("td", {}, measured(one.memory_mib, "MiB")),
              ),
            ),
          ),
        ),
      ),
    ];
  }

  said(run, losses) {
    const away = run.processes.filter((one) => !one.alive).length;
    const parts = [`${plural(run.processes.length, "process", "processes")} at step ${number(run.status.step)}`];
    if (away) parts.push(`${number(away)} not at work`);
    parts.push(losses ? `engines were lost ${plural(losses, "time")} in the run` : "no engine was lost");
    return `${parts.join(", ")}.`;
  }
}
