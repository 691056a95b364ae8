"""Rules about what a run costs: time outside learning, idle slots, memory."""

from __future__ import annotations

from dapo.observe.text import number, percent
from dapo.report.phases import phases_of_row
from dapo.report.rules.course import Facts, Finding, Severity, learner_restarts, rule
from dapo.words import counted

IDLE, GENERATING = 0.4, 0.4
"""Share of slots busy; share of the time in the engine from which that matters."""
BESIDE, BESIDE_LEAST = 0.5, 60.0
"""Share of the time in evaluation, saving and reports; seconds from which it is worth a word."""
SCORING = 0.3
GROWTH, GROWTH_MIB, GROWTH_STEPS = 0.1, 200.0, 20
WAITING, WAITING_STEPS = 0.4, 6
"""Share of a step idle beside generation that goes on; steps of a run from which it is reported."""
LOSSES, LOSSES_SHARE = 3, 0.05
"""Losses, and share of the steps that have one, from which they are no accident."""
WASTED = 0.25
"""Share of the generated tokens thrown away by choice of settings."""


_BOTH_WAIT = {
    True: "Set rollout.max_staleness=2: 1 waits in every step for every group that was begun.",
    False: "Raise algorithm.dynamic_sampling.lookahead up to rollout.max_staleness - 0.5, and rollout.slots.",
}
_SCORING = "Raise run.reward_workers, make the reward function faster, or bound it with rewards.0.timeout."


def phase_seconds(facts: Facts) -> dict[str, float]:
    """Seconds of each phase over the run, the evaluation before its first step included; most first."""
    sums: dict[str, float] = {}
    for row in facts.run.rows:
        for name in phases_of_row(row):
            sums[name] = sums.get(name, 0.0) + row[f"time/{name}"]
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


@rule(
    f"an engine lost, a warning from {LOSSES} losses in {percent(LOSSES_SHARE, 0)} of the steps on; a learner that "
    "was started again",
    "A lost engine costs its start and the responses that it had begun, a lost rank the steps since the last "
    "checkpoint.",
    "Read log.txt and hosts/ in the run's folder for the reason: often it is memory (rollout.slots, "
    "rollout.max_response_tokens, learner.microbatch_tokens). cluster.max_engine_restarts and "
    "cluster.max_learner_restarts bound the restarts.",
)
def processes_lost(facts: Facts) -> Finding | None:
    """Losses of engines over the whole run, and restarts of the learner since the last command began."""
    engines, restarts = facts.total("cluster/engine_losses"), learner_restarts(facts.run)
    if not engines and not restarts:
        return None
    steps = facts.where("cluster/engine_losses", bool) or facts.whole
    often = engines >= LOSSES and len(steps) >= LOSSES_SHARE * facts.steps
    titles, said = [], []
    if engines:
        titles.append(f"engines were lost {_times(engines)}")
        again = counted(facts.total("cluster/resubmitted"), "response")
        where = f"{len(steps)} of {counted(facts.steps, 'step')}"
        said.append(f"It happened in {where}, and the run made {again} again that they had begun.")
    if restarts:
        titles.append(f"the learner was started again {_times(restarts)}")
        said.append("Each restart of the learner did the steps since its last checkpoint again.")
    gone = [process["name"] for process in facts.run.processes if not process["alive"]]
    if gone:
        said.append(f"At the last step {', '.join(gone[:4])} did not work.")
    return Finding(
        "bad" if often and gone else "warn" if often or gone or restarts else "note",
        " and ".join(titles).capitalize(),
        " ".join(said),
        (steps[0], steps[-1]),
        ["cluster/engine_losses", "cluster/engines", "cluster/resubmitted"],
    )


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:,.0f} times"


@rule(
    f"less than {percent(IDLE, 0)} of the slots busy in the last steps, with {percent(GENERATING, 0)} of the time in "
    "generating",
    "The engine waits for its longest answers, and everything else waits for it.",
    "Raise algorithm.dynamic_sampling.lookahead (needs max_age of 1 and more), or lower rollout.max_response_tokens or "
    "rollout.slots.",
)
def idle_slots(facts: Facts) -> Finding | None:
    """In the steps at the end, and only where generating is a large part of the time."""
    use, seconds = facts.late("sampling/slot_use"), phase_seconds(facts)
    generating = seconds.get("generate", 0.0) / max(sum(seconds.values()), 1e-9)
    if use is None or use >= IDLE or generating < GENERATING:
        return None
    return Finding(
        "note",
        "The engine is half idle",
        f"In the last steps {percent(use, 0)} of the slots are busy, and {percent(generating, 0)} of the time goes "
        "into generating.",
        facts.late_steps("sampling/slot_use"),
        ["sampling/slot_use", "time/generate", "time/tokens_per_second"],
    )


@rule(
    f"{percent(BESIDE, 0)} of the time in evaluation, saving and reports, or {percent(SCORING, 0)} waiting for "
    f"verifiers, in runs of {BESIDE_LEAST:g} s and more",
    "It is time in which the model does not learn.",
    "Evaluate and save less often (validation.every, validation.samples, validation.limit, checkpoint.every).",
)
def time_beside(facts: Facts) -> Finding | None:
    """Find time that is neither generating nor learning, by its largest part."""
    seconds = phase_seconds(facts)
    whole = sum(seconds.values())
    beside = {name: seconds.get(name, 0.0) for name in ("evaluate", "save", "report")}
    scoring = seconds.get("score", 0.0)
    if not facts.steps or whole < BESIDE_LEAST or (sum(beside.values()) < BESIDE * whole and scoring < SCORING * whole):
        return None
    if scoring >= SCORING * whole:
        said, move = f"{percent(scoring / whole, 0)} of the time is spent waiting for verifiers.", _SCORING
        keys = ["time/score"]
    else:
        parts = ", ".join(f"{name} {percent(value / whole, 0)}" for name, value in beside.items() if value)
        said, move = f"{percent(sum(beside.values()) / whole, 0)} of the time trains nothing: {parts}.", ""
        keys = [f"time/{name}" for name in beside]
    return Finding("warn", "Much time goes to other work", said, facts.whole, keys, move)


@rule(
    f"engines or learner idle for {percent(WAITING, 0)} of the last steps of {WAITING_STEPS} and more, with "
    "rollout.max_staleness of 1 and more",
    "Idle devices are paid for; the idle side says where to move one.",
    "Move devices to the side that is never idle (rollout.engines, learner.ranks); if both wait, raise "
    "rollout.max_staleness, algorithm.dynamic_sampling.lookahead or run.reward_workers.",
)
def who_waits(facts: Facts) -> Finding | None:
    """In the steps at the end of a run whose engines work beside the learner: who of both had nothing to do."""
    staleness = facts.setting("rollout.max_staleness", 0)
    step = facts.late("time/step")
    engines, learner = facts.late("time/engine_idle"), facts.late("time/learner_idle")
    if not staleness or not step or engines is None or learner is None or facts.steps < WAITING_STEPS:
        return None
    engines, learner = min(1.0, engines / step), min(1.0, learner / step)
    if max(engines, learner) < WAITING:
        return None
    shares = f"Engines were idle for {percent(engines, 0)} of the last steps, the learner for {percent(learner, 0)}."
    if engines >= WAITING and learner >= WAITING:
        severity: Severity = "warn"
        title, move = "Engines and learner wait for each other", _BOTH_WAIT[staleness == 1]
        scoring = phase_seconds(facts)
        if scoring.get("score", 0.0) >= SCORING * sum(scoring.values()):
            title, move = "Engines and learner wait for the verifiers", _SCORING
    elif engines > learner:
        severity, title = "note", "Engines wait for the learner"
        move = (
            "Give the learner more devices (learner.ranks) or the engines fewer (rollout.engines). With one device for "
            "both rollout.max_staleness=0 takes turns and is as fast."
        )
    else:
        severity, title = "note", "The learner waits for engines"
        move = "More engines (rollout.engines, rollout.slots), or fewer devices for the learner (learner.ranks)."
    keys = ["time/engine_idle", "time/learner_idle", "policy/staleness_mean"]
    return Finding(severity, title, shares, facts.late_steps("time/step"), keys, move)


@rule(
    f"{percent(WASTED, 0)} of the generated tokens discarded",
    "Work that would have trained is paid for twice.",
    "Set algorithm.dynamic_sampling.surplus and algorithm.dynamic_sampling.unfinished to carry.",
)
def thrown_away(facts: Facts) -> Finding | None:
    """Tokens of kept groups that settings discard; rejected ones are the price of the filter."""
    generated, lost = facts.total("sampling/generated_tokens"), facts.total("cost/discarded_tokens")
    if not generated or lost / generated < WASTED:
        return None
    paths = ("algorithm.dynamic_sampling.surplus", "algorithm.dynamic_sampling.unfinished")
    unset = [path for path in paths if facts.setting(path) != "carry"]
    return Finding(
        "note",
        "Good work is thrown away",
        f"{percent(lost / generated, 0)} of the generated tokens were surplus or unfinished, and discarded.",
        facts.span("cost/discarded_tokens", bool),
        ["cost/discarded_tokens", "cost/discarded_seconds"],
        f"Set {' and '.join(unset)} to carry." if unset else "",
    )


@rule(
    f"peak memory up by {percent(GROWTH, 0)} and {GROWTH_MIB:g} MiB in the second half of {GROWTH_STEPS} steps and "
    "more",
    "At some step the machine has none left, and the run is killed without a word.",
    "If responses grow longer too, lower learner.microbatch_tokens. Else look for what a function of your own "
    "keeps. Checkpoints (checkpoint.every) bound what a kill can cost.",
)
def memory_growth(facts: Facts) -> Finding | None:
    """In the second half, when everything has been allocated once."""
    steps, values = facts.series("memory/peak_rss_mib")
    if len(values) < GROWTH_STEPS:
        return None
    half, last = values[len(values) // 2], values[-1]
    if last - half < max(GROWTH_MIB, GROWTH * half):
        return None
    rate = (last - half) / (steps[-1] - steps[len(steps) // 2])
    return Finding(
        "warn",
        "Memory keeps growing",
        f"Since step {steps[len(steps) // 2]} the peak grew from {number(half)} to {number(last)} MiB, {number(rate)} "
        "MiB a step.",
        (steps[len(steps) // 2], steps[-1]),
        ["memory/peak_rss_mib"],
    )
