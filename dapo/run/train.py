"""``dapo train``: from a loaded recipe to a finished run folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dapo.checkpoint.store import CheckpointStore
from dapo.config.load import LoadedRecipe
from dapo.config.resume import changed_since, load_for_resume
from dapo.config.schema import Recipe
from dapo.config.secrets import redact
from dapo.config.yaml_files import RESOLVED
from dapo.errors import (
    ClusterEnded,
    ClusterError,
    DapoError,
    DiskError,
    EngineError,
    LearnerError,
    LearnerLost,
    RecipeError,
    WithEvidence,
    of_the_machine,
)
from dapo.loop.interrupt import outside_of_steps
from dapo.loop.method import StepDone
from dapo.loop.stopping import Deadline
from dapo.loop.trainer import Trainer
from dapo.metrics.glossary import START
from dapo.observe.callbacks import Callbacks
from dapo.observe.console import Console
from dapo.observe.jsonl import read_steps
from dapo.observe.log import logging_to
from dapo.observe.metrics import read_metrics
from dapo.observe.prompts import write_prompts
from dapo.observe.recorder import RunRecorder
from dapo.observe.run_folder import RunFolder
from dapo.observe.run_name import called, is_numbered
from dapo.observe.sentences import early_said, left_said, nothing_learned, stop_said
from dapo.observe.status import StatusWriter, ending, read_status
from dapo.observe.tokens import Pieces
from dapo.run.algorithm import make_algorithm, make_objective, make_schedule
from dapo.run.given import NOTHING_GIVEN, Given
from dapo.run.here import check_trackers, trackers_of
from dapo.run.reinforcement import reward_session
from dapo.run.session import Session, processes_of, record_machine
from dapo.run.supervised import supervised_session
from dapo.run.telling import (
    difference_lines,
    lost_with,
    resume_command,
    say_changes,
    say_end,
    say_recipe,
)
from dapo.types.events import StartEvent
from dapo.types.protocols import Span

log = logging.getLogger(__name__)

FINISHED, REFUSED, NOT_INSTALLED, INTERRUPTED = 0, 2, 3, 130
FOR_NOW = 75
"""``trainer.max_hours`` or the loss of its cluster ended it, saved: sysexits.h calls that number a failure for now, to
be tried again."""


@dataclass(slots=True)
class Going:
    """The recipe that a run goes on with. It outlives a learner: what was changed meanwhile stays changed."""

    loaded: LoadedRecipe
    restarts: int = 0  # of the learner, since this command began


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that is about to train: keep these while you take its steps one at a time."""

    trainer: Trainer
    folder: RunFolder
    console: Console
    going: Going

    def adopt(self, loaded: LoadedRecipe) -> None:
        """Go on with settings that are read anew in each step, in this process, and after any resume or restart."""
        self.trainer.adopt(loaded.recipe, make_schedule(loaded.recipe))
        self.trainer.facts["recipe"] = redact(loaded.recipe.model_dump(mode="json"))  # of the checkpoints to come
        self.folder.write(self.folder.resolved_recipe, loaded.resolved)
        self.going.loaded = loaded


Steps = Generator[Opened | StepDone, None, int]
"""A run as it goes: first what it is made of, then each step when it is done. Its value: the exit code of its end."""


def train(loaded: LoadedRecipe) -> int:
    """Start a new run. Returns the exit code: 0, or where it was stopped early, its step finished and saved: 130 after
    Ctrl-C, 75 at ``trainer.max_hours`` and where its cluster was lost."""
    return _to_the_end(begin(loaded))


def resume(run_folder: Path, overrides: list[str]) -> int:
    """Continue a run from its newest checkpoint; what was recorded after it is cut off and done again."""
    return _to_the_end(go_on(run_folder, overrides))


def _to_the_end(steps: Steps) -> int:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return int(end.value)


def begin(loaded: LoadedRecipe, given: Given = NOTHING_GIVEN, console: Console | None = None) -> Steps:
    """Begin a new run, to be taken a step at a time; closing it saves.

    Args:
        loaded: its recipe.
        given: parts and callbacks of the caller's.
        console: where it is reported; None: as the recipe says.
    """
    recipe = loaded.recipe
    make_algorithm(recipe)  # functions of the user's that are not there are refused first
    make_objective(recipe)
    check_trackers(recipe)
    deadline = Deadline(recipe.trainer.max_hours)
    console = console or Console(recipe.logging.console)
    with console, _machine_told(Path(recipe.run.dir) / recipe.run.name):
        if is_numbered(loaded):
            folder = RunFolder.create_free(recipe.run.dir, recipe.run.name)
            loaded = called(loaded, folder.path.name)
            recipe = loaded.recipe
        else:
            folder = RunFolder.create(recipe.run.dir, recipe.run.name, recipe.run.if_exists)
        folder.anchor()
        with _released(folder):
            folder.place_checkpoints(recipe.checkpoint.dir)
            _write_recipe(folder, loaded)
            given.record(folder.path)
            try:
                greet = partial(say_recipe, console, loaded, given)
                return (yield from _run(loaded, folder, console, greet, given, deadline, resume=False))
            except DapoError as error:
                started = folder.metrics.exists() or CheckpointStore(folder.checkpoints).steps()
                if not started and (
                    error.exit_code in (REFUSED, NOT_INSTALLED) or isinstance(error, EngineError | ClusterError)
                ):
                    # nothing was done: the mended command finds its place free
                    folder.drop()
                raise


def go_on(
    run_folder: Path, overrides: Sequence[str] = (), given: Given = NOTHING_GIVEN, console: Console | None = None
) -> Steps:
    """``resume``, a step at a time. As ``begin``."""
    loaded, changes = load_for_resume(run_folder, overrides)
    check_trackers(loaded.recipe)
    deadline = Deadline(loaded.recipe.trainer.max_hours)
    console = console or Console(loaded.recipe.logging.console)
    with console, _machine_told(run_folder, resume=True):
        folder = RunFolder.open(run_folder)
        folder.anchor()
        folder.lock()
        with _released(folder):
            folder.check_kinds()
            read_steps(folder.metrics)
            given.check(folder.path)
            checkpoints = CheckpointStore(folder.checkpoints)
            checkpoints.mend()
            if checkpoints.steps():
                checkpoints.path()  # a damaged one is refused before anything is written
            greet = partial(say_changes, console, changes, loaded.warnings)
            return (yield from _run(loaded, folder, console, greet, given, deadline, resume=True))


@contextmanager
def _released(folder: RunFolder) -> Iterator[None]:
    """Release the folder at the very end, since an unlocked folder whose status says "running" means a killed run. A
    run that came to nothing is deleted before its release."""
    try:
        yield
    finally:
        folder.release()


def _run(
    loaded: LoadedRecipe,
    folder: RunFolder,
    console: Console,
    greet: Callable[[], None],
    given: Given,
    deadline: Deadline,
    *,
    resume: bool,
) -> Steps:
    """Run the recipe; ``greet`` prints the first words, so that the log has them, too."""
    with logging_to(folder.log, console.show_warning), outside_of_steps():
        greet()
        try:
            code = yield from _train(loaded, folder, console, given, deadline, resume=resume)
        except GeneratorExit:  # whoever takes the steps has left, behind the last one perhaps
            status = read_status(folder.status)
            say_end(folder, console, loaded, status is not None and status.state == "finished")
            raise
        except Exception as error:
            # INFO: for the file alone; the console is told by our caller. An error of ours needs no traceback.
            log.info("the run ended: %s", error, exc_info=None if isinstance(error, DapoError) else error)
            raise
        say_end(folder, console, loaded, code == FINISHED)
    return code


def _train(
    loaded: LoadedRecipe, folder: RunFolder, console: Console, given: Given, deadline: Deadline, *, resume: bool
) -> Steps:
    """Train and return the exit code: of a run that got to its end, or was stopped before.

    A learner that is lost is started again from the last checkpoint, as ``--resume`` does it: what was recorded behind
    it goes, engines get the weights of that step, and the steps are done again.
    """
    going, most = Going(loaded), loaded.recipe.cluster.max_learner_restarts
    for restart in range(1, most + 2):
        try:
            return (yield from _attempt(going, folder, console, given, deadline, resume=resume))
        except LearnerLost as error:
            if restart > most:
                raise
            resume, going.restarts = True, restart
            log.warning("%s. Restart %d of at most %d, from the last checkpoint", error, restart, most)
    raise AssertionError("the last attempt returns or raises")


def _attempt(
    going: Going, folder: RunFolder, console: Console, given: Given, deadline: Deadline, *, resume: bool
) -> Steps:
    """Train from the start or from the last checkpoint, to the end or until it is stopped."""
    loaded = going.loaded
    recipe = loaded.recipe
    with ExitStack() as stack:
        callbacks = Callbacks([*trackers_of(recipe), *given.callbacks], console.warn)
        stack.enter_context(callbacks.ending())
        checkpoints = CheckpointStore(folder.checkpoints, recipe.checkpoint.keep)
        status = None if resume else _say_running(stack, folder, recipe, checkpoints)
        began = time.time()
        session = _session(recipe, console, folder, given)
        recipe = session.recipe  # of a supervised run, with its number of steps
        pieces = Pieces(session.tokenizer) if recipe.logging.tokens else None
        recorder = RunRecorder(folder, console, recipe, pieces)
        try:
            trainer = session.trainer(recorder, checkpoints, deadline)
            saved = _load(trainer, checkpoints, loaded, console, recipe.trainer.steps) if resume else {}
            step = trainer.counters.training_steps
            if resume:  # from here on nothing refuses it, and what it wrote after the checkpoint goes
                _cut_back(folder, console, step, checkpoints, recipe, evaluated=trainer.evaluated_at >= 0)
            status = status or _say_running(
                stack, folder, recipe, checkpoints, step
            )  # a refused resume leaves what it says
            status.wants(recipe.trainer.steps)
            record_machine(folder, session, step)
            recorder.open(callbacks, status)
            recorder.processes = processes_of(session, going.restarts)
            took = time.time() - began
            recorder.span(Span(step, START, began, took, took))
            folder.write(folder.resolved_recipe, loaded.resolved)  # only a run that goes on changes its recipe
            if not folder.prompts.exists():
                write_prompts(folder.prompts, session.parts.prompts)
            clips_tokens = recipe.algorithm.loss.clips_tokens
            console.start(recipe.run.name, recipe.trainer.steps, step, clips_tokens=clips_tokens)
            callbacks.start(_start_event(recipe, folder, step), saved.get("recorder"))
            try:
                yield Opened(trainer, folder, console, going)
                yield from trainer.each_step()
            except GeneratorExit:  # whoever takes the steps has left, and the trainer has saved
                trainer.stopping.stop("its caller")
            stopping = trainer.stopping
            finished = trainer.finished
        except WithEvidence as error:
            raise error.in_words(stop_said(error.evidence, folder.shown())) from None
        except DapoError as error:
            lost = session.lost()
            if lost is None:
                raise
            raise ClusterEnded(lost, lost_with(lost, error, folder, checkpoints)) from error
        finally:
            try:
                recorder.close()
            finally:
                session.close()
        if finished and (said := nothing_learned(read_metrics(folder.metrics))) is not None:
            raise LearnerError(said)
        early = "" if stopping.early is None else early_said(stopping.early)
        if finished:
            status.end("finished", early, stopping.early)
        else:
            where = "" if stopping.left is None else f"; {left_said(stopping.left)}"
            said = f"stopped by {stopping.by} after step {status.status.step}, and saved{where}"
            status.end("interrupted", said, stopping.cause)
        callbacks.end(finished, early or ("" if finished else stopping.by))
    return FINISHED if finished else INTERRUPTED if stopping.cause is None else FOR_NOW


def _session(recipe: Recipe, console: Console, folder: RunFolder, given: Given) -> Session[Any]:
    if recipe.run.stage == "sft":
        return supervised_session(recipe, console, folder.path)
    return reward_session(recipe, console, folder.path, given=given)


def _say_running(
    stack: ExitStack, folder: RunFolder, recipe: Recipe, checkpoints: CheckpointStore, step: int = 0
) -> StatusWriter:
    """``status.json``: running, until ``stack`` is left with an exception, which it will then tell."""
    status = StatusWriter(folder.status, recipe.trainer.steps, step)
    stack.enter_context(ending(status, checkpoints.steps))
    stack.enter_context(_machine_told(folder.shown(), resume=True))
    return status


@contextmanager
def _machine_told(folder: Path, *, resume: bool = False) -> Iterator[None]:
    """Report in one line what the machine refuses, since it is no defect, instead of a traceback."""
    try:
        yield
    except Exception as error:
        told = None if isinstance(error, DapoError) else of_the_machine(error)
        if told is None:
            raise
        if isinstance(told, DiskError):
            begun = resume or (folder / RESOLVED).is_file()
            go_on = resume_command(folder)
            again = f"continue with `{go_on}`; steps after the last checkpoint are done again"
            said = f"{folder} cannot be written: {told.reason} ({error}). Free space, then "
            told = DiskError(said + (again if begun else "start again"), told.reason)
        raise told from error


def _load(
    trainer: Trainer, checkpoints: CheckpointStore, loaded: LoadedRecipe, console: Console, steps: int
) -> dict[str, Any]:
    """Take over the newest checkpoint, if there is one; returns what it says of its run. Touches no file of the run.

    ``steps``: of the whole run.

    Raises:
        RecipeError: settings change, and the run has all its steps.
        CheckpointError: it is damaged, of another model, or of a recipe with other fixed settings.
        DataError: the training data are others.
    """
    checkpoints.mend()
    if not checkpoints.steps():
        return {}
    saved = trainer.load(checkpoints.path())
    before, now = saved["facts"], trainer.facts
    if before.get("recipe"):
        changes = changed_since(before["recipe"], loaded.recipe)
        _something_to_do(trainer.counters.training_steps, steps, [change.path for change in changes])
        for change in changes:
            console.say(f"other than at the checkpoint: {change.sentence()}")
        if any(change.path.startswith("rewards") for change in changes):
            console.warn(
                "responses that were scored before this resume keep their scores: a batch may hold groups of the old "
                "and of the new rewards"
            )
    if before.get("validation", now["validation"]) != now["validation"]:
        console.warn(
            "the held-out problems are not those that this run was measured on so far (other problems, answers or "
            "prompts): accuracy before and after this resume cannot be compared"
        )
    return saved


def _something_to_do(step: int, steps: int, changed: Sequence[str]) -> None:
    """Refuse a resume whose other settings would be recorded, and would train nothing."""
    if steps < step or (steps == step and set(changed) - {"trainer.steps"}):
        raise RecipeError(
            f"nothing to train with {', '.join(changed)}: the run is at step {step}, trainer.steps is {steps}; set "
            f"trainer.steps above {step}, or start a run of another name"
        )


def _cut_back(
    folder: RunFolder, console: Console, step: int, checkpoints: CheckpointStore, recipe: Recipe, *, evaluated: bool
) -> None:
    """Remove what was recorded after ``step``, and what of it is made anew: its start, unless it was ``evaluated``."""
    steps = set(read_steps(folder.metrics))
    folder.cut_back(step if step or evaluated else -1)
    if checkpoints.steps():
        console.say(f"resuming after step {step} from {checkpoints.folder / f'step_{step:06d}'}")
    else:
        console.say("the run was stopped before its first checkpoint: it starts again from its beginning")
    if lost := [n for n in range(1, step + 1) if n not in steps]:
        named = _steps_said(lost)
        console.warn(f"{folder.metrics} has lost step {named}: charts have a gap there; training is not changed by it")
    missing, cut = folder.damaged_rollouts(step, every=recipe.logging.rollouts not in ("none", "kept"))
    for found, what in ((missing, "no file"), (cut, "a file that was cut or emptied")):
        if found:
            told = f"{folder.rollouts} has {what} of step {_steps_said(found)}: pages show none of its responses"
            console.warn(f"{told}; training is not changed by it")
    if recipe.trainer.steps <= step:
        console.warn(f"nothing to train: the run is at step {step}, trainer.steps is {recipe.trainer.steps}")


def _steps_said(steps: Sequence[int]) -> str:
    return f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} ({len(steps)} steps)"


def _start_event(recipe: Recipe, folder: RunFolder, step: int) -> StartEvent:
    config = redact(recipe.model_dump(mode="json"))
    return StartEvent(recipe.run.name, folder.path, step, recipe.trainer.steps, config)


def _write_recipe(folder: RunFolder, loaded: LoadedRecipe) -> None:
    folder.write(folder.recipe, loaded.text)
    folder.write(folder.difference, "\n".join(difference_lines(loaded)) + "\n")
    folder.write(folder.resolved_recipe, loaded.resolved)  # last: with it there is a run
