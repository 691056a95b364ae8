"""``dapo.train``, ``dapo.resume`` and ``dapo.Trainer``: one loop, which the command line runs as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import finalize

from dapo.api.evaluation import Evaluation
from dapo.api.notebook import console_for
from dapo.api.recipe import Asked, RecipeLike, RewardLike, ask, hooks_of, overrides_of
from dapo.api.run import Run, open_run
from dapo.config.load import load_recipe
from dapo.config.resume import Change, load_for_resume
from dapo.config.schema import Recipe
from dapo.config.yaml_files import RESOLVED
from dapo.errors import DataError, RecipeError
from dapo.hooks import give_as, is_object
from dapo.loop.reinforcement import Reinforcement
from dapo.observe.callbacks import as_callback
from dapo.run.given import Given
from dapo.run.train import Opened, Steps, begin, go_on
from dapo.types.events import StepEvent, sealed

if TYPE_CHECKING:
    from dapo.api.sections import EnvironmentSettings, ResumeSettings, Settings

LIVE = {
    "learner.learning_rate",
    "learner.schedule",
    "learner.schedule_unit",
    "learner.warmup",
    "learner.final_ratio",
    "validation.every",
    "checkpoint.every",
}
"""Settings that a running trainer reads anew in each step; others take a checkpoint and a resume."""


def train(
    recipe: RecipeLike | None = None,
    *,
    rewards: Sequence[RewardLike] | RewardLike | None = None,
    train: Any = None,
    validation: Any = None,
    callbacks: Sequence[Any] = (),
    objective: Any = None,
    environment: EnvironmentSettings | str | Callable[..., Any] | None = None,
    tools: Sequence[Any] = (),
    tokenizer: Any = None,
    engine: Any = None,
    scorer: Any = None,
    stream: Any = None,
    **settings: Unpack[Settings],
) -> Run:
    """Train to the end, as ``dapo train`` does, and return the run.

    Args:
        recipe: a file, a short name (``"quickstart"``), a nested dict, or a loaded recipe; None: settings alone.
        rewards: in place of the recipe's: functions f(prompt, completion), kinds, or dicts.
        train: training data: a path, records, a ``datasets.Dataset``, a data frame.
        validation: held-out data, likewise, or a dict of them by name.
        callbacks: objects of classes derived from ``dapo.Callback``, or functions of one event.
        objective: a loss of yours.
        environment: who answers the model between its turns: a generator function f(prompt, rng), a class, or keys of
            the section ``environment``.
        tools: typed functions that the model may call.
        tokenizer: of a loaded model that is given as ``model=``, which is saved under the folder of the runs.
        engine: an engine of yours, or what makes one of a context (docs/extending.md).
        scorer: a scorer of yours, likewise.
        stream: a prompt stream of yours, likewise.
        settings: sections (``trainer={"steps": 20}``) and dotted keys (``**{"trainer.steps": 20}``).

    Raises:
        DapoError: what ``dapo train`` would have told.
    """
    asked = ask(
        recipe,
        rewards=rewards,
        train=train,
        validation=validation,
        objective=objective,
        environment=environment,
        tools=tools,
        tokenizer=tokenizer,
        settings=settings,
    )
    del settings  # a loaded model is saved by now, and only the caller may keep it
    with Trainer._of_asked(asked, Given(engine, scorer, stream, tuple(map(as_callback, callbacks)))) as trainer:
        for _ in trainer:
            pass
    return trainer.run


def resume(
    run: str | Path | Run,
    *,
    rewards: Sequence[Any] | Any = None,
    callbacks: Sequence[Any] = (),
    objective: Any = None,
    environment: Any = None,
    tools: Sequence[Any] = (),
    engine: Any = None,
    scorer: Any = None,
    stream: Any = None,
    **settings: Unpack[ResumeSettings],
) -> Run:
    """Go on with a run from its newest checkpoint, as ``dapo train --resume`` does.

    Args:
        run: the run or its folder.
        rewards: the functions that were given when it was started, in the same order.
        callbacks: as in ``train``.
        objective: the loss that was given.
        environment: the generator function or class that was given.
        tools: the functions that were given as tools, in the same order.
        engine: the engine that was given, or what makes one.
        scorer: the scorer that was given.
        stream: the prompt stream that was given.
        settings: what to change, where a resume may.

    Raises:
        DapoError: what ``dapo train --resume`` would have told; or an object of the run was not given again.
    """
    given = Given(engine, scorer, stream, tuple(map(as_callback, callbacks)))
    objects = _Objects(_functions(rewards), objective, environment, list(tools))
    with Trainer._of_a_run(open_run(run).path, objects, given, settings) as trainer:
        for _ in trainer:
            pass
    return trainer.run


class Trainer:
    """A run, one training step at a time, by the same loop that ``dapo train`` runs::

        with dapo.Trainer("quickstart") as trainer:
            for step in trainer:
                print(step.step, step.metrics["reward/accuracy"])
                if step.step == 20:
                    trainer.change({"learner.learning_rate": 1e-4})

    Each step is recorded when it is given out. Leaving the block in the middle saves: ``dapo.resume`` goes on. Ctrl-C
    ends the loop after its step.

    Attributes:
        run: the run, whose files can be read at any time.
    """

    run: Run

    def __init__(
        self,
        recipe: RecipeLike | None = None,
        *,
        rewards: Sequence[RewardLike] | RewardLike | None = None,
        train: Any = None,
        validation: Any = None,
        callbacks: Sequence[Any] = (),
        objective: Any = None,
        environment: EnvironmentSettings | str | Callable[..., Any] | None = None,
        tools: Sequence[Any] = (),
        tokenizer: Any = None,
        engine: Any = None,
        scorer: Any = None,
        stream: Any = None,
        **settings: Unpack[Settings],
    ) -> None:
        """As ``train``. The model is loaded here."""
        self._steps: Steps | None = None
        asked = ask(
            recipe,
            rewards=rewards,
            train=train,
            validation=validation,
            objective=objective,
            environment=environment,
            tools=tools,
            tokenizer=tokenizer,
            settings=settings,
        )
        self._begin(asked, Given(engine, scorer, stream, tuple(map(as_callback, callbacks))))

    @classmethod
    def _of_asked(cls, asked: Asked, given: Given) -> Self:
        trainer = cls.__new__(cls)
        trainer._steps = None
        trainer._begin(asked, given)
        return trainer

    def _begin(self, asked: Asked, given: Given) -> None:
        self._given = replace(given, objects=asked.objects, python=True)
        console, more = console_for(asked.loaded.recipe.logging.console)
        self._open(begin(asked.loaded, self._given.with_callbacks(more), console))

    @classmethod
    def _of_a_run(cls, folder: Path, objects: _Objects, given: Given, settings: Mapping[str, Any]) -> Self:
        trainer = cls.__new__(cls)
        trainer._steps = None
        recipe = load_recipe(folder / RESOLVED, of_a_run=True).recipe
        trainer._given = given.with_objects(_restored(recipe, objects))
        console, more = console_for(recipe.logging.console)
        trainer._open(go_on(folder, overrides_of(settings), trainer._given.with_callbacks(more), console))
        return trainer

    def __iter__(self) -> Iterator[StepEvent]:
        return self

    def __next__(self) -> StepEvent:
        """Do and record the next training step. When a learner was lost, steps after the last checkpoint come again.

        Raises:
            DapoError: what would have ended ``dapo train``, its state saved in the same way.
        """
        if self._steps is None:
            raise StopIteration
        try:
            while isinstance(done := next(self._steps), Opened):
                self._opened = done  # a learner that was lost was started again from the last checkpoint
        except StopIteration:
            self._steps = None
            raise StopIteration from None
        except BaseException:
            self._steps = None
            raise
        return StepEvent(done.step, sealed(done.metrics), sealed(done.finished))

    @property
    def recipe(self) -> Recipe:
        """As it is now."""
        return self._opened.trainer.recipe

    @property
    def step(self) -> int:
        """Training steps that are done."""
        return self._opened.trainer.counters.training_steps

    def stop(self, why: str = "Trainer.stop") -> None:
        """End the loop: the next turn of it is not made. The state is saved."""
        self._opened.trainer.stopping.stop(why)

    def evaluate(self) -> Evaluation:
        """Answer the held-out problems now. Training goes on as if that had not been asked.

        Raises:
            DataError: there are no held-out problems.
            RecipeError: the run has ended, or its first step is still to come.
        """
        trainer = self._running("evaluate").trainer
        if not isinstance(trainer.method, Reinforcement) or trainer.method.evaluator is None:
            raise DataError("there is nothing to evaluate on: give validation=...")
        return Evaluation.of(
            str(self.run.path), self.step, trainer.recipe.validation.samples, trainer.evaluate(self.step)
        )

    def save(self) -> Path:
        """Write a checkpoint of the last step now; returns its folder."""
        return self._running("save").trainer.save()

    def change(self, settings: Mapping[str, Any]) -> list[str]:
        """Go on with other settings, where a resume may change them; returns what changed, in words.

        The learning rate and its schedule, and the intervals of evaluations and checkpoints, take effect at once. For
        anything else the run is saved, closed and resumed.

        Args:
            settings: by their keys: ``{"learner.learning_rate": 1e-6}``, or by section.

        Raises:
            RecipeError: a setting is fixed, or not valid. Nothing has changed then.
        """
        overrides = overrides_of(settings)
        loaded, changes = load_for_resume(self.run.path, overrides)
        opened = self._opened
        live = isinstance(opened.trainer.method, Reinforcement) and self.step and _are_live(changes)
        if self._steps is not None and live:
            opened.adopt(loaded)
            for change in changes:
                opened.console.say(f"changed from step {self.step + 1} on: {change.sentence()}")
        elif changes:
            self.close()
            console, more = console_for(loaded.recipe.logging.console)
            self._open(go_on(self.run.path, overrides, self._given.with_callbacks(more), console))
        return [change.sentence() for change in changes]

    def close(self) -> None:
        """End the run where it is, saved. May be called twice."""
        if self._steps is not None:
            steps, self._steps = self._steps, None
            self._left_open.detach()
            steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open(self, steps: Steps) -> None:
        opened = next(steps)
        assert isinstance(opened, Opened)
        self._steps, self._opened, self.run = steps, opened, Run(opened.folder.shown())
        self._left_open = finalize(self, _close_left_open, steps, opened.folder.path)

    def _running(self, what: str) -> Opened:
        if self._steps is None:
            raise RecipeError(
                f"the run has ended: `{what}` has no place; dapo.resume goes on, and dapo.evaluate evaluates"
            )
        if not self.step:
            raise RecipeError(f"`{what}` comes after the first step: take one with next(trainer), or in the loop")
        return self._opened


def _close_left_open(steps: Steps, folder: Path) -> None:
    """End and save a run whose trainer was left open, as ``close`` does: when it is collected, or the program ends."""
    try:
        steps.close()
    except Exception as error:
        print(f"warning: the trainer of {folder} was left open, and its run ended with: {error}", file=sys.stderr)


def _are_live(changes: Sequence[Change]) -> bool:
    return all(change.path in LIVE for change in changes)


def _functions(rewards: Any) -> list[Any]:
    if rewards is None:
        return []
    items = [rewards] if callable(rewards) else list(rewards)
    for item in items:
        if not callable(item):
            raise RecipeError(
                "resume(rewards=...) takes the functions that the run was started with; other rewards are changed by "
                "their keys, such as **{'rewards.0.weight': 2.0}"
            )
    return items


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects of a program that a run is continued with."""

    rewards: Sequence[Any]
    objective: Any
    environment: Any
    tools: Sequence[Any]


def _restored(recipe: Recipe, objects: _Objects) -> dict[str, str]:
    """Give the objects of a run again, under the names that its recipe has for them.

    Raises:
        RecipeError: one of them was not given, or one too many.
    """
    wanted = {key: hook for key, hook in hooks_of(recipe).items() if is_object(hook)}
    rewards = [hook for key, hook in wanted.items() if key.startswith("rewards.")]
    tools = [hook for key, hook in wanted.items() if key.startswith("environment.tools.")]
    single = {"algorithm.loss.kind": "objective", "environment.kind": "environment"}
    asked = [f"{what}=[{', '.join(hook.partition(':')[2] for hook in hooks)}]"
             for what, hooks in (("rewards", rewards), ("tools", tools)) if hooks]  # fmt: skip
    asked += [f"{argument}=..." for key, argument in single.items() if key in wanted]
    fits = len(objects.rewards) == len(rewards) and len(objects.tools) == len(tools)
    fits = fits and all((getattr(objects, name) is not None) == (key in wanted) for key, name in single.items())
    if not fits:
        what = f"was started with objects of a program: give {' and '.join(asked)}" if asked else "names no such object"
        raise RecipeError(f"the run {what}, in dapo.resume")
    for hook, found in zip([*rewards, *tools], [*objects.rewards, *objects.tools], strict=True):
        give_as(hook, found)
    for key, name in single.items():
        if key in wanted:
            give_as(wanted[key], getattr(objects, name))
    return wanted
