// The processes of a run that has several: what each is, where it runs, and whether it works.

class ClusterSection {
  constructor(root, page) {
    this.page = page;
    this.body = html`<div />`;
    root.append(this.body);
  }

  update() {
    const runs = this.page.bundle.runs.filter((run) => run.processes.length);
    const several = this.page.bundle.runs.length > 1;
    put(this.body, runs.map((run) => [several ? html`<h3>${inline(run.label, 80)}</h3>` : null, this.table(run)]));
    return runs.length > 0;
  }

  table(run) {
    const { updated } = run.status;
    const ago = (end) => (end === null || updated === null ? MISSING : `${seconds(Math.max(0, updated - end))} before`);
    const head = ["Process", "Role", "Machine", "State", "Restarts", "Last turn", "Ended", "Memory"];
    const row = (one) => html`
      <tr>
        <th scope="row">${inline(one.name, 60)}</th>
        <td>${inline(one.role, 20)}</td>
        <td title=${one.process === null ? null : `process ${one.process}`}>${inline(one.machine, 60)}</td>
        <td class=${one.alive ? "" : "bad"}>${one.alive ? "at work" : "✗ not at work"}</td>
        <td class=${one.restarts ? "warn" : ""}>${number(one.restarts)}</td>
        <td>${seconds(one.turn_seconds)}</td>
        <td>${ago(one.last_turn)}</td>
        <td>${measured(one.memory_mib, "MiB")}</td>
      </tr>`;
    return html`
      <p class="facts">${this.said(run)}</p>
      ${scrolled("Processes of the run", html`
        <table class="compare cluster">${headOf(head)}<tbody>${run.processes.map(row)}</tbody></table>`)}`;
  }

  said(run) {
    const lost = run.curves.values["cluster/engine_losses"] || [];
    const losses = lost.reduce((sum, v) => sum + (v || 0), 0);
    const steps = run.curves.steps.filter((_, n) => lost[n]).map((step) => number(step));
    const restarts = run.processes.reduce((most, one) => (one.role === "learner" ? Math.max(most, one.restarts) : most), 0);
    const away = run.processes.filter((one) => !one.alive).length;
    const parts = [`${plural(run.processes.length, "process", "processes")} at step ${number(run.status.step)}`];
    if (away) parts.push(`${number(away)} not at work`);
    const where = `${steps.length === 1 ? "step" : "steps"} ${steps.slice(0, 8).join(", ")}${steps.length > 8 ? " and later" : ""}`;
    parts.push(losses ? `engines were lost ${plural(losses, "time")} in the run (${where})` : "no engine was lost");
    if (restarts) parts.push(`the learner was started again ${plural(restarts, "time")}`);
    return `${parts.join(", ")}.`;
  }
}
