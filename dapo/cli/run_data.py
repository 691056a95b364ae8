"""Readers of a run folder for ``dapo data``. Nothing is written: the run may be going on."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import load_state
from dapo.config.schema import Recipe
from dapo.config.yaml_files import MOST_BYTES, parse_yaml
from dapo.errors import CheckpointError, DataError, RecipeError
from dapo.observe.metrics import Row, read_metrics
from dapo.observe.prompts import History, Standing, read_problems
from dapo.observe.rollouts import read_rollouts
from dapo.observe.run_files import open_regular, read_regular
from dapo.observe.run_folder import RunFolder, step_files
from dapo.observe.shares import settings_of, shares_of
from dapo.observe.status import read_filling, read_status
from dapo.types.enums import FinishReason, Verdict
from dapo.types.evidence import CollectProgress, Shares, hopeless_of

MOST_STATE = 2**32
"""Bytes of a checkpoint's state: 100,000 unfinished responses of 10,000 tokens."""
RECENT_STEPS = 10
"""The last steps that the answer to "why does my batch not fill" speaks of."""


@dataclass(slots=True)
class RunData:
    """Everything this command reads of a run. Missing parts are None or empty, and ``notes`` says why."""

    folder: RunFolder
    rows: list[Row]  # metrics, up to the chosen step
    recipe: Recipe | None = None
    history: History | None = None
    step: int | None = None  # of the checkpoint behind the history
    passes: int = 0  # over the data, completed at that checkpoint
    totals: dict[str, float] = field(default_factory=dict)  # counts up to that checkpoint, a step that stopped included
    problems: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # id -> problem, answer, source
    sources: Counter[str] = field(default_factory=Counter)  # prompts of each
    filling: CollectProgress | None = None  # of a step that is not done: the first one, or one that starves
    notes: list[str] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """Step of the last row; 0 if there is none."""
        return int(self.rows[-1]["step"]) if self.rows else 0


def load_run(folder: RunFolder, step: int | None = None) -> RunData:
    """Read the newest checkpoint's history (or that of ``step``), the prompts, the metrics and the recipe.

    Raises:
        DataError: the run is supervised, or its prompts cannot be read.
        CheckpointError: the checkpoint cannot be read.
    """
    rows = [row for row in read_metrics(folder.metrics) if step is None or int(row["step"]) <= step]
    data = RunData(folder, rows)
    try:
        text = read_regular(folder.resolved_recipe, MOST_BYTES).decode(errors="replace")
        given, _ = parse_yaml(text, str(folder.resolved_recipe))
        data.recipe = Recipe.model_validate(given)  # no look at its files: they need not be here any more
    except (ValidationError, RecipeError, OSError, RecursionError, ValueError, TypeError):
        data.notes.append(f"{folder.resolved_recipe.name} is of another version: its settings are not known here.")
    if data.recipe is not None and data.recipe.run.stage == "sft":
        raise DataError(f"{folder.path} is a supervised run, which judges no groups; `dapo report` shows its losses")
    _load_history(data, step)
    status = read_status(folder.status) if step is None else None
    filling = read_filling(status.filling) if status is not None else None
    if filling is not None and filling.step > data.last_step and (filling.starves or not data.last_step):
        data.filling = filling
    try:
        data.problems = read_problems(folder.prompts)
        data.sources = Counter(source for _, _, source in data.problems.values())
    except DataError as error:
        data.notes.append(f"{error} Until then prompts are shown by their ids.")
    return data


def _load_history(data: RunData, step: int | None) -> None:
    store = CheckpointStore(data.folder.checkpoints)
    for _ in range(3):  # a running process may remove the checkpoint while it is read
        steps = store.steps()
        if step is not None and step not in steps:
            raise CheckpointError(f"no checkpoint of step {step} in {store.folder}; there are: {steps}")
        if not steps:
            every = data.recipe.checkpoint.every if data.recipe else None
            when = f"every {every} steps and when the run ends" if every else "when the run ends"
            data.notes.append(f"No checkpoint yet, and the history of the prompts is saved there: {when}.")
            return
        data.step = steps[-1] if step is None else step
        try:
            collector = _read_collector(data.folder.checkpoint(data.step))
            break
        except FileNotFoundError:
            continue
    else:
        raise CheckpointError(f"the checkpoints in {store.folder} were removed while they were read; try again")
    data.totals = collector.get("account", {}).get("totals", {})
    if "history" not in collector:
        data.notes.append(
            f"The checkpoint of step {data.step} is of a version that kept no history of its prompts. "
            "Resume the run: its next checkpoint has one, from there on."
        )
        return
    data.history = History.from_state(collector["history"])
    data.passes = int(collector.get("stream", {}).get("epoch", 0))


def _read_collector(folder: Path) -> dict[str, Any]:
    try:
        _check_size(folder)
        collector: dict[str, Any] = dict(load_state(folder)["collector"])
        return collector
    except FileNotFoundError:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{error}. `--step` reads another one") from None
    except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: its state cannot be read ({error!r}). `--step` reads another one"
        ) from None


def _check_size(folder: Path) -> None:
    """Refuse what no run writes: pipes, gigabytes of state, arrays that are packed.

    Raises:
        OSError: no regular file, or none at all. ValueError: too large, or packed. BadZipFile: no archive.
    """
    for name in ("state.json", "state.npz"):
        path = folder / name
        if name == "state.npz" and not os.path.lexists(path):
            continue
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_STATE:
                raise ValueError(f"{name} has {size:,} bytes, expected at most {MOST_STATE:,}")
            if name == "state.npz":
                with zipfile.ZipFile(file) as archive:
                    if any(info.file_size > info.compress_size for info in archive.infolist()):
                        raise ValueError(f"{name} is packed, which no run does")


def recent_shares(data: RunData) -> tuple[Shares, str]:
    """Return the shares of recently judged groups, and when that was: a step that could not be filled, or one that is
    not done, else the last steps."""
    known = _known(data)
    stopped = _stopped_file(data)
    if stopped is not None:
        return _shares_of_file(data, stopped, known), "in the step that could not be filled"
    if data.filling is not None:
        return replace(data.filling.shares, **known), f"in step {data.filling.step}, which is not done"
    rows = [row for row in data.rows if row.get("groups/finished")][-RECENT_STEPS:]
    epochs = data.recipe.data.epochs if data.recipe else None
    ended = bool(epochs and rows and rows[-1].get("sampling/cap_reached") and data.passes >= epochs)
    shares = shares_of(rows, data.recipe, data_ended=ended, **known)
    return shares, f"in the last {len(rows)} steps" if len(rows) > 1 else "in the last step"


def _known(data: RunData) -> dict[str, Any]:
    """Return facts from recipe and history, whichever groups were judged."""
    known = settings_of(data.recipe)
    retire = data.recipe.algorithm.dynamic_sampling.selection.retire if data.recipe else None
    if (history := data.history) is not None:
        before = history.responses - history.last_responses
        chosen = history.standing(Standing.HOPELESS) & (before > 0)
        rates = (history.correct[chosen] / before[chosen]).tolist()
        known["hopeless"] = hopeless_of(rates, known.get("group_size", 0))
        known["all_retired"] = (
            retire is not None and not retire.review and int(history.retired(retire.at).sum()) == history.size
        )
    return known


def _stopped_file(data: RunData) -> Path | None:
    """Rollouts of the step that stopped the run, unless it went on since."""
    files = step_files(data.folder.stopped)
    return files[max(files)] if files and max(files) > data.last_step else None


def _shares_of_file(data: RunData, path: Path, known: dict[str, Any]) -> Shares:
    table = read_rollouts(path, ["group", "verdict", "finish", "unscored", "accuracy"])
    _, first = np.unique(table["group"].to_numpy(), return_index=True)
    verdicts = Counter(table["verdict"].take(first).to_pylist())
    reasons = Counter(reason.split(":")[0] for reason in table["unscored"].to_pylist() if reason)
    judged, ended = len(first), False
    if data.recipe is not None and data.recipe.data.epochs is not None:
        # Stopped below the cap on groups and without one on tokens: then it was the end of the data.
        cap = data.recipe.algorithm.dynamic_sampling.cap
        below = cap.groups is None or judged < cap.groups * data.recipe.rollout.prompts_per_step
        ended = below and cap.tokens is None and sum(reasons.values()) < len(table)
    by_verdict: dict[str, Any] = {v.value: verdicts[v] / max(1, judged) for v in Verdict}
    return Shares(
        **by_verdict,
        judged=judged,
        accuracy=float(table["accuracy"].combine_chunks().drop_null().to_numpy().sum())
        / max(1, len(table) - table["accuracy"].null_count),
        truncated=table["finish"].to_pylist().count(FinishReason.LENGTH) / max(1, len(table)),
        unscored=dict(reasons),
        data_ended=ended,
        **known,
    )
