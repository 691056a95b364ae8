"""``dapo.evaluate``: a model or a run on held-out problems, as ``dapo evaluate`` does it."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

from rich.console import Console as RichConsole

from dapo.api.data import sources
from dapo.api.notebook import console_for
from dapo.api.recipe import RewardLike, overrides_of, reward_sections
from dapo.api.run import Records, Run
from dapo.cli.evaluate_recipe import evaluation_recipe
from dapo.errors import AccuracyUnknown, RecipeError
from dapo.observe.answer_lines import answer_records
from dapo.observe.evaluation_table import Shown, table
from dapo.observe.log import warnings_to
from dapo.observe.sentences import silent_said
from dapo.run.evaluate import Subject, evaluated, shown_as
from dapo.types.evaluation import EvaluationResult
from dapo.types.events import Numbers, sealed
from dapo.types.evidence import silent_of


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation. Printed, it is the table of ``dapo evaluate``.

    Attributes:
        model: name of the model, or the run's folder.
        step: of the run's checkpoint; None: a model that is no run.
        metrics: keys without ``validation/``: ``accuracy``, ``accuracy_low``, ``pass@4``, and ``SET/accuracy`` by set.
        answers: a record for each response, with the keys of the lines that ``dapo evaluate --out`` writes.
    """

    model: str
    step: int | None
    metrics: Numbers
    answers: Records
    _shown: Shown

    @classmethod
    def of(cls, model: str, step: int | None, samples: int, result: EvaluationResult) -> Self:
        """From the result of an evaluation, ``samples`` responses a problem."""
        metrics = {key.removeprefix("validation/"): value for key, value in result.metrics.items()}
        answers = Records(answer_records(result.sets))
        return cls(model, step, sealed(metrics), answers, shown_as(model, step, samples, result))

    @property
    def accuracy(self) -> float:
        """avg@k over the sets; nan where it is unknown."""
        return self.metrics["accuracy"]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy, over problems."""
        return self.metrics["accuracy_low"], self.metrics["accuracy_high"]

    def __str__(self) -> str:
        paper = io.StringIO()
        RichConsole(width=100, file=paper, color_system=None, force_jupyter=False).print(table(self._shown))
        return "\n".join(line.rstrip() for line in paper.getvalue().splitlines())

    def __repr__(self) -> str:
        low, high = self.interval
        return f"Evaluation({self._shown.name!r}, accuracy {self.accuracy:.1%} ({low:.1%} to {high:.1%}))"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def evaluate(
    model: str | Path | Run,
    data: Any = None,
    *,
    samples: int | None = None,
    greedy: bool | None = None,
    rewards: Sequence[RewardLike] | RewardLike | None = None,
    step: int | None = None,
    **settings: Any,
) -> Evaluation:
    """Answer held-out problems and judge the answers.

    Args:
        model: a run or its folder, a model's folder or hub name.
        data: a path, records, a data set, or a dict of them by name; None: those of the run.
        samples: sampled responses a problem (k); None: the recipe's, 4 unless it says otherwise.
        greedy: also one greedy response each.
        rewards: how answers are judged; None: the run's rewards, or ``math`` for a bare model.
        step: checkpoint of a run; None: the newest.
        settings: by section or key, as in ``train``: ``**{"validation.temperature": 0.6}``.

    Raises:
        DapoError: what ``dapo evaluate`` would have told.
    """
    if not isinstance(model, str | Path | Run):
        raise RecipeError(f"expected a run, its folder, or a model's folder or hub name; found {type(model).__name__}")
    options = {"validation.samples": samples, "validation.greedy": greedy}
    overrides = overrides_of(settings)
    if rewards is not None:
        overrides.append(f"rewards={json.dumps(reward_sections(rewards))}")
    name = str(model.path) if isinstance(model, Run) else str(model)
    with tempfile.TemporaryDirectory(prefix="dapo-data-") as folder:
        given: Sequence[str | Mapping[str, Any]] = [] if data is None else sources(data, "held_out", Path(folder))
        loaded, run = evaluation_recipe(name, given, options, overrides)
        console, _ = console_for(loaded.recipe.logging.console)
        with console, warnings_to(console.show_warning):
            shown, result = evaluated(Subject(loaded, run, step), console)
    if result.silent:
        evidence = silent_of({name: result.reasons[name] for name in result.silent})
        raise AccuracyUnknown(evidence, silent_said(evidence))
    return Evaluation.of(shown.model, shown.step, loaded.recipe.validation.samples, result)
