"""The outcome of a run in words and numbers: what a person reads first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dapo.metrics.glossary import PHASES
from dapo.observe.held_out import AccuracyPoint, chance_between
from dapo.observe.metrics import shown
from dapo.observe.sentences import ended_said
from dapo.observe.text import big, interval, number, percent, seconds_said, sentence
from dapo.report.page_data import Advice, Status, Tile, Tone
from dapo.report.reader import RunContents
from dapo.report.rules import advice_of
from dapo.report.rules.cost import phase_seconds
from dapo.report.rules.course import FEWEST, Facts
from dapo.report.status import outcome_of, status_of
from dapo.words import counted

__all__ = ["sentences_of", "status_of", "tiles_of"]

TILES = 9
LATE = 3
"""The last third of a run tells whether it was still rising."""
EDGE = 5
"""Steps at either end whose mean is shown: the same for runs of any length, so that two of one recipe begin alike."""
LEAST_LATE = 4
"""Evaluations below which nothing is said of that."""


def sentences_of(run: RunContents, advice: Sequence[Advice] | None = None) -> list[str]:
    """Return the outcome in two to five sentences: how it ended if not well, what was learned, the cost, what stands
    out.

    Args:
        run: as read.
        advice: of ``advice_of``, where it is known already.
    """
    advice = advice_of(run) if advice is None else advice
    facts, status = Facts(run), status_of(run)
    ended = ended_said(outcome_of(run))
    said = [ended] if ended else []
    said.append(_learned(facts))
    further = [text for text in (_trend(facts), _aside(facts)) if text]
    if further:
        said.append(sentence("; ".join(further)))
    if facts.steps:
        said.append(_cost(facts))
    stands_out = _stands_out(advice, status, facts)
    if stands_out:
        said.append(stands_out)
    return said[:5]


def tiles_of(run: RunContents) -> list[Tile]:
    """At most nine numbers; what was not measured has none."""
    facts = Facts(run)
    tiles = [
        _accuracy_tile(facts),
        _first_and_last(facts, "greedy accuracy", "validation/greedy_accuracy"),
        _pass_tile(facts),
        _trend_tile(facts, "training accuracy", "reward/accuracy"),
        _trend_tile(facts, "groups kept", "sampling/acceptance_rate"),
        _trend_tile(facts, "entropy, nats", "train/entropy"),
        _tokens_tile(facts),
        _time_tile(facts),
        _trend_tile(facts, "response length", "response/length_mean"),
        _memory_tile(facts),
        _speed_tile(facts),
    ]
    known = [tile for tile in tiles if tile is not None]
    return [_steps_tile(run), *known] if len(known) < TILES else known[:TILES]


# ---------------------------------------------------------------------------------------------------- sentences


def _learned(facts: Facts) -> str:
    found = facts.evaluations
    if facts.run.supervised:
        return _imitated(facts)
    if not found:
        tried = sum(bool(row.get("validation/unscored")) for row in facts.run.rows)
        silent = f"No response of its {tried} evaluation{'s' * (tried > 1)} could be scored"
        return _learned_in_training(facts, silent if tried else _not_held_out(facts))
    first, last = found[0], found[-1]
    if len(found) == 1:
        when = "before training" if first.step == 0 else f"at step {first.step}"
        return _learned_in_training(
            facts, f"Held-out accuracy was {_with_interval(first)} {when}, and was not measured again"
        )
    change, noise = last.accuracy - first.accuracy, chance_between(first, last)
    span = f"{_with_interval(first)} to {_with_interval(last)} in {counted(last.step - first.step, 'step')}"
    if abs(change) <= noise or change == 0:
        said = (
            f"Held-out accuracy went from {span}: within chance (a change below {100 * noise:.1f} points says nothing)"
        )
    else:
        verb = "rose" if change > 0 else "fell"
        said = f"Held-out accuracy {verb} from {span}, {_times(noise)}"
    return said + "."


def _imitated(facts: Facts) -> str:
    """Return the outcome of a supervised run, which has losses and no accuracy."""
    held_out = [row for row in facts.run.rows if row.get("validation/loss") is not None]
    if not held_out:
        return "The held-out loss was not measured (sft.validation, sft.every)."
    first, last = held_out[0], held_out[-1]
    if len(held_out) == 1:
        return f"Held-out loss was {first['validation/loss']:.3g} nats a token at step {first['step']:.0f}."
    said = f"Held-out loss went from {first['validation/loss']:.3g} to {last['validation/loss']:.3g} nats a token"
    least = min(held_out, key=lambda row: row["validation/loss"])
    rose = "" if least is last else f"; it was least at step {least['step']:.0f}, {least['validation/loss']:.3g}"
    return f"{said} in {counted(last['step'] - first['step'], 'step')}{rose}."


def _not_held_out(facts: Facts) -> str:
    """Why there is no held-out accuracy."""
    recipe = facts.run.recipe
    if recipe is None:
        return "It has no held-out accuracy"
    if not recipe.data.validation:
        return "The recipe names no validation data, so there is no held-out accuracy"
    return "Nothing was evaluated, so there is no held-out accuracy"


def _times(noise: float) -> str:
    return f"more than chance explains ({100 * noise:.1f} points)" if noise else "on problems without an interval"


def _aside(facts: Facts) -> str:
    """Greedy accuracy and diversity, of the first and the last evaluation."""
    parts = []
    greedy, key = facts.first_and_last("validation/greedy_accuracy"), facts.widest_pass
    if greedy:
        parts.append(f"greedy accuracy went from {percent(greedy[0])} to {percent(greedy[1])}")
    many = facts.first_and_last(key)
    if many:
        change, noise = many[1] - many[0], facts.chance_of_pass(key)
        verb = "held" if abs(change) <= noise else "rose" if change > 0 else "fell"
        parts.append(f"{key.removeprefix('validation/')} {verb} ({percent(many[0])} to {percent(many[1])})")
    return ", ".join(parts)


def _learned_in_training(facts: Facts, without: str) -> str:
    change = _first_last(facts, "reward/accuracy")
    if change:
        return f"{without}; accuracy on training prompts went from {percent(change[0])} to {percent(change[1])}."
    late = facts.late("reward/accuracy")
    if late is not None:
        return f"{without}; accuracy on training prompts was {percent(late)}."
    return f"{without}; no step was trained." if not facts.steps else f"{without}."


def _trend(facts: Facts) -> str:
    """Whether more steps would have helped: the last third of the evaluations."""
    found = facts.evaluations
    if len(found) < LEAST_LATE:
        return ""
    best, last = max(found, key=lambda e: e.accuracy), found[-1]
    if best.accuracy - last.accuracy > chance_between(best, last):
        return (
            ""
            if best is found[0]
            else f"It was best at step {best.step} ({percent(best.accuracy)}) and fell from there"
        )
    if last.accuracy - found[0].accuracy <= chance_between(found[0], last):
        return ""
    before = found[-1 - max(1, len(found) // LATE)]
    rise = last.accuracy - before.accuracy
    if rise > chance_between(before, last):
        return f"It was still rising at the end ({percent(before.accuracy)} at step {before.step}): more steps may help"
    return f"It rose little after step {before.step} ({percent(before.accuracy)})"


def _cost(facts: Facts) -> str:
    rows = facts.rows
    said = []
    generated, trained = rows[-1].get("counters/generated_tokens"), rows[-1].get("counters/trained_tokens")
    if generated and trained:
        each = f"{generated / trained:.2f} tokens were generated for each with loss"
        said.append(f"{each} ({big(generated)} for {big(trained)})")
    elif generated:
        said.append(f"{big(generated)} tokens were generated, and none had loss")
    seconds = phase_seconds(facts)
    whole = sum(seconds.values())
    if whole > 0:
        most = [f"{share} {name}" for name, share in _shares(seconds)[:2]]
        said.append(f"{counted(facts.steps, 'step')} took {seconds_said(whole)}, {' and '.join(most)}")
    return sentence("; ".join(said)) if said else f"{counted(facts.steps, 'step was', 'steps were')} trained."


def _stands_out(advice: Sequence[Advice], status: Status, facts: Facts) -> str:
    """Return the title of the worst warning that was not said yet. A fall of accuracy was, but is better than nothing.
    The list of warnings has the rest."""
    worst = [a for a in advice if a["severity"] != "note" and a["rule"] != "batch_unfilled"]
    chosen = next((a for a in worst if a["rule"] != "validation_fell"), worst[0] if worst else None)
    if chosen is not None:
        more = len(worst) - 1
        others = f" ({more} further warning{'s' if more > 1 else ''} below)" if more else ""
        return f"What stands out: {_lower(chosen['title'])}{others}."
    if status["state"] != "finished" or not facts.steps:
        return ""
    notes = [a for a in advice if a["severity"] == "note"]
    if not notes:
        return "No warning sign was found."
    others_say = f", and {len(notes) - 1} more" if len(notes) > 1 else ""
    return f"No warning sign was found; a note below says: {_lower(notes[0]['title'])}{others_say}."


# ---------------------------------------------------------------------------------------------------- tiles


def _tile(label: str, value: str, detail: str = "", key: str = "", tone: Tone = "") -> Tile:
    return Tile(label=label, value=value, detail=detail, key=key, tone=tone)


def _steps_tile(run: RunContents) -> Tile:
    status = status_of(run)
    of = f" of {status['steps']:,}" if status["steps"] else ""
    bad = status["state"] in ("failed", "killed", "unfilled")
    return _tile("training steps", f"{status['step']:,}{of}", status["title"], "step", "bad" if bad else "")


def _accuracy_tile(facts: Facts) -> Tile | None:
    found = facts.evaluations
    if not found:
        return None
    first, last = found[0], found[-1]
    problems = facts.evaluated[-1].get("validation/problems")
    where = f", {problems:,.0f} problems" if problems else ""
    detail = f"step {last.step}{where}"
    if last.interval:
        detail = f"95% interval {interval(*last.interval)}, {detail}"
    if last is first:
        return _tile("held-out accuracy", percent(last.accuracy), detail, "validation/accuracy")
    change, noise = last.accuracy - first.accuracy, chance_between(first, last)
    tone: Tone = "" if abs(change) <= noise else "good" if change > 0 else "bad"
    value = f"{percent(first.accuracy)} → {percent(last.accuracy)}"
    return _tile("held-out accuracy", value, detail, "validation/accuracy", tone)


def _first_and_last(facts: Facts, label: str, key: str) -> Tile | None:
    rows = [row for row in facts.run.rows if row.get(key) is not None]
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    if first is last:
        return _tile(label, percent(last[key]), f"step {last['step']}", key)
    return _tile(
        label, f"{percent(first[key])} → {percent(last[key])}", f"steps {first['step']} and {last['step']}", key
    )


def _pass_tile(facts: Facts) -> Tile | None:
    key = facts.widest_pass
    return _first_and_last(facts, key.removeprefix("validation/"), key) if key else None


def _trend_tile(facts: Facts, label: str, key: str) -> Tile | None:
    values = facts.values(key)
    if not values:
        return None
    change = _first_last(facts, key)
    if change is None:
        return _tile(label, shown(key, facts.late(key) or 0.0), f"up to step {facts.last_step}", key)
    detail = f"means of the first and last {_edge(values)} steps"
    return _tile(label, f"{shown(key, change[0])} → {shown(key, change[1])}", detail, key)


def _tokens_tile(facts: Facts) -> Tile | None:
    row = facts.rows[-1] if facts.rows else {}
    generated, trained = row.get("counters/generated_tokens"), row.get("counters/trained_tokens")
    if not generated:
        return None
    value = f"{generated / trained:.2f}" if trained else "–"
    detail = f"{big(generated)} generated, {big(trained or 0)} with loss"
    return _tile("generated per token with loss", value, detail, "sampling/trained_share")


def _time_tile(facts: Facts) -> Tile | None:
    seconds = phase_seconds(facts)
    whole = sum(seconds.values())
    if whole <= 0:
        return None
    parts = [f"{name} {share}" for name, share in _shares(seconds)[:3]]
    return _tile("time in steps", seconds_said(whole), ", ".join(parts), "time/step")


def _memory_tile(facts: Facts) -> Tile | None:
    values = facts.values("memory/peak_rss_mib")
    return (
        _tile("peak memory", f"{values[-1]:,.0f} MiB", "of the training process", "memory/peak_rss_mib")
        if values
        else None
    )


def _speed_tile(facts: Facts) -> Tile | None:
    late = facts.late("time/tokens_per_second")
    key = "time/tokens_per_second"
    return None if late is None else _tile("tokens per second", number(late), "generated, in the last steps", key)


# ---------------------------------------------------------------------------------------------------- small words


def _first_last(facts: Facts, key: str) -> tuple[float, float] | None:
    """Means of the first and of the last ``EDGE`` steps; None where the run is too short to have two ends."""
    values = facts.values(key)
    if len(values) < 2 * FEWEST:
        return None
    width = _edge(values)
    return math.fsum(values[:width]) / width, math.fsum(values[-width:]) / width


def _edge(values: Sequence[float]) -> int:
    return min(EDGE, len(values) // 2)


def _shares(seconds: dict[str, float]) -> list[tuple[str, str]]:
    """Phases and their share of the time, without those that would read 0%."""
    whole = sum(seconds.values())
    found = [
        (PHASES[name].doing if name in PHASES else name, percent(value / whole, 0)) for name, value in seconds.items()
    ]
    return [(name, share) for name, share in found if share != percent(0.0, 0)]


def _with_interval(found: AccuracyPoint) -> str:
    return f"{percent(found.accuracy)} ({interval(*found.interval)})" if found.interval else percent(found.accuracy)


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]
