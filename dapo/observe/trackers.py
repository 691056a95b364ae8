"""TensorBoard, Weights & Biases, MLflow, trackio and one's own by name, through their own clients.

Each is a callback. Off by default; one that fails never stops training: it is named once on the console and left out
from then on.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from dapo.config.schema import TrackerSettings
from dapo.errors import RecipeError, first_line
from dapo.hooks import load
from dapo.links import install as install_command
from dapo.observe.answer_lines import answer_records
from dapo.types.events import Callback, EndEvent, EvaluationEvent, Numbers, StartEvent, StepEvent

PROJECT = "dapo"
ANSWERS = 32
"""Held-out answers in the table of an evaluation."""
_COLUMNS = ("step", "set", "problem", "gold answer", "response", "accuracy", "tokens", "truncated", "greedy")
_LONGEST = 2000  # characters of a text in the table
More = Callable[[Numbers], Mapping[str, float]]
"""Numbers by further names, made of those of a step."""


class Tracker(Callback):
    """Takes a run's numbers elsewhere."""

    needs_texts = False
    modules: tuple[str, ...] = ()  # that it imports
    install = f"Install it with `{install_command('track')}`."

    def __init__(self, project: str = PROJECT, more: More = lambda numbers: {}) -> None:
        """``project``: for a service that has projects."""
        self._project, self._more = project, more

    def numbers(self, event: StepEvent) -> dict[str, float]:
        """Return the finite numbers of a step, with those by further names."""
        return _finite(event.metrics) | dict(self._more(event.metrics))


class TensorBoardTracker(Tracker):
    """Scalars as event files in RUN/tensorboard, written by the ``tensorboard`` package itself (no torch)."""

    name = "tensorboard"
    modules = ("tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.event_file_writer")

    def start(self, event: StartEvent) -> None:
        """After a resume TensorBoard hides what the earlier process wrote of later steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = event.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))
        if event.first_step:
            self._writer.add_event(
                Event(step=event.first_step + 1, session_log=SessionLog(status=SessionLog.SessionStatus.Value("START")))
            )

    def step(self, event: StepEvent) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=value) for key, value in self.numbers(event).items()]
        self._writer.add_event(Event(wall_time=time.time(), step=event.step, summary=Summary(value=values)))

    def end(self, event: EndEvent) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """One Weights & Biases run with a table of answers; its id is saved, so a resumed run goes on in the same place."""

    name = "wandb"
    modules = ("wandb",)
    needs_texts = True

    def start(self, event: StartEvent) -> None:
        import wandb

        self._wandb = wandb
        saved = event.state.get("id")
        self._run = wandb.init(
            project=self._project,
            name=event.name,
            config=dict(event.config),
            dir=str(event.folder),
            id=saved,
            resume="allow" if saved else None,
            settings=wandb.Settings(console="off"),  # it must not take the terminal from the live view
        )
        # Steps as a metric: wandb's own step only grows, and a resumed run repeats some.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def step(self, event: StepEvent) -> None:
        self._run.log({"step": event.step, **self.numbers(event)})

    def evaluation(self, event: EvaluationEvent) -> None:
        if rows := _rows(event):
            table = self._wandb.Table(columns=list(_COLUMNS), data=rows)
            self._run.log({"step": event.step, "answers": table})

    def state(self) -> dict[str, Any]:
        return {"id": self._run.id}

    def end(self, event: EndEvent) -> None:
        self._run.finish(exit_code=0 if event.finished else 1)


class MlflowTracker(Tracker):
    """One MLflow run, at the server that MLFLOW_TRACKING_URI names; its id is saved, so a resumed run goes on in it."""

    name = "mlflow"
    modules = ("mlflow",)
    needs_texts = True
    install = "Install it with `pip install mlflow`."

    def start(self, event: StartEvent) -> None:
        import mlflow

        self._mlflow, self._id = mlflow, event.state.get("id")
        mlflow.set_experiment(self._project)
        run = mlflow.start_run(run_id=self._id, run_name=None if self._id else event.name)
        again, self._id = self._id is not None, run.info.run_id
        if not again:  # a parameter is written once
            mlflow.log_params({key: str(value)[:500] for key, value in _flat(event.config)})

    def step(self, event: StepEvent) -> None:
        # MLflow takes no colons, brackets and the like in names: letters, digits, and / _ - . and blanks.
        named = {_mlflow_name(key): value for key, value in self.numbers(event).items()}
        self._mlflow.log_metrics(named, step=event.step)

    def evaluation(self, event: EvaluationEvent) -> None:
        if rows := _rows(event):
            columns = {name: [row[n] for row in rows] for n, name in enumerate(_COLUMNS)}
            self._mlflow.log_table(columns, artifact_file=f"answers/step_{event.step:06d}.json")

    def state(self) -> dict[str, Any]:
        return {"id": self._id}

    def end(self, event: EndEvent) -> None:
        self._mlflow.end_run("FINISHED" if event.finished else "FAILED" if event.why else "KILLED")


class TrackioTracker(Tracker):
    """One trackio run, kept on this machine; a resumed run goes on under its name."""

    name = "trackio"
    modules = ("trackio",)
    install = "Install it with `pip install trackio`."

    def start(self, event: StartEvent) -> None:
        import trackio

        self._trackio = trackio
        resume = "allow" if event.first_step else "never"
        trackio.init(project=self._project, name=event.name, config=dict(event.config), resume=resume)

    def step(self, event: StepEvent) -> None:
        self._trackio.log(self.numbers(event), step=event.step)

    def end(self, event: EndEvent) -> None:
        self._trackio.finish()


KNOWN = {one.name: one for one in (TensorBoardTracker, WandbTracker, MlflowTracker, TrackioTracker)}
"""Trackers by the name that ``logging.trackers`` takes."""


def make_trackers(settings: Sequence[TrackerSettings], more: More = lambda numbers: {}) -> list[Callback]:
    """Make the trackers that ``logging.trackers`` names; named ones get ``more`` numbers, too.

    Raises:
        RecipeError: A class of the user is missing, or is no callback.
    """
    return [KNOWN[one.kind](one.project or PROJECT, more) if one.kind in KNOWN else _own(one.kind) for one in settings]


def missing_tracker(trackers: Sequence[Callback]) -> str | None:
    """Return why a tracker cannot be used on this machine, and the next move; None if all of them can.

    Its modules are imported, since a package may be there and lack one of its own dependencies.
    """
    for tracker in (tracker for tracker in trackers if isinstance(tracker, Tracker)):
        for module in tracker.modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # whatever its modules raise
                said = f"{type(error).__name__}: {first_line(error)}"
                return (
                    f"the tracker {tracker.name} cannot be imported here ({said}). {tracker.install.rstrip('.')}, or "
                    "leave it out of logging.trackers"
                )
    return None


def _own(name: str) -> Callback:
    """Make the tracker that ``package.module:Class`` names.

    Raises:
        RecipeError: it is not there, is no ``dapo.Callback``, or cannot be made without arguments.
    """
    expected = (
        f"Expected one of {', '.join(KNOWN)}, or package.module:Class, a class derived from dapo.Callback that is made "
        "without arguments"
    )
    try:
        found = load(name)
        if isinstance(found, type) and issubclass(found, Callback):
            found = found()
    except Exception as error:  # whatever the user's module or class raises
        raise RecipeError(
            f"logging.trackers: cannot make {name!r} ({type(error).__name__}: {error}). {expected}"
        ) from None
    if not isinstance(found, Callback):
        raise RecipeError(f"logging.trackers: {name!r} is no dapo.Callback. {expected}")
    return found


def _finite(metrics: Numbers) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items() if value is not None and math.isfinite(value)}


def _rows(event: EvaluationEvent) -> list[list[Any]]:
    """Return the first answers of an evaluation, the cells of ``_COLUMNS`` of each."""
    texts, others = ("set", "question", "answer", "response"), ("accuracy", "length", "truncated", "greedy")
    return [
        [event.step, *(record[key][:_LONGEST] for key in texts), *(record[key] for key in others)]
        for record in islice(answer_records(event.sets), ANSWERS)
    ]


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found


def _mlflow_name(key: str) -> str:
    return "".join(c if c.isalnum() or c in "/_-. " else "_" for c in key)
