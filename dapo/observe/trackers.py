"""TensorBoard and Weights & Biases, through their own clients. Off by default; a tracker that fails never stops
training: it is named once on the console and left out from then on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

State = dict[str, Any]
_INSTALL = "Install it with `pip install 'dapo-rl[track]'`."


class Tracker(Protocol):
    """Something that takes a step's metrics elsewhere."""

    name: str

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def state(self) -> State:
        """What a resumed run needs to go on in the same place; JSON-able."""

    def close(self) -> None: ...


class TensorBoardTracker:
    """Scalars as event files in ``folder``, written by the ``tensorboard`` package itself (no torch)."""

    name = "tensorboard"

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        """``first_step``: steps done before; TensorBoard then hides what an earlier process wrote of later steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))
        if first_step:
            self._writer.add_event(
                Event(step=first_step + 1, session_log=SessionLog(status=SessionLog.SessionStatus.Value("START")))
            )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=float(value)) for key, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def state(self) -> State:
        return {}

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """One Weights & Biases run; its id is saved, so a resumed run goes on in the same place."""

    name = "wandb"

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any], folder: Path, state: State) -> None:
        import wandb

        self._run = wandb.init(
            project=project,
            name=run_name,
            config=dict(config),
            dir=str(folder),
            id=state.get("id"),
            resume="allow" if state.get("id") else None,
            settings=wandb.Settings(console="off"),  # it must not take the terminal from the live view
        )
        # Steps as a metric: wandb's own step only grows, and a resumed run repeats some.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def state(self) -> State:
        return {"id": self._run.id}

    def close(self) -> None:
        self._run.finish()


class Trackers:
    """All trackers of a run as one that cannot fail."""

    def __init__(self, makers: Sequence[tuple[str, Callable[[], Tracker]]], warn: Callable[[str], None]) -> None:
        """``makers``: name and constructor of each; one that raises is named and left out."""
        self._warn = warn
        self._trackers: list[Tracker] = []
        for name, make in makers:
            try:
                self._trackers.append(make())
            except ImportError as error:
                warn(f"{name} is not installed ({error}); training goes on without it. {_INSTALL}")
            except Exception as error:
                warn(f"{name} could not start ({_told(error)}); training goes on without it.")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of a step."""
        finite = {key: float(value) for key, value in metrics.items() if value is not None and math.isfinite(value)}
        for tracker in list(self._trackers):
            self._guard(tracker, lambda t=tracker: t.log(step, finite))  # type: ignore[misc]

    def state(self) -> State:
        """State of each tracker by name, for the checkpoint."""
        states: State = {}
        for tracker in list(self._trackers):
            self._guard(tracker, lambda t=tracker: states.update({t.name: t.state()}))  # type: ignore[misc]
        return states

    def close(self) -> None:
        for tracker in list(self._trackers):
            self._guard(tracker, tracker.close)
        self._trackers = []

    def _guard(self, tracker: Tracker, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # a tracker is a convenience: whatever it raises, training goes on
            self._trackers.remove(tracker)
            self._warn(f"{tracker.name} failed ({_told(error)}) and is left out from now on; training goes on.")


def open_trackers(
    *,
    tensorboard: Path | None,
    wandb_project: str | None,
    run_name: str,
    config: Mapping[str, Any],
    folder: Path,
    warn: Callable[[str], None],
    first_step: int = 0,
    state: State | None = None,
) -> Trackers:
    """The trackers that the recipe asks for.

    ``tensorboard``: folder for its events, None for off. ``state``: what ``Trackers.state`` returned before a resume.
    """
    makers: list[tuple[str, Callable[[], Tracker]]] = []
    if tensorboard is not None:
        makers.append(("tensorboard", lambda: TensorBoardTracker(tensorboard, first_step)))
    if wandb_project is not None:
        saved = (state or {}).get("wandb", {})
        makers.append(("wandb", lambda: WandbTracker(wandb_project, run_name, config, folder, saved)))
    return Trackers(makers, warn)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
