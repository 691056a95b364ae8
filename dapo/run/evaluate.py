"""``dapo evaluate``: the validation sets of a recipe on a model or on a run's checkpoint, alone or against another."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console as RichConsole

from dapo.algorithms.statistics import mean_of_estimates
from dapo.checkpoint.store import CheckpointStore, reading
from dapo.config.load import LoadedRecipe
from dapo.errors import AccuracyUnknown, DataError
from dapo.loop.evaluation_metrics import UNKNOWN, result_of
from dapo.observe.answer_lines import read_answers, write_answers
from dapo.observe.columns import accuracy_by_value
from dapo.observe.console import Console
from dapo.observe.evaluation_table import BY_VALUE, AccuracyDifference, Shown, as_object, comparison, table
from dapo.observe.evaluations import held_out_of
from dapo.observe.held_out import differences
from dapo.observe.log import warnings_to
from dapo.observe.run_folder import RunFolder
from dapo.observe.sentences import silent_said
from dapo.run.learners import in_one_process
from dapo.run.reinforcement import reward_session
from dapo.types.evaluation import GREEDY, EvaluationResult
from dapo.types.evidence import silent_of


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of an evaluation: a recipe, and the run and the step of the checkpoint whose weights it takes."""

    loaded: LoadedRecipe
    run: Path | None = None  # None: the recipe's model itself
    step: int | None = None  # None: the newest checkpoint


def evaluate(
    loaded: LoadedRecipe,
    run: Path | None = None,
    step: int | None = None,
    *,
    against: Subject | Path | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> int:
    """Evaluate and print. Returns the exit code.

    Args:
        loaded: The recipe; its ``data.validation`` and ``validation`` say on what and how.
        run: The run whose weights are taken; None: the recipe's model.
        step: Of which checkpoint; default: the newest.
        against: A second model, or a file that ``out`` wrote, to be compared problem by problem.
        out: Write every answer there, a line of JSON each.
        as_json: Print one JSON object on stdout, and everything else on stderr.

    Raises:
        DataError: there is no validation data; ``out`` exists; ``against`` is a file that holds no answers.
        AccuracyUnknown: of a whole set no response could be scored; what there is was printed first.
    """
    if out is not None and out.exists():
        raise DataError(f"{out} exists already; give another name to --out")
    earlier = _read(against) if isinstance(against, Path) else None
    rich = RichConsole(stderr=True, highlight=False) if as_json else None
    with Console(loaded.recipe.logging.console, rich) as console, warnings_to(console.show_warning):
        found, result = evaluated(Subject(loaded, run, step), console)
        if out is not None:
            write_answers(out, result.sets, found.model, found.step)
            console.say(f"{result.metrics['validation/responses']:,} answers in {out}")
        if isinstance(against, Subject):
            earlier = evaluated(against, console)
    _print(found, result, earlier, as_json)
    if result.silent:
        evidence = silent_of({name: result.reasons[name] for name in result.silent})
        raise AccuracyUnknown(evidence, silent_said(evidence))
    return 0


def evaluated(subject: Subject, console: Console) -> tuple[Shown, EvaluationResult]:
    """Evaluate it: as it is shown, and every response.

    Raises:
        DataError: there is no validation data.
    """
    recipe, run = in_one_process(subject.loaded.recipe), subject.run
    saved = CheckpointStore(RunFolder.open(run).checkpoints).path(subject.step) if run is not None else None
    session = reward_session(recipe, console, training=False)
    try:
        learner = session.learner(training=False)
        if saved is not None:
            with reading(saved):
                learner.load(saved / "learner")
            console.say(f"weights of {saved}")
        session.parts.engine.load(learner.publish(0))
        session.parts.sync_check(learner)(0)
        evaluator = session.parts.evaluator(console.evaluating)
        if evaluator is None:
            raise DataError("there is nothing to evaluate on: give --data FILE")
        result = evaluator.evaluate()
    finally:
        session.close()
    name, step = (recipe.model.path, None) if saved is None else (str(run), int(saved.name.rpartition("_")[2]))
    return shown_as(name, step, recipe.validation.samples, result), result


def _read(path: Path) -> tuple[Shown, EvaluationResult]:
    """Return the evaluation that a file of answers holds."""
    name, step, sets = read_answers(path)
    samples = {response.key.sample for groups in sets.values() for group in groups for response in group.completions_G}
    result = result_of(sets, len(samples - {GREEDY}), GREEDY in samples)
    return shown_as(name, step, len(samples - {GREEDY}), result), result


def shown_as(model: str, step: int | None, samples: int, result: EvaluationResult) -> Shown:
    """Return an evaluation of ``samples`` responses a problem in its shown form; ``step`` is None for a model without a
    run."""
    sets = {
        name: {
            key.removeprefix(f"validation/{name}/"): value
            for key, value in result.metrics.items()
            if key.startswith(f"validation/{name}/")
        }
        for name in result.sets
    }
    keys = dict.fromkeys(key for metrics in sets.values() for key in metrics)
    mean = {key: result.metrics[f"validation/{key}"] for key in keys if f"validation/{key}" in result.metrics}
    for value, accuracy in accuracy_by_value(held_out_of(result.sets)).items():
        sets[value.set][f"{BY_VALUE}{value.column} = {value.value}"] = accuracy  # whole: shortened ones may be equal
    return Shown(model, step, samples, sets, mean, result.reasons)


def _print(found: Shown, result: EvaluationResult, other: tuple[Shown, EvaluationResult] | None, as_json: bool) -> None:
    changes: dict[str, AccuracyDifference] = {}
    if other is not None:
        ours, theirs = result.sets, other[1].sets
        both = [name for name in ours if name in theirs]
        if not both:
            raise DataError(
                f"there is nothing to compare: one has the sets {', '.join(ours)}, the other {', '.join(theirs)}"
            )
        found_by_set = differences(held_out_of(theirs), held_out_of(ours))
        changes = {name: AccuracyDifference(*found_by_set.get(name, (UNKNOWN, 0))) for name in both}
    mean = mean_of_estimates([d.estimate for d in changes.values()]) if changes else None
    shown = [found] if other is None else [found, other[0]]
    if as_json:
        print(json.dumps(as_object(shown, changes, mean), indent=1))
        return
    paper = RichConsole(file=sys.stdout, highlight=False)
    for each in shown:
        paper.print()
        paper.print(table(each))
    if mean is not None:
        paper.print()
        paper.print(comparison(shown[0].name, shown[1].name, changes, mean))
