"""Record every step of a run in the metrics file, the rollout files, the console and the callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dapo.config.schema import Recipe
from dapo.metrics.glossary import START
from dapo.observe.callbacks import Callbacks
from dapo.observe.console import Console
from dapo.observe.evaluations import held_out_of, write_evaluation
from dapo.observe.metrics import MetricWriter
from dapo.observe.processes import write_processes
from dapo.observe.rollouts import select_groups, write_rollouts
from dapo.observe.run_folder import RunFolder
from dapo.observe.samples import Sample, write_samples
from dapo.observe.sentences import ending_said, notice_said
from dapo.observe.spans import SpanLog
from dapo.observe.status import StatusWriter
from dapo.observe.tables import TableWriter
from dapo.observe.tokens import Pieces, select_for_tokens, write_tokens
from dapo.observe.why import evaluating_line, heartbeat, start_said, stillness_line
from dapo.types.batch import Group, Metrics, TokenTrace
from dapo.types.evaluation import GREEDY, EvaluationProgress, EvaluationResult, ValidationSets
from dapo.types.evidence import (
    ClusterLost,
    CollectProgress,
    Ending,
    HeldOutLoss,
    Interrupted,
    LeftAtOnce,
    Notice,
    Stillness,
)
from dapo.types.protocols import ProcessState, Span

SAMPLED_PROBLEMS = 24
"""Validation problems per set whose texts are kept at every evaluation; all of them are counted in ``evaluations/``."""


class RunRecorder:
    """Implements ``dapo.types.protocols.Recorder`` with the files of a run folder."""

    def __init__(self, folder: RunFolder, console: Console, recipe: Recipe, pieces: Pieces | None = None) -> None:
        """``pieces`` cuts responses into tokens' texts; None: no token records.

        No file is opened before ``open``: a resume reads its checkpoint first.
        """
        self.folder, self.console, self.recipe, self.settings = folder, console, recipe, recipe.logging
        self.pieces, self.tables = pieces, TableWriter()
        self.callbacks: Callbacks
        self.status: StatusWriter
        self.writer: MetricWriter
        self.spans: SpanLog | None = None
        self.processes: Callable[[], Sequence[ProcessState]] | None = None  # of a run with several
        self._closing = ExitStack()  # all of it, where one fails
        self._closing.callback(self.tables.close)

    def open(self, callbacks: Callbacks, status: StatusWriter) -> None:
        """Open the files to append to, once nothing can refuse the run any more."""
        self.callbacks, self.status = callbacks, status
        self.writer = MetricWriter(self.folder.metrics)
        self._closing.callback(self.writer.close)
        if self.settings.spans:
            self.spans = SpanLog(self.folder.spans)
            self._closing.callback(self.spans.close)

    def filling(self, progress: CollectProgress) -> None:
        """Show progress after a judged group of a batch. Called for every group, so it does next to nothing."""
        self.console.filling(progress)
        self.status.doing(heartbeat(progress), progress)

    def evaluating(self, progress: EvaluationProgress) -> None:
        """Show progress after a response of an evaluation ended or was scored."""
        self.console.evaluating(progress)
        self.status.doing(evaluating_line(progress))

    def stillness(self, stillness: Stillness | None) -> None:
        """Show that nothing moves: in the status at once, on the console after one minute, two, four..."""
        line = "" if stillness is None else stillness_line(stillness)
        self.status.stillness(line)
        self.console.stillness(stillness, line)

    def span(self, span: Span) -> None:
        if self.spans is not None:
            self.spans.add(span)

    def traced(self, finished: Sequence[Group]) -> set[int]:
        return {group.id for group in self._for_tokens(finished)}

    def step(self, step: int, metrics: Metrics, finished: Sequence[Group], traces: Sequence[TokenTrace] = ()) -> None:
        """All files of a step. Tables follow within a moment; a checkpoint waits for them."""
        chosen, of_tokens = self._for_rollouts(finished), self._for_tokens(finished)
        if chosen:
            write_rollouts(self.folder.rollout_file(step), step, chosen, write=self.tables.write)
        if of_tokens and self.pieces is not None:
            write_tokens(self.folder.tokens_file(step), step, of_tokens, traces, self.pieces, self.tables.write)
        if self.processes is not None:
            states = self.processes()
            write_processes(self.folder.path, step, states)
            for state in states:
                for start, seconds in state.turns:
                    self.span(Span(step, state.name, start, seconds, seconds))
                for start, seconds in state.starts:
                    self.span(Span(step, f"{state.name} {START}", start, seconds, seconds))
        if self.spans is not None:
            self.spans.flush()
        self.writer.write(step, metrics)
        self.status.step(step)
        self.callbacks.step(step, metrics, finished)
        if step > 0:
            self.console.step(step, metrics)
        every = self.settings.samples_every
        if every and step and step % every == 0 and finished:
            self._show_sample(finished)
        self.tables.start()

    def evaluation(self, step: int, result: EvaluationResult) -> None:
        write_evaluation(self.folder.evaluation_file(step), step, result.sets, self.tables.write)
        write_samples(self.folder.samples, _samples(step, result.sets))
        held_out = held_out_of(result.sets)
        self.console.evaluation(step, result.metrics, result.reasons, held_out)
        if step == 0 and (said := start_said(held_out, self.recipe)):
            self.console.warn(f"step 0: {said}")
        self.callbacks.evaluation(step, result)

    def saved(self, step: int, folder: Path) -> None:
        self.callbacks.checkpoint(step, folder)

    def stopped(self, step: int, judged: Sequence[Group]) -> None:
        """``stopped/step_NNNNNN.parquet``; a resume leaves it, and a further stop at the same step adds to it."""
        if judged and self.settings.rollouts != "none":
            write_rollouts(self.folder.stopped_file(step), step, judged, add=True)

    def notice(self, step: int, notice: Notice) -> None:
        tell = self.console.say if isinstance(notice, HeldOutLoss) else self.console.warn
        tell(notice_said(step, notice))

    def ending(self, ending: Ending) -> None:
        tell = self.console.warn if isinstance(ending, Interrupted | LeftAtOnce | ClusterLost) else self.console.say
        tell(ending_said(ending))

    def state(self) -> dict[str, Any]:
        """For a checkpoint: it knows no more than the files beside it."""
        self.tables.sync()
        self.writer.sync()
        return self.callbacks.state()

    def close(self) -> None:
        self._closing.close()

    def _for_rollouts(self, finished: Sequence[Group]) -> list[Group]:
        return select_groups(finished, self.settings.rollouts)

    def _for_tokens(self, finished: Sequence[Group]) -> list[Group]:
        """Return the groups to record by token; if there is a rollout file, only its groups, whose prompts a reader
        finds there."""
        if self.pieces is None:
            return []
        known = finished if self.settings.rollouts == "none" else self._for_rollouts(finished)
        return select_for_tokens(known, self.settings.tokens)

    def _show_sample(self, finished: Sequence[Group]) -> None:
        group = finished[-1]
        score = group.scores_G[0]
        accuracy, reward = (score.accuracy, score.reward) if score.scored else (None, None)
        self.console.sample(group.prompt.problem, group.completions_G[0].shown, accuracy, reward)


def _samples(step: int, sets: ValidationSets) -> list[Sample]:
    return [
        Sample(
            step=step,
            set=name,
            prompt_id=group.prompt.id,
            prompt=group.prompt.text,
            problem=group.prompt.problem,
            answer=group.prompt.answer,
            response=response.shown,
            accuracy=score.accuracy,
            length=response.model_tokens,
            truncated=response.truncated,
            greedy=response.key.sample == GREEDY,
            unscored=score.reason,
        )
        for name, groups in sets.items()
        for group in groups[:SAMPLED_PROBLEMS]
        for response, score in group.pairs()
    ]
