"""A run folder from Python: what it recorded, and the model that it made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Literal

from dapo.errors import RecipeError
from dapo.observe.evaluations import read_evaluation
from dapo.observe.metrics import Row, read_metrics, series
from dapo.observe.rollouts import read_rollouts
from dapo.observe.run_folder import RunFolder, step_files
from dapo.observe.samples import read_samples
from dapo.observe.status import RunStatus, read_status
from dapo.observe.tokens import read_tokens


class Records(list[dict[str, Any]]):
    """A list of records that are dicts."""

    def column(self, key: str) -> list[Any]:
        """Return the value of ``key`` in every record that has it."""
        return [record[key] for record in self if key in record]

    def to_pandas(self) -> Any:
        """Return a data frame, a row for each record.

        Raises:
            RecipeError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise RecipeError("to_pandas needs pandas, not installed here: pip install pandas") from None
        return pandas.DataFrame.from_records(list(self))


class Run:
    """A run by its folder. It may be going on: everything is read anew when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        """Open the folder of a run.

        Raises:
            RecipeError: it holds none.
        """
        if not isinstance(path, str | Path):
            raise RecipeError(f"a run is opened by its folder, such as 'runs/quickstart'; found {type(path).__name__}")
        self._folder = RunFolder.open(path)
        self._folder.anchor()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def status(self) -> RunStatus | None:
        """How it stands, or how it ended: ``state``, ``said``, ``step``."""
        return read_status(self._folder.status)

    @property
    def finished(self) -> bool:
        """True if the run got to its end."""
        status = self.status
        return status is not None and status.state == "finished"

    @property
    def metrics(self) -> Records:
        """A record for each step, as in metrics.jsonl (docs/metrics.md); step 0 is the evaluation before training."""
        return Records(read_metrics(self._folder.metrics))

    @property
    def samples(self) -> Records:
        """Answers to the same held-out problems at every evaluation."""
        return Records(asdict(sample) for sample in read_samples(self._folder.samples))

    def rollouts(self, step: int | None = None) -> Records:
        """Every recorded response of a step, a record each, with prompt's id, text, rewards, advantage and verdict.

        Args:
            step: of training; None: the last one recorded.

        Raises:
            RecipeError: nothing was recorded of that step.
        """
        return Records(read_rollouts(self._folder.rollout_file(self._step_of("rollouts", step))).to_pylist())

    def tokens(self, step: int | None = None) -> Records:
        """Return the responses of a step that were recorded token by token (``logging.tokens``). A record holds texts
        of the tokens, log-probabilities of sampler and learner, entropies, and what was clipped.

        Args:
            step: as for ``rollouts``.

        Raises:
            RecipeError: nothing was recorded of that step.
        """
        return Records(read_tokens(self._folder.tokens_file(self._step_of("tokens", step))).to_pylist())

    def evaluation(self, step: int | None = None) -> Records:
        """Every held-out response of an evaluation, a record each: problem, accuracy, rewards and length, without text.

        Args:
            step: after which it was made; None: the last one recorded.

        Raises:
            RecipeError: there was none at that step.
        """
        return Records(read_evaluation(self._folder.evaluation_file(self._step_of("evaluations", step))).to_pylist())

    def _step_of(self, kind: Literal["rollouts", "tokens", "evaluations"], step: int | None) -> int:
        """``step``, or the last one recorded."""
        folder: Path = getattr(self._folder, kind)
        there = list(step_files(folder))
        if not there or (step is not None and step not in there):
            setting = "validation.every" if kind == "evaluations" else f"logging.{kind}"
            what = f"of step {step}; there are {there[0]} to {there[-1]}" if there else f"({setting})"
            raise RecipeError(f"{self.path} holds no {kind} {what}")
        return there[-1] if step is None else step

    @property
    def best(self) -> dict[str, Any] | None:
        """The record with the highest held-out accuracy, the earliest of equal ones; None without an evaluation."""
        known = [row for row in self.metrics if _number(row.get("validation/accuracy"))]
        return max(known, key=lambda row: float(row["validation/accuracy"]), default=None)

    @property
    def checkpoints(self) -> list[int]:
        """Steps whose checkpoint is there."""
        from dapo.checkpoint.store import CheckpointStore

        return CheckpointStore(self._folder.checkpoints).steps()

    @property
    def best_checkpoint(self) -> int:
        """Step of the checkpoint that is best by ``checkpoint.best``: ``run.export(out, run.best_checkpoint)``.

        Raises:
            CheckpointError: the recipe names no metric, or no step had it.
        """
        from dapo.checkpoint.store import CheckpointStore

        return CheckpointStore(self._folder.checkpoints).best_step()

    def model(self, step: int | None = None) -> Any:
        """Return the trained model in transformers' form; its tokenizer is ``run.tokenizer()``.

        Args:
            step: of a checkpoint; None: the newest.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        from dapo.run.export import load_trained

        return load_trained(self.path, step).model

    def tokenizer(self) -> Any:
        """Return the tokenizer that training used."""
        from dapo.config.load import load_recipe
        from dapo.run.model import make_tokenizer, with_folder

        recipe = with_folder(load_recipe(self._folder.resolved_recipe, of_a_run=True).recipe, lambda note: None)
        return make_tokenizer(recipe.model, recipe.data.chat_template)

    def export(self, out: str | Path, step: int | None = None) -> Path:
        """Write a folder that ``from_pretrained`` loads, with a model card; returns it."""
        from dapo.run.export import export

        export(self.path, Path(out), step)
        return Path(out)

    def __repr__(self) -> str:
        status = self.status
        said = "" if status is None else f", {status.state} at step {status.step} of {status.steps}"
        return f"Run({str(self._folder.shown())!r}{said})"

    def _repr_html_(self) -> str:
        """In a notebook: how it stands, and its curve."""
        return f"<code>{escape(repr(self))}</code>{curve_svg(self.metrics)}"


def curve_svg(rows: Iterable[Row], width: int = 520, height: int = 170) -> str:
    """Accuracy over steps as a picture for a notebook: sampled in training (grey), held out (blue). "" without any."""
    rows = list(rows)
    lines = [(series(rows, key), colour) for key, colour in _LINES]
    last = max((x for (xs, _), _ in lines for x in xs), default=0)
    if last == 0:
        return ""

    def at(x: float, y: float) -> str:
        return f"{40 + (width - 60) * x / last:.1f},{10 + (height - 40) * (1 - y):.1f}"

    parts = [f'<svg width="{width}" height="{height}" role="img" aria-label="accuracy over training steps">']
    for share in (0.0, 0.5, 1.0):
        (x, y), end = at(0, share).split(","), at(last, share).split(",")[0]
        parts.append(f'<line x1="{x}" x2="{end}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="4" y="{float(y) + 4}" font-size="11" fill="#666">{share:.0%}</text>')
    for (xs, ys), colour in lines:
        points = " ".join(at(x, y) for x, y in zip(xs, ys, strict=True) if _number(y))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<text x="40" y="{height - 8}" font-size="11" fill="#666">step 0</text>')
    parts.append(
        f'<text x="{width - 20}" y="{height - 8}" font-size="11" fill="#666" text-anchor="end">step {last} '
        "(grey: training prompts, blue: held out)</text></svg>"
    )
    return "".join(parts)


_LINES = (("reward/accuracy", "#9CA3AF"), ("validation/accuracy", "#0072B2"))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def open_run(run: str | Path | Run) -> Run:
    """Return the run that the argument names.

    Raises:
        RecipeError: it is none.
    """
    return run if isinstance(run, Run) else Run(run)
