"""Rules about what is learned: held-out accuracy, reward against accuracy, and diversity."""

from __future__ import annotations

import math

from dapo.data.load import FEW_HELD_OUT, MANY_PASSES, few_held_out, many_passes
from dapo.metrics.glossary import lookup
from dapo.observe.columns import changes_by_value, fallen_said
from dapo.observe.commands import export_said
from dapo.observe.held_out import AccuracyPoint, Moved, chance_between, moved
from dapo.observe.text import clean, number, percent, sentence, shorten
from dapo.report.prompts_file import count_prompts
from dapo.report.rules.course import FEWER_UPDATES, Facts, Finding, rule

FLAT_EVALUATIONS, FLAT_STEPS, SOLVED = 4, 50, 0.95
"""Evaluations and steps before nothing gained means something; accuracy that leaves nothing to gain."""
MANY, LUCK = 8, 1.5
"""Evaluations from which the best one is the luckiest of many, and by how much wider the interval is then taken."""
MOVED = 0.05
"""Change of an accuracy that counts."""
REWARD_UP = 0.1
"""Rise of the reward, in shares of what it was or of the least of 1."""
MOST_EVALUATIONS, SURE = 5, 0.05
"""Evaluations at either end, at most a third of all; probability below which chance explains no problem's fall."""
GIVEN_UP, GIVEN_UP_MUCH, LISTED = 0.01, 0.05, 3
"""Shares of the held-out problems; those that are listed."""
TWICE = 1.96
"""Standard deviations by which more problems are lost than won (McNemar's test)."""
DIVERSITY = 0.03
"""Fall of pass@k that counts, where chance does not explain it."""


_SMALLER = f"lower learner.learning_rate or use {FEWER_UPDATES}"


@rule(
    f"mean reward up by {percent(REWARD_UP, 0)} and training accuracy down by {100 * MOVED:g} points",
    "A reward other than accuracy that is easier to earn is learnt; that is how verifiers are gamed.",
    "Read answers of the last steps. Lower the weight of that reward (rewards.1.weight; 0 only records it), or "
    "give it to right answers alone.",
)
def reward_without_accuracy(facts: Facts) -> Finding | None:
    """Find a sum of rewards that rises while accuracy falls: something else pays."""
    change = facts.change("reward/raw")
    if change is None or change[1] - change[0] < REWARD_UP * max(1.0, abs(change[0])) or facts.accuracy_change > -MOVED:
        return None
    accuracy = facts.change("reward/accuracy") or (0.0, 0.0)
    others = [k for k in facts.named("reward/") if _is_other(k) and (c := facts.change(k)) and c[1] > c[0]]
    paid = ""
    if others:
        most = max(others, key=lambda key: _rise(facts, key))
        early, late = facts.change(most) or (0.0, 0.0)
        name = shorten(clean(most.removeprefix("reward/"), newlines=False), 60)
        paid = f" The reward `{name}` went from {number(early)} to {number(late)}."
    return Finding(
        "bad",
        "The reward rises and accuracy falls",
        f"The mean reward rose from {number(change[0])} to {number(change[1])} while training accuracy fell from "
        f"{percent(accuracy[0])} to {percent(accuracy[1])}.{paid} The model learns what is paid, not what is right.",
        facts.whole,
        ["reward/raw", "reward/accuracy", *others],
    )


@rule(
    "the last held-out accuracy below the best one by more than the interval of their difference, "
    f"{LUCK:g} times that from {MANY} evaluations on (bad where it is not above the first)",
    "More training made the model worse on problems it does not train on.",
    "Stop here, and export the checkpoint nearest to the best evaluation, where one from before the fall is kept "
    f"(checkpoint.best keeps that of the best); else start again. In either case {_SMALLER}.",
)
def validation_fell(facts: Facts) -> Finding | None:
    """From the best evaluation to the last, by more than the interval of their difference."""
    found = facts.evaluations
    if len(found) < 2:
        return None
    best, last = max(found, key=lambda e: e.accuracy), found[-1]
    fall = best.accuracy - last.accuracy
    # The best of many is partly luck, the more so the more there are.
    chance = chance_between(best, last) * (LUCK if len(found) >= MANY else 1.0)
    if last is best or fall <= chance or fall <= 0:
        return None
    before, after = _around(facts, "reward/accuracy", best.step), facts.late("reward/accuracy")
    said = (
        f"Held-out accuracy fell from {percent(best.accuracy)} at step {best.step} to {percent(last.accuracy)} at step "
        f"{last.step}"
    )
    if before is None or after is None:
        return _fell(facts, f"{said}.", best, _calmer(facts, best))
    moved = f"training accuracy went from {percent(before)} to {percent(after)}"
    if after >= before + MOVED / 2:
        said += f", while {moved}: the model learns its training problems by heart, or what the verifier lets pass."
        move = (
            "Read answers of the last steps that count as right: is the verifier gamed? If not, the data is too "
            f"small or repeats: take more problems, or fewer steps. {_best_kept(facts, best)}"
        )
        return _fell(facts, said, best, move)
    why = "make the model worse than it began" if best is found[0] else "undo what was learned"
    return _fell(facts, f"{said}; {moved}: the updates {why}.", best, _calmer(facts, best))


def _fell(facts: Facts, said: str, best: AccuracyPoint, move: str) -> Finding:
    first, last = facts.evaluations[0], facts.evaluations[-1]
    gained = last.accuracy - first.accuracy > chance_between(first, last)
    keys = ["validation/accuracy", "validation/greedy_accuracy", "reward/accuracy"]
    return Finding("warn" if gained else "bad", "Held-out accuracy falls", said, (best.step, last.step), keys, move)


def _calmer(facts: Facts, best: AccuracyPoint) -> str:
    """Return what to do about updates that destroy."""
    kept = _checkpoint(facts, best)
    if kept is not None:
        export = export_said(facts.run.folder.path, kept)
        return f"Stop here, and export the checkpoint of step {kept} (`{export}`). Then {_SMALLER}."
    return f"{_best_kept(facts, best)} Start again, and {_SMALLER}."


def _best_kept(facts: Facts, best: AccuracyPoint) -> str:
    """Return where the best model is, if anywhere."""
    kept = _checkpoint(facts, best)
    if kept is not None:
        return f"The checkpoint of step {kept} is the best one (`{export_said(facts.run.folder.path, kept)}`)."
    if best.step == 0:
        return "No step was better than the model before training."
    return "No checkpoint from before the fall is kept (checkpoint.best=validation/accuracy keeps the best one)."


def _checkpoint(facts: Facts, best: AccuracyPoint) -> int | None:
    """Return the checkpoint nearest to the best evaluation, of those whose own nearest evaluation is as good but for
    chance. Of two equally near ones the later counts, so that none from within the fall is named."""
    good = []
    for step in facts.checkpoints:
        near = min(reversed(facts.evaluations), key=lambda e: abs(e.step - step))
        if step and best.step and best.accuracy - near.accuracy <= chance_between(best, near):
            good.append(step)
    return min(good, key=lambda step: abs(step - best.step), default=None)


@rule(
    f"{FLAT_EVALUATIONS} evaluations over {FLAT_STEPS} steps, none above the first by more than the interval of "
    "the difference",
    "The run costs and teaches nothing, or the validation is too small to see it.",
    "See whether training accuracy rises. If not: raise learner.learning_rate, take problems that are solved now "
    "and then (`dapo data RUN --show useful` lists them), and see that the verifier reads right answers as right. "
    "If it does: validate on more problems of the same kind (validation.limit, validation.samples).",
)
def no_learning(facts: Facts) -> Finding | None:
    """No evaluation is above the first by more than chance, over a long time."""
    found = facts.evaluations
    if len(found) < FLAT_EVALUATIONS or found[-1].step - found[0].step < FLAT_STEPS:
        return None
    first, best = found[0], max(found, key=lambda e: e.accuracy)
    gain = best.accuracy - first.accuracy
    if gain > chance_between(first, best) or first.accuracy >= SOLVED:
        return None
    if first.accuracy - found[-1].accuracy > chance_between(first, found[-1]):
        return None  # worse than nothing: ``validation_fell`` says it
    training = facts.change("reward/accuracy")
    said = (
        f"In {found[-1].step - found[0].step} steps and {len(found)} evaluations held-out accuracy was never above its "
        f"first value ({percent(first.accuracy)}) by more than chance."
    )
    if training:
        said += f" Training accuracy went from {percent(training[0])} to {percent(training[1])}."
    return Finding(
        "warn",
        "Nothing is learned",
        said,
        (found[0].step, found[-1].step),
        ["validation/accuracy", "reward/accuracy", "train/grad_norm", "train/learning_rate"],
    )


@rule(
    f"pass@k down by {100 * DIVERSITY:g} points and more than chance explains, while accuracy rises",
    "The model gives up ways of solving that it had. More samples no longer help, nor will more training.",
    "Lower learner.learning_rate, raise rollout.group_size, or stop earlier.",
)
def diversity(facts: Facts) -> Finding | None:
    """Compare the largest k that the first and the last evaluation share."""
    key = facts.widest_pass
    passed, right = facts.first_and_last(key), facts.first_and_last("validation/accuracy")
    if passed is None or right is None:
        return None
    noise = max(DIVERSITY, facts.chance_of_pass(key))
    if right[1] <= right[0] or passed[0] - passed[1] <= noise:
        return None
    return Finding(
        "warn",
        "Answers lose their variety",
        f"Accuracy of one answer rose from {percent(right[0])} to {percent(right[1])}, and that one of "
        f"{key.rpartition('@')[2]} is right fell from {percent(passed[0])} to {percent(passed[1])}: fewer problems can "
        "be solved, those more surely.",
        (facts.evaluations[0].step, facts.evaluations[-1].step),
        [key, "validation/accuracy", "train/entropy"],
    )


@rule(
    "held-out problems with right responses in the first evaluations and none in the last ones, by more than "
    f"chance explains: {percent(GIVEN_UP, 0)} of them (a warning from {percent(GIVEN_UP_MUCH, 0)}); or more such "
    "problems lost than won, by McNemar's test",
    "The model gives up kinds of problems that it could solve, which accuracy and pass@k over all problems hide.",
    "Read its answers to them. Train on more like them, lower learner.learning_rate, or take an earlier checkpoint.",
)
def given_up(facts: Facts) -> Finding | None:
    """Compare the first and the last evaluations problem by problem: pass@k alone may hold while some are given up."""
    found = facts.evaluations
    several = min(MOST_EVALUATIONS, max(1, len(found) // 3))
    early, late = ([facts.held_out(e.step) for e in part] for part in (found[:several], found[-several:]))
    known = [[one for one in part if one is not None] for part in (early, late)]
    if len(found) < 2 or min(map(len, known)) < several:
        return None
    lost, won = moved(*known)
    sure, problems = sum(one.by_chance < SURE for one in lost), len(known[1][-1].problems)
    more_lost = len(lost) - len(won) > TWICE * math.sqrt(len(lost) + len(won))
    if not more_lost and (not sure or sure < GIVEN_UP * problems):
        return None
    since = found[-several].step
    names = _problem_names(facts)
    listed = "; ".join(_moved_said(one, names) for one in lost[:LISTED])
    gained = f" Won most: {'; '.join(_moved_said(one, names) for one in won[:LISTED])}." if won else ""
    return Finding(
        "warn" if more_lost or sure >= GIVEN_UP_MUCH * problems else "note",
        "Held-out problems that were solved are solved no more",
        f"Of {problems:,} held-out problems {len(lost):,} had right responses up to step {found[several - 1].step} and "
        f"none since step {since}, {sure:,} of them by more than chance explains; {len(won):,} were won. Lost most: "
        f"{listed}.{gained}",
        (since, found[-1].step),
        ["validation/accuracy", "train/entropy"],
    )


def _problem_names(facts: Facts) -> dict[tuple[str, str], str]:
    """Return the texts of the problems that samples.jsonl holds, by set and content."""
    return {(sample.set, sample.prompt_id): sample.problem or sample.prompt for sample in facts.run.samples}


def _moved_said(one: Moved, names: dict[tuple[str, str], str]) -> str:
    """Return a problem, or its place and answer where its text was not kept, with its right responses."""
    problem, early, late = one
    named = names.get((problem.set, problem.prompt_id))
    said = f"problem {early.number} of {problem.set}, answer {problem.answer!r}" if named is None else repr(named)
    rights = f"{early.right} of {early.responses} right, then {late.right} of {late.responses}"
    return f"{shorten(clean(said, newlines=False), 100)} ({rights})"


@rule(
    "held-out accuracy on the problems that share a value of a column of the data (2 to 12 values) below the first "
    "evaluation's, by more than the interval of the difference, which allows for the number of values (a warning "
    f"from {100 * MOVED:g} points)",
    "The model gives up a kind of problem, which accuracy over all problems hides.",
    "Read its answers to these problems. Train on more of them (data.train.N.weight), lower learner.learning_rate, or "
    "take an earlier checkpoint.",
)
def part_fell(facts: Facts) -> Finding | None:
    """Compare the first and the last evaluation on the problems of each value of a column of the data."""
    found = facts.evaluations
    changes = changes_by_value(found)
    if not (said := fallen_said(changes, found)):
        return None
    much = any(one.fell and one.before - one.after >= MOVED for one in changes)
    keys = ["validation/accuracy", "train/entropy"]
    title = "Held-out accuracy falls on a part of the data"
    return Finding("warn" if much else "note", title, said, (found[0].step, found[-1].step), keys)


@rule(
    f"more than {MANY_PASSES} passes over the training problems",
    "The model learns problems by heart that it sees so often; training accuracy then says nothing of others.",
    "Add problems, or lower trainer.steps. Held-out accuracy tells what was learned.",
)
def passes(facts: Facts) -> Finding | None:
    """Doubt a run that has taken each training problem many times."""
    prompts, each = count_prompts(facts.run), facts.setting("rollout.prompts_per_step", 0)
    said = many_passes(facts.last_step, each, prompts) if prompts and not facts.run.supervised else None
    if said is None:
        return None
    keys = ["reward/accuracy", "validation/accuracy"]
    title = "Each training problem comes up many times"
    return Finding("note", title, f"So far {said}.", facts.whole, keys)


@rule(
    f"a held-out set of fewer than {FEW_HELD_OUT} problems",
    "An accuracy of 50% on 30 problems is uncertain by 18 points: it moves by chance alone.",
    "Hold out more problems (data.validation, validation.limit).",
)
def held_out_size(facts: Facts) -> Finding | None:
    """Doubt small held-out sets, by their problems at the last evaluation."""
    row = next((row for row in reversed(facts.run.rows) if row.get("validation/problems")), None)
    if row is None:
        return None
    begin, end = "validation/", "/problems"
    sets = {clean(key[len(begin) : -len(end)], newlines=False): key for key in row if _is_size_of_a_set(key)}
    sets = sets or {"the only one": "validation/problems"}
    said = few_held_out({shorten(name, 60): row[key] or 0 for name, key in sets.items()})
    if said is None:
        return None
    step = int(row["step"])
    return Finding("note", "A held-out set is small", sentence(said), (step, step), list(sets.values()))


def _is_size_of_a_set(key: str) -> bool:
    return key.startswith("validation/") and key.endswith("/problems") and key.count("/") > 1


def _around(facts: Facts, key: str, step: int) -> float | None:
    """Mean of the five steps nearest to ``step``."""
    near = sorted(zip(*facts.series(key), strict=True), key=lambda pair: abs(pair[0] - step))[:5]
    return sum(value for _, value in near) / len(near) if near else None


def _is_other(key: str) -> bool:
    """Whether it is the mean of a reward of the recipe's, other than accuracy."""
    line = lookup(key)
    return line is not None and line.key == "reward/<name>"


def _rise(facts: Facts, key: str) -> float:
    change = facts.change(key) or (0.0, 0.0)
    return change[1] - change[0]
