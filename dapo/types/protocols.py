"""Define the protocols between the parts of a run: engine, learner, scorer, prompts, recorder, and work in progress.

Engines keep nothing that lasts: the collector owns partial responses, so a resume, a weight change that aborts
and a lost engine are one thing: submit again with a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from dapo.types.batch import (
    FloatArray,
    Group,
    Key,
    Learned,
    LearnStep,
    Metrics,
    Of,
    Prompt,
    Response,
    SampleRequest,
    SavedFile,
    Score,
    TensorSum,
    Ticket,
    TokenRow,
    TokenTrace,
)
from dapo.types.evaluation import EvaluationProgress, EvaluationResult
from dapo.types.evidence import CollectProgress, Ending, Notice, Stillness

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """The result of a call that may still be running.

    Example: ``Done``; a call to processes is ``dapo.learner.hosts.Pending``.
    """

    def done(self) -> bool:
        """Whether ``result`` would answer at once."""

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the result, at most ``timeout`` seconds.

        Raises:
            TimeoutError: it is not there yet; the work goes on.
            Exception: what the work itself raised.
        """


class Done(Generic[T_co]):
    """A result that is there already."""

    def __init__(self, value: T_co) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> T_co:
        """Return the value, at once."""
        return self._value


class Mapped(Generic[T, T_co]):
    """A handle that applies a function to a result once it is there."""

    def __init__(self, handle: Handle[T], function: Callable[[T], T_co]) -> None:
        self._handle, self._function = handle, function

    def done(self) -> bool:
        return self._handle.done()

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the result and return the function of it."""
        return self._function(self._handle.result(timeout))


class Engine(Protocol):
    """Turns requests into responses.

    Example: ``dapo.engines.embedded.EmbeddedEngine``; docs/extending.md writes one.
    """

    shares_weights: bool  # the engine reads the learner's tensors; otherwise every publish is checked
    version: int  # of the weights that the next token will be made with

    @property
    def capacity(self) -> int:
        """Responses that decode at once."""

    @property
    def clock(self) -> int:
        """Logical time: decode steps taken so far. A remote engine estimates it; it grows while responses end."""

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queue requests. The responses of one group come together: their prompt is computed once."""

    def poll(self, timeout: float | None = None) -> list[Response]:
        """Make progress and return the responses that ended, ordered by (tick, key).

        Works or waits until at least one ended, with a ``timeout`` for about as many seconds at most. With None an
        empty answer means that nothing is left; with a timeout, that nothing ended yet.

        Raises:
            EngineError: the engine is lost. ``abort`` still gives back everything unfinished.
        """

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Take back the named (default: all) responses, with what there is of them.

        Those that ended and were not polled yet come back as well, with the reason for which they ended: after
        ``abort`` the engine knows nothing of the keys.
        """

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """Load new weights: every token from now on carries the ticket's version.

        Raises:
            EngineError: unfinished responses with ``abort``; a route that does not lead here; a parameter that the
                ticket does not name; weights that do not fit.
        """

    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return checksums of this engine's weights, by their names in the checkpoint; asked after each ``load``.

        Read from the tensors that the next token is computed from, not from what came in. A tensor that is part of a
        larger one (fused query, key and value) is summed as that part, in the checkpoint's shape. What cannot be read
        is left out; None: nothing can be read here (a server), or everything is the learner's own memory.

        Raises:
            EngineError: something that the engine derived from its weights (a fused or packed matrix) is not what
                they give.
        """

    def sleep(self) -> None:
        """Nothing will be asked before the next ``load``, and nothing is unfinished.

        An engine on the learner's device may hand its memory over; others have nothing to do.
        """

    def stats(self) -> Metrics:
        """Counters since construction.

        decode_steps, generated_tokens, prefill_tokens, slot_steps, busy_slot_steps.
        """

    def close(self) -> None: ...


@runtime_checkable
class Suspends(Protocol):
    """An engine that can go on in another process as if nothing had happened, to the digit.

    Example: ``dapo.engines.embedded.EmbeddedEngine``.
    """

    def suspended(self) -> dict[str, Any] | None:
        """Return, before ``abort``, what the next steps depend on besides weights, requests and their prefixes: a tree
        of plain values and arrays. None: it cannot be had now."""

    def resume(self, state: Mapping[str, Any]) -> bool:
        """Go on with the requests that were just submitted, each with all its tokens so far as prefix.

        False: this engine is another one (its slots, or its model). Then nothing has changed, and the requests wait.
        """


@runtime_checkable
class WorksAlone(Protocol):
    """An engine that goes on between two calls.

    Example: ``dapo.engines.vllm_server.ServerEngine``.
    """

    def busy_seconds(self) -> float:
        """Seconds in which it had responses under way since it was made; of several engines their mean."""


@runtime_checkable
class EngineGroup(Protocol):
    """An engine that is several, each with weights of its own; what an ``Engine`` has goes for all of them together.

    Example: ``dapo.engines.pool.EnginePool``.
    """

    def members(self) -> Sequence[int]:
        """Return the indices of engines that accept requests, by which a request may name one
        (``SampleRequest.engine``)."""

    def checksums_each(self) -> Mapping[int, Mapping[str, TensorSum] | None]:
        """As ``Engine.checksums``, of each. One that is lost and comes back must then have the same, or is not used.

        Raises:
            EngineError: as ``Engine.checksums``; the message names the engine.
        """

    def metrics(self) -> Metrics:
        """``cluster/...``, since it was asked last."""


class Learner(Protocol):
    """Owns the policy and its optimiser, here or elsewhere: calls that compute answer with a handle.

    Example: ``dapo.learner.driver.LearnerDriver``.
    """

    def learn(self, step: LearnStep) -> Handle[Learned]:
        """Do a whole training step. Each minibatch is one optimizer step on the gradient of the plain sum of weight x
        correction x L over its tokens.

        Minibatches are split into micro-batches, and over ranks, at will: the driver's loss weights make the split
        irrelevant. Tracing copies numbers that a step has anyway: it changes neither gradients nor statistics.

        Raises:
            LearnerError: by ``result``: too many gradients in a row were not finite.
        """

    def logprobs(self, rows: Sequence[TokenRow], of: Of = "policy") -> Handle[list[FloatArray]]:
        """Log-probability of every response token under the present weights, at the sampling temperature.

        With ``reference`` under those of the reference, which a learner has only where it was made with one; the
        policy's own are untouched.
        """

    def rounding(self, rows: Sequence[TokenRow]) -> FloatArray | None:
        """Return how far rounding moves each response token's log-probability, nats, all rows in one array.

        The model's own forward pass, as transformers has it, runs in its type and in a wider one. None where that
        cannot be measured.
        """

    def publish(self, version: int) -> Ticket:
        """Lay the present weights out for an engine to load."""

    def checksums(self, dtypes: Mapping[str, str]) -> Mapping[str, int]:
        """Return the checksums that an engine must have: of the weights ``dtypes`` names, rounded to the engine's
        types.

        Read from the parameters themselves, not through ``publish``. Names that the model does not have are left out;
        a tied tensor answers to each of its names.
        """

    def save(self, folder: Path) -> Handle[list[SavedFile]]:
        """Write everything that ``load`` needs into ``folder``, made if missing; the files are on the disk, not only on
        their way, when the result is there."""

    def load(self, folder: Path) -> None: ...

    def close(self) -> None: ...


class Judge(Protocol):
    """Say how likely tokens are that the policy made, from elsewhere than the learner.

    Example: ``dapo.engines.vllm_teacher.ServedTeacher``.
    """

    def logprobs(self, rows: Sequence[TokenRow], look: Callable[[], None] | None = None) -> list[FloatArray]:
        """Log-probability of every response token. ``look`` is called while the answer fails to come; it may raise."""


class Scorer(Protocol):
    """Score responses, at once or in worker processes. Every submitted key comes back exactly once.

    A scorer may have an attribute ``quick``. True: a score is ready so soon that the collector may wait for it at once,
    which is then the default of ``dynamic_sampling.verdict_lag``.

    Example: ``dapo.rewards.compose.CompositeScorer``.
    """

    def submit(self, key: Key, prompt: Prompt, completion: Response) -> None: ...

    def poll(self, timeout: float | None = None) -> list[tuple[Key, Score]]:
        """Return finished scores. timeout 0: those that are ready; None: wait until at least one is (or nothing is
        pending)."""

    def close(self) -> None: ...


@runtime_checkable
class ScoresGroups(Scorer, Protocol):
    """Score all responses of a group in one call, where ``by_group`` says so.

    Example: ``dapo.rewards.compose.CompositeScorer`` with a reward ``per: group``.
    """

    by_group: bool

    def submit_group(self, keys: Sequence[Key], prompt: Prompt, completions: Sequence[Response]) -> None:
        """Queue the responses to one prompt. All of them have ended; those that an engine could not finish are left
        out."""


class PromptStream(Protocol):
    """Give an endless or finite sequence of prompts; its position is a small JSON-able state.

    A stream may have further members: ``sources``, a tuple of names, for the metrics ``source/<name>/...`` (one name
    alone has none of its own); ``levels()``, the present level of each source that has levels, by its name;
    ``pass_length``, the number of prompts among which each is found once, where that is not ``size``; and
    ``judged(prompt, accuracy)``, which takes in the mean accuracy of a judged group, over the responses that vote.

    Example: ``dapo.data.stream.EpochStream``; ``dapo.data.mixture.MixtureStream`` has all of them.
    """

    @property
    def size(self) -> int:
        """Prompts in the data."""

    def take(self, n: int) -> list[Prompt]:
        """Return the next ``n`` prompts; fewer only when the data has ended."""

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of one phase, phases inside it included, or several merged: a line of RUN/spans.jsonl. In seconds.

    >>> Span(4, "generate", start=1_700_000_000.0, seconds=3.0, busy=2.5, count=2).count
    2
    """

    step: int
    name: str
    start: float  # since 1970; of the first stretch
    seconds: float  # from there to the end of the last stretch
    busy: float  # sum of the stretches
    count: int = 1  # stretches


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process of a run.

    >>> ProcessState("engine-1", "engine", "node-2", restarts=3).alive
    True
    """

    name: str
    role: str  # driver | learner | engine
    machine: str
    process: int | None = None  # its number there
    alive: bool = True
    restarts: int = 0
    last_turn: float | None = None  # end of the last turn, since 1970
    turn_seconds: float | None = None  # of that turn
    memory_mib: float | None = None  # resident now; None: on another machine, or not to be had
    turns: tuple[tuple[float, float], ...] = ()  # start (since 1970) and seconds of each since it was asked last
    starts: tuple[tuple[float, float], ...] = ()  # likewise, of each time it was started


class Recorder(Protocol):
    """Recorder of a run: metrics file, rollout files, console, trackers.

    Example: ``dapo.observe.recorder.RunRecorder``.
    """

    def step(self, step: int, metrics: Metrics, finished: Sequence[Group], traces: Sequence[TokenTrace]) -> None: ...

    def traced(self, finished: Sequence[Group]) -> Collection[int]:
        """Ids of the groups of this step whose tokens the learner shall keep on record for ``step``."""

    def span(self, span: Span) -> None:
        """Record a finished stretch of a phase."""

    def evaluation(self, step: int, result: EvaluationResult) -> None: ...

    def saved(self, step: int, folder: Path) -> None:
        """Take note of the checkpoint of ``step`` in ``folder``."""

    def stopped(self, step: int, judged: Sequence[Group]) -> None:
        """Step ``step`` could not fill its batch: what was judged on the way is the evidence."""

    def filling(self, progress: CollectProgress) -> None:
        """Show that the batch is being collected; called after every judged group."""

    def stillness(self, stillness: Stillness | None) -> None:
        """Show that nothing moves, or with None that something does again; called in another thread."""

    def evaluating(self, progress: EvaluationProgress) -> None:
        """Show that an evaluation is going on; called whenever a response ended or was scored."""

    def notice(self, step: int, notice: Notice) -> None:
        """Something of step ``step`` that a person should know, though the run goes on."""

    def ending(self, ending: Ending) -> None:
        """No further step is begun, and why."""

    def state(self) -> dict[str, Any]: ...
