"""The nouns of a run: prompts, responses, scores, groups and the batch a learner receives.

No torch here: token ids, log-probabilities and versions are numpy arrays, so every layer and every process
can hold them. Index t of a per-token array always speaks of response token t (the shift by one that a causal
model needs happens in one function, ``dapo.models.packing``).

Suffixes for ragged lists: _P prompts, _G responses of one group, _T tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dapo.errors import EngineError, HookError
from dapo.types.codec import NOT_SAVED
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.evidence import Shares
from dapo.types.extra import Extra, cut_extra, empty_extra, extra_problem, joined_extra
from dapo.types.sent import SentByValue

IntArray = NDArray[np.int64]
IdArray = NDArray[np.int32] | NDArray[np.int64]
FloatArray = NDArray[np.float32]
VersionArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

Lane = Literal["train", "evaluate", "check"]
"""Whose responses these are: lanes share an engine and never see each other's."""


class Key(NamedTuple):
    """The identity of one response.

    >>> Key("train", group=3, sample=0).lane
    'train'
    """

    lane: Lane
    group: int
    sample: int  # index in its group


NO_KEY = Key("check", -1, -1)
"""Of a response that no engine was asked for: it was read from a file, or made up."""


class Columns(dict[str, Any]):
    """The columns of a record beside problem and answer. Asking for one that is not there names those that are."""

    def __missing__(self, key: object) -> Any:
        raise KeyError(f"{key!r} is no column of this prompt; prompt.extra holds {_listed(self)}")


def _listed(names: Iterable[str]) -> str:
    shown = [name if len(name) <= 30 else f"{name[:27]}..." for name in names]
    return f"{', '.join(shown[:12])}{', ...' if len(shown) > 12 else ''}" if shown else "nothing"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem, rendered and tokenised.

    >>> prompt = Prompt(content_id("3 + 4"), "3 + 4 =", np.array([5, 1, 6, 9]), "3 + 4", "7", "sums", {"level": 2})
    >>> prompt.extra["level"]
    2
    """

    id: str  # content hash: equal problems have equal ids, whichever file and row they came from
    text: str  # what the model sees
    token_ids: IntArray  # [prompt tokens]
    problem: str  # the raw problem text
    answer: str  # the gold answer as text; "" where the verifier needs none
    source: str  # name of the data source it came from
    extra: Mapping[str, Any] = field(default_factory=Columns)  # JSON-able record for the verifier
    chat: Mapping[str, Any] | None = None  # its messages and tools, where a template writes each turn's prompt afresh
    messages: tuple[Mapping[str, Any], ...] = ()  # of a row that holds a conversation; () for one that holds text

    def __post_init__(self) -> None:
        if not isinstance(self.extra, Columns):
            object.__setattr__(self, "extra", Columns(self.extra))

    if not TYPE_CHECKING:  # for reward functions, which no type checker sees

        def __getattr__(self, name: str) -> Any:
            own = [known.name for known in fields(Prompt)]
            if name in own or name.startswith("__"):  # asked for while a copy is being made
                raise AttributeError(name)
            raise AttributeError(
                f"a prompt has no {name!r}; it has {', '.join(own)}, and prompt.extra holds {_listed(self.extra)}"
            )


def content_id(problem: str) -> str:
    """16 hex digits that identify a problem by its content (white space runs do not count)."""
    return hashlib.sha256(" ".join(problem.split()).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch of an episode: what the model wrote, or what its environment replied.

    >>> Turn(first=12, stop=14, who="tool", text="7", seconds=0.2).text
    '7'
    """

    first: int  # index of its first token in the response
    stop: int  # index after its last token
    who: str  # MODEL, or the role of a reply's first message
    text: str  # without special tokens; of a reply the contents of its messages
    reward: float = 0.0  # of the model's turn, by the environment
    seconds: float = 0.0  # that the environment took to answer it
    calls: tuple[str, ...] = ()  # names of the tools that it called
    tool_errors: int = 0  # its calls that failed or could not be read
    cut: bool = False  # a turn that met a limit of tokens, or a reply that was shortened
    facts: Mapping[str, float] = field(default_factory=dict)  # about it, by the environment
    state: str | None = None  # of a reply: JSON of the environment after it, where that can be restored
    prompt_ids: IntArray | None = field(default=None, compare=False)
    """Of the model's turn, or of the reply before it: the turn's prompt, where a row begins with it. None: the turn
    continues the row before it."""
    asked: Mapping[str, Any] | None = None  # of an agent's request: the conversation that it sent
    messages: tuple[Mapping[str, str], ...] = ()  # of a reply, where a template writes them again for later turns


MODEL = "assistant"
"""Whose turn the model's is in ``Turn.who``."""


@dataclass(frozen=True, slots=True)
class Response(SentByValue):
    """A response from its first token to its end. All arrays are [response tokens].

    An engine returns the tokens that it made since it was asked; ``behind`` joins them to those before. The arrays
    belong to the receiver: an engine does not write to them again.

    >>> made = np.array([7, 2]), np.float32([-0.1, -0.4]), np.int32([3, 4])
    >>> response = Response(*made, FinishReason.STOP, "7", key=Key("train", 3, 0))
    >>> len(response), response.truncated, response.cut(1).unfinished().finish
    (2, False, None)
    """

    token_ids: IdArray
    logprobs: FloatArray  # the sampler's log-probability of each token, at the temperature in use
    versions: VersionArray  # version of the weights that made each token
    finish: FinishReason | None = None  # None: it goes on
    text: str = ""  # of ``SampleRequest.text_ids``; of an engine's answer "" where the receiver is to decode it
    generated: BoolArray | None = None  # None means every token was generated by the policy
    answer: str | None = None  # what follows the thinking, "" where it was never closed; None: nobody looked for one
    thinking: int | None = None  # tokens of the thinking, its closing tag included; None: nobody looked
    closed: bool = True  # the thinking was, or there was none
    extra: Extra = field(default_factory=dict)  # what the engine gives besides, see ``dapo.types.extra``
    turns: tuple[Turn, ...] = ()  # of an episode, those that ended, in order; () without an environment
    ended: str | None = None  # of an episode: "done", "turns", "tokens", "reply" (too long for the rest) or "error"
    scores: Mapping[str, float] = field(default_factory=dict)  # by reward name, of the environment
    key: Key = field(default=NO_KEY, metadata=NOT_SAVED)  # of its request
    tick: int = field(default=0, metadata=NOT_SAVED)  # the engine's logical clock (decode steps) when it ended
    new_tokens: int = field(default=0, metadata=NOT_SAVED)  # of a whole one: those made since it was submitted
    reason: str | None = None  # with FAILED: what happened
    engine: int | None = field(default=None, metadata=NOT_SAVED)  # of a group of engines, the one that made it

    @classmethod
    def empty(cls, key: Key = NO_KEY, finish: FinishReason | None = None, **known: Any) -> Response:
        """Return a response without a token."""
        none = np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32)
        return cls(*none, finish, key=key, **known)

    @property
    def model_tokens(self) -> int:
        """Tokens that the policy sampled: the length of the response in every formula and metric."""
        return len(self.token_ids) if self.generated is None else int(self.generated.sum())

    @property
    def sampled(self) -> BoolArray:
        """Which tokens the policy sampled."""
        return np.ones(len(self), np.bool_) if self.generated is None else self.generated

    @property
    def turn_start(self) -> int:
        """Index of the first token after the last reply: the model's present turn begins there."""
        return self.turns[-1].stop if self.turns else 0

    @property
    def shown(self) -> str:
        """The text as a person reads it: of an episode every turn, under the name of its speaker."""
        said = [turn for turn in self.turns if turn.text or turn.who == MODEL]
        return "\n".join(f"[{turn.who}] {turn.text}" for turn in said) if self.turns else self.text

    @property
    def final_text(self) -> str:
        """The text in which an answer counts: of an episode its last turn; after the thinking, where that is known."""
        return self.text if self.answer is None else self.answer

    @property
    def truncated(self) -> bool:
        return self.finish is FinishReason.LENGTH

    def __len__(self) -> int:
        return len(self.token_ids)

    def unfinished(self) -> Response:
        """Return it as one that goes on."""
        return replace(self, finish=None, text="")

    def behind(self, prefix: Response | None) -> Response:
        """Return the whole response of which these tokens follow ``prefix``.

        Raises:
            EngineError: extra arrays that do not fit together.
        """
        if prefix is None or not len(prefix):
            return self
        plain = prefix.generated is None and self.generated is None
        return replace(
            self,
            token_ids=np.concatenate([prefix.token_ids, self.token_ids]),
            logprobs=np.concatenate([prefix.logprobs, self.logprobs]),
            versions=np.concatenate([prefix.versions, self.versions]),
            generated=None if plain else np.concatenate([prefix.sampled, self.sampled]),
            extra=self._extra_behind(prefix) if self.extra or prefix.extra else {},
            turns=prefix.turns,
        )

    def _extra_behind(self, prefix: Response) -> Extra:
        if not len(self):
            return prefix.extra
        # where an environment spoke first, no engine has said which arrays there are
        earlier = prefix.extra if prefix.model_tokens else empty_extra(self.extra, len(prefix))
        try:
            return joined_extra(earlier, self.extra)
        except ValueError as error:
            told = f"response {self.key}: {error}. An engine gives the same arrays for every token"
            raise EngineError(told) from None

    def with_given(self, token_ids: IdArray, version: int = 0) -> Response:
        """Return it, unfinished, with tokens behind that no policy sampled.

        Args:
            token_ids: of the tokens.
            version: of the weights, where they are the first; else it is that of the token before them.
        """
        count, last = len(token_ids), self.versions[-1] if len(self) else version
        none = np.zeros(count, np.float32), np.full(count, last, np.int32)
        extra, given = empty_extra(self.extra, count), np.zeros(count, np.bool_)
        return Response(token_ids, *none, generated=given, extra=extra, key=self.key).behind(self)

    def cut(self, stop: int, *, first: int = 0) -> Response:
        """Return its tokens from ``first`` up to ``stop``."""
        if first == 0 and stop == len(self):
            return self
        span, kept = slice(first, stop), cut_extra(self.extra, len(self) - stop)
        return replace(
            self,
            token_ids=self.token_ids[span],
            logprobs=self.logprobs[span],
            versions=self.versions[span],
            generated=None if self.generated is None else self.generated[span],
            extra={name: values[first:] for name, values in kept.items()},
        )


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one response. ``reason`` is set exactly when it is unscored: when any verifier failed.

    Training takes nothing from an unscored response. ``values`` keeps what the verifiers that did not fail said, so
    that an evaluation, which asks for the accuracy alone, does not depend on the others.

    >>> Score({"accuracy": 1.0, "short": 0.5}, reward=1.25).accuracy
    1.0
    >>> Score(reason="timeout").scored
    False
    """

    values: Mapping[str, float] = field(default_factory=dict)  # by reward name; "accuracy", in [0, 1], where scored
    reward: float = float("nan")  # weighted sum of the values, before scaling and length penalty
    reason: str | None = None  # why it is unscored: "timeout", "exception: ...", "crash", "not a number: ..."
    answer: str | None = None  # the final answer that the verifier read, where it knows one (for maj@k)

    @property
    def scored(self) -> bool:
        return self.reason is None

    @property
    def accuracy(self) -> float | None:
        """Value of the reward called accuracy, whatever became of the others; None if it failed."""
        return self.values.get("accuracy")


@dataclass(slots=True)
class Group:
    """The G responses to one prompt, keyed by the id that the collector issued (never by prompt text).

    >>> prompt = Prompt("a1", "3 + 4 =", np.array([5, 1, 6, 9]), "3 + 4", "7", "sums")
    >>> right = Response(np.array([7, 2]), np.float32([-0.1, -0.4]), np.int32([3, 3]), FinishReason.STOP, "7")
    >>> group = Group(0, prompt, [right, right], [Score({"accuracy": 1.0}, reward=1.0), Score(reason="crash")])
    >>> group.scored().tolist(), group.accuracies().tolist()
    ([True, False], [1.0, nan])
    """

    id: int
    prompt: Prompt
    completions_G: list[Response]
    scores_G: list[Score]
    born: int = 0  # 1 + version of the engine's weights when it was dispatched: no token is older
    verdict: Verdict | None = None
    disposition: Disposition | None = None
    # filled by the trainer, in the order of docs/algorithm.md; computed anew when a group of a checkpoint trains
    voters_G: BoolArray | None = field(default=None, metadata=NOT_SAVED)
    penalties_G: NDArray[np.float64] | None = field(default=None, metadata=NOT_SAVED)
    rewards_G: NDArray[np.float64] | None = field(default=None, metadata=NOT_SAVED)  # scaled + penalty; nan: unscored
    advantages_G: NDArray[np.float64] | None = field(default=None, metadata=NOT_SAVED)  # 0 for non-voters

    def pairs(self) -> list[tuple[Response, Score]]:
        """Return each response with its score."""
        return list(zip(self.completions_G, self.scores_G, strict=True))

    def accuracies(self) -> NDArray[np.float64]:
        """Accuracy of each response, nan where unscored, and where there are no rewards."""
        own = [s.values.get("accuracy", np.nan) if s.scored else np.nan for s in self.scores_G]
        return np.array(own, dtype=np.float64)

    def lengths(self) -> IntArray:
        """Return the number of sampled tokens of each response."""
        return np.array([c.model_tokens for c in self.completions_G], dtype=np.int64)

    def truncated(self) -> BoolArray:
        return np.array([c.truncated for c in self.completions_G], dtype=np.bool_)

    def scored(self) -> BoolArray:
        return np.array([s.scored for s in self.scores_G], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. temperature 0 means greedy.

    >>> SamplingParams(max_tokens=1024, top_p=0.7).temperature
    1.0
    """

    max_tokens: int  # limit of the whole response, prefix included
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # texts that end a response with the token that completes one


@dataclass(frozen=True, slots=True)
class SampleRequest(SentByValue):
    """Ask for one response. The uniform number behind token t is a function of (seed, t) alone.

    >>> SampleRequest(Key("train", 3, 0), np.array([5, 1]), SamplingParams(64), seed=11).prefix is None
    True
    """

    key: Key
    prompt_ids: IntArray
    sampling: SamplingParams
    seed: int  # 63 bits, derived from (run seed, group, index)
    prefix: Response | None = None
    priority: int = 0  # smaller first
    engine: int | None = None  # of a group of engines, the one to ask while it is at work; None: any
    keep: bool = False  # once it ended, hold its keys and values for a request that goes on; ``abort`` lets them go

    def text_ids(self, token_ids: IdArray, finish: FinishReason | None) -> IdArray:
        """Return the tokens of a whole response that are its text: all but a stop token that ended it.

        Without stop strings nothing but a stop token ends a response early.
        """
        stopped, sampling = finish is FinishReason.STOP, self.sampling
        by_token = stopped and (not sampling.stop or int(token_ids[-1]) in sampling.stop_token_ids)
        return token_ids[:-1] if by_token else token_ids


class TensorSum(NamedTuple):
    """One tensor that an engine computes with, as a number that can be compared and sent.

    >>> TensorSum("bfloat16", 81234).value
    81234
    """

    dtype: str  # that it has in the engine: "float32", "bfloat16"
    value: int  # ``dapo.models.checksum.checksum`` of its values


@dataclass(frozen=True, slots=True)
class TokenRow(SentByValue):
    """A prompt and its response, or a part of one: what a forward pass needs.

    >>> TokenRow(0, prompt_ids=np.array([5, 1]), token_ids=np.array([7, 2])).group
    0
    """

    group: int  # rows of one group share their prompt, which is computed once
    prompt_ids: IdArray  # [prompt tokens]
    token_ids: IdArray  # [response tokens]


def by_response(rows: Sequence[Any]) -> list[list[int]]:
    """Return row indices by response (group and sample), in order of first appearance."""
    responses: dict[tuple[int, int], list[int]] = {}
    for index, row in enumerate(rows):
        responses.setdefault((row.group, row.sample), []).append(index)
    return list(responses.values())


def by_prompt(rows: Sequence[TokenRow]) -> list[list[int]]:
    """Row indices by group, in order of first appearance. Rows of one group with unequal prompts do not share."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.group, row.prompt_ids.tobytes()), []).append(index)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Row(TokenRow):
    """One response as the learner receives it, or a part of one. Log-probabilities are in nats.

    Arrays are [response tokens] unless said. ``loss_weight`` and ``advantage`` are those of the whole response.

    >>> tokens = {"token_ids": np.array([7, 2]), "loss_mask": np.array([True, False])}
    >>> made = {"sampler_logprobs": np.float32([-0.1, -0.4]), "versions": np.int32([3, 3])}
    >>> Row(0, np.array([5, 1]), **tokens, sample=0, **made, loss_weight=0.5, advantage=1.0).loss_weights().tolist()
    [0.5, 0.0]
    """

    sample: int  # index of the response in its group
    loss_mask: BoolArray  # tokens that carry loss
    sampler_logprobs: FloatArray  # of the engine that made them, at the sampling temperature
    versions: VersionArray  # of the weights that made each token
    loss_weight: float  # the reduction: weight of each loss token's loss
    advantage: float  # of each of its tokens
    reference_logprobs: FloatArray | None = None  # of a reference model; None: there is none
    teacher_logprobs: FloatArray | None = None  # of a teacher; None: none judges this row
    traced: bool = False  # the learner keeps what it computes of each token, see ``TokenTrace``
    extra: Extra = field(default_factory=dict)  # what the loss reads besides, see ``dapo.types.extra``
    part: int = 0  # index of the row in its response; an episode has several where turns have prompts of their own

    def __post_init__(self) -> None:
        if not self.extra:
            return
        problem = extra_problem(self.extra, prompt=len(self.prompt_ids), response=len(self.token_ids))
        if problem is not None:
            raise HookError(f"response {self.sample} of group {self.group}: {problem}")

    def teacher_or_nan(self) -> FloatArray:
        """float32 [tokens], nan where no teacher judges the row."""
        made = self.teacher_logprobs
        return np.full(len(self.token_ids), np.nan, np.float32) if made is None else made

    def loss_weights(self) -> FloatArray:
        """float32 [tokens], 0 where no loss is carried."""
        return np.where(self.loss_mask, np.float32(self.loss_weight), np.float32(0.0))


@dataclass(frozen=True, slots=True)
class LearnStep:
    """Message to the learner for one training step: it holds everything that the step needs.

    >>> LearnStep(minibatches=[[], []], learning_rates=[1e-6, 1e-6], version=3, epochs=2).first_pass
    [[]]
    """

    minibatches: Sequence[Sequence[Row]]  # one optimiser step each, pass by pass; groups never straddle them
    learning_rates: Sequence[float]  # of each optimiser step
    version: int  # of the weights that are about to be trained
    ratio_against: RatioAgainst = "sampler"
    entropy_coefficient: float = 0.0  # of the entropy term, where the objective has one
    refresh_reference: bool = False  # after the last optimiser step the reference is the policy
    epochs: int = 1  # passes over the rows, each of equally many minibatches

    @property
    def first_pass(self) -> Sequence[Sequence[Row]]:
        """Return the minibatches of the first pass, in which every row is once."""
        return self.minibatches[: len(self.minibatches) // self.epochs]


RatioAgainst = Literal["sampler", "learner", "interpolated"]
"""Whose log-probabilities the probability ratio runs against: those recorded when sampling, the learner's own
before the first optimiser step of the training step, or between both by age (with the latter two the correction
accounts for the sampler)."""


Of = str
"""Whose log-probabilities are asked for: ``policy``, ``reference``, or ``TEACHER`` and a teacher's path."""
TEACHER = "teacher:"


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of a training step.

    >>> Learned(stats={}, traces=[]).traces
    []
    """

    stats: Mapping[str, Any]  # dapo.metrics.stats.Stats, by metric key
    traces: list[TokenTrace]  # of traced rows, in the order of the optimiser steps; rows without loss tokens have none


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The learner's values for one row in its optimizer step. All arrays are [response tokens].

    >>> numbers = [np.float32([number]) for number in (-0.2, -0.1, 0.9, 0.5)]
    >>> TokenTrace(0, 0, *numbers, clip=np.int8([1])).clip.tolist()
    [1]
    """

    group: int
    sample: int
    logprobs: FloatArray  # under the weights before the optimiser step, at the sampling temperature, nats
    old_logprobs: FloatArray  # what the ratio runs against
    ratio: FloatArray  # exp(logprobs - old_logprobs), its logarithm bounded as in the losses
    entropy: FloatArray  # of the policy at each token, nats
    clip: NDArray[np.int8] | None  # 0 none, 1 low, 2 high, 3 dual; None: the loss names no such flags
    part: int = 0


@dataclass(slots=True)
class StepBatch:
    """Result of one collect(): the groups to train on, and everything that was finished on the way.

    >>> StepBatch(4, groups_P=[], finished=[], metrics={"groups/dispatched": 32.0}).step
    4
    """

    step: int
    groups_P: list[Group]  # in training order
    finished: list[Group]  # every group judged or discarded during this step, the trained ones included
    metrics: dict[str, float] = field(default_factory=dict)
    shares: Shares | None = None  # what was judged on the way


Route = Literal["shared", "folder", "object_store", "broadcast", "ipc"]
"""How weights reach an engine: tensors of the same process; safetensors files; such files carried from machine to
machine by a cluster's object store; a process group; memory of the device that learner and engine share."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Route to new weights. It travels from learner to engine through the driver; no tensor does.

    >>> Ticket(5, "folder", "runs/mine/weights/000005", ("model.norm.weight",)).route
    'folder'
    """

    version: int
    route: Route
    address: str  # folder, object_store: a path, the same for learner and engine; else a name for messages
    names: tuple[str, ...]  # of the tensors, as in the checkpoint: parameters (a tied one once) and persistent buffers
    cargo: Any = None  # what the route's ``receive`` needs besides, see ``dapo.weights``; it can be pickled


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a checkpoint, described by its writer from the data to be written, so that no process reads it again.

    >>> SavedFile("learner/rank-0.safetensors", size=4096, crc32=0).size
    4096
    """

    name: str  # relative to the folder that its writer was given, with "/"
    size: int  # bytes
    crc32: int


Metrics = dict[str, float]
