"""Define what an environment is: what answers the model between its turns.

An episode is one response. The model writes a turn (``ModelTurn``), the environment answers (``Reply``), and so on
until the environment is done or a limit is met. An environment is written as a generator, as a class (``Environment``)
or as a list of tools; ``docs/environments.md`` shows all three.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from dapo.types.batch import IntArray, Key, Metrics, Prompt

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``, as chat templates read it."""

Ended = Literal["turns", "tokens"]
"""The limit that ended an episode: of turns, or of tokens."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool that the model asked for::

    Call("call00000", "add", {"a": 1, "b": 2})
    """

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """Output of the model since the environment was last asked::

    def step(self, turn):
        if turn.text.strip() == self.hidden:
            return Reply(done=True, reward=1.0)
        return Reply("no" if turn.turns_left else "no, and that was the last one")
    """

    number: int  # from 0
    text: str  # after the thinking; special tokens left out
    calls: tuple[Call, ...]  # () without tools
    problem: str | None  # why a call could not be read
    token_ids: IntArray
    tokens_left: int  # of the episode
    turns_left: int
    cut: bool = False  # it met a limit of tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of an environment to a turn::

    Reply("warmer", reward=0.1)
    Reply([{"role": "tool", "name": "add", "content": "3"}])
    Reply(done=True, scores={"accuracy": 1.0})
    """

    messages: str | Sequence[Message] = ()  # a text is one message of the role ``user``
    done: bool = False  # the episode ends; ``messages`` are recorded, and the model does not see them
    reward: float = 0.0  # for the model's turn
    scores: Mapping[str, float] = field(default_factory=dict)  # with ``done``: by reward name; others join ``facts``
    facts: Mapping[str, float] = field(default_factory=dict)  # for the metrics ``environment/fact/NAME``
    conversation: Mapping[str, Any] | None = None
    """In place of ``messages``: all that the model reads, as an agent sends it. ``messages`` and ``tools`` as a chat
    template reads them, ``max_tokens`` of the turn, and ``answered``, the message that the model's last turn became."""


class Environment(Protocol):
    """One episode of an environment: one object, one call at a time. Every method may also be ``async``.

    ::

        class Guess:
            def start(self, prompt, seed):
                self.hidden = prompt.answer
                return Reply("Guess a number.")

            def step(self, turn):
                right = turn.text.strip() == self.hidden
                return Reply("" if right else "no", done=right, scores={"accuracy": float(right)} if right else {})

            def end(self, why):
                return {"accuracy": 0.0}

            def close(self):
                pass

    Optional members: ``tools``, names of methods that the model may call; ``state()``, which returns what JSON can
    hold, and ``restore(state)``, by which a new object goes on there; ``load(args)``, a classmethod that is called once
    in each process with ``environment.args``.
    """

    def start(self, prompt: Prompt, seed: int) -> Reply | Awaitable[Reply | None] | None:
        """Begin; return the text before the model's first turn."""

    def step(self, turn: ModelTurn) -> Reply | Awaitable[Reply]:
        """Answer the model's turn."""

    def end(self, why: Ended) -> Mapping[str, float] | Reply | Awaitable[Mapping[str, float] | Reply]:
        """Return the scores of an episode that a limit ended; as a reply also a last reward and facts."""

    def close(self) -> Awaitable[None] | None:
        """Let go of everything. Called once, whatever happened."""


# ---------------------------------------------------------------------- what driver and workers say to each other


class Spoken(NamedTuple):
    """A model's turn as a worker gets it, which reads calls in it."""

    number: int
    text: str  # after the thinking, without special tokens
    raw: str  # after the thinking, with special tokens
    token_ids: tuple[int, ...]
    tokens_left: int
    turns_left: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """Ask the environment of one episode. A process that does not hold the episode plays ``past`` again."""

    key: Key
    prompt: Prompt
    seed: int
    past: tuple[Spoken, ...] = ()  # turns that were answered
    turn: Spoken | None = None  # the turn to answer; None: begin, or end
    end: Ended | None = None  # the limit that ended the episode
    state: str | None = None  # JSON of the environment after ``past``
    members: tuple[Key, ...] = ()
    """Score these episodes, which ended, together. They are all of a group that ended; ``key`` is the first of them."""


@dataclass(frozen=True, slots=True)
class Said:
    """A reply as it came from a worker, checked."""

    messages: tuple[dict[str, str], ...] = ()
    done: bool = False
    reward: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    tool_errors: int = 0
    cut: bool = False  # the worker shortened a huge message
    failure: str | None = None  # what the environment raised, where the model is told (``on_error: tell``)
    conversation: Mapping[str, Any] | None = None  # in place of ``messages``


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a question."""

    key: Key
    reply: Said | None = None  # None: an environment without an opening, or a failure; after a limit its scores
    replayed: tuple[Said | None, ...] | None = (
        None  # the opening and the answers to ``past``; None: nothing was replayed
    )
    state: str | None = None
    seconds: float = 0.0
    failure: str | None = None  # "exception: ...", "timeout: ...", "crash: ...", "reply: ..."
    members: tuple[Said, ...] = ()  # scores of ``Question.members``, in their order


NOT_HELD = "crash: a process that held episodes of the group was lost"
"""Failure of a question about a group whose episodes are not all in the process that was asked."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Abilities of an environment."""

    opens: bool  # it may speak before the model
    ends: bool  # it is asked for scores when a limit ends an episode
    restores: bool  # it has ``state`` and ``restore``
    role: str  # in which it answers unless it names another
    tools: tuple[dict[str, Any], ...] = ()  # their JSON schemas
    scores: bool = True  # it rewards or scores its episodes
    compares: bool = False  # it scores the episodes of a group together; each one stays in its process until then


class Players(Protocol):
    """Play episodes: one environment each, here or in other processes."""

    abilities: Abilities

    def ask(self, question: Question) -> None:
        """Queue a question. An episode has one at a time.

        Where an environment compares, the episodes of a group share a process, which keeps them until ``drop``.
        """

    def poll(self, timeout: float | None = None) -> list[Answer]:
        """Return answers. timeout 0: those that are there; None: wait until there is one, unless nothing was asked."""

    def drop(self, key: Key) -> None:
        """Close an episode, if there is one, and forget a question about it."""

    def counters(self) -> Metrics:
        """Return counts since construction: ``replayed`` turns and ``timeouts``."""

    def close(self) -> None: ...


class Speech(Protocol):
    """Write replies as tokens."""

    end_of_turn: str  # text of the special token that ends the model's turn; "" where replies follow any turn
    afresh: bool  # the prompt of each turn is ``written``; False: each turn follows the tokens before it

    def opening(self, messages: Sequence[Mapping[str, str]]) -> IntArray:
        """Return the tokens between a prompt that asks for nothing yet and the model's first turn.

        Args:
            messages: what the environment says first; () says nothing.

        Raises:
            RecipeError, ValueError: the tokenizer or the chat template cannot write them.
        """

    def reply(self, messages: Sequence[Mapping[str, str]], *, closed: bool, ask: bool = True) -> IntArray:
        """Return the tokens that follow a model's turn.

        Args:
            messages: the reply.
            closed: whether the turn ended with its end-of-turn token.
            ask: whether the model speaks after them.

        Raises:
            ValueError: the tokenizer or the chat template cannot write them.
        """

    def written(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> IntArray:
        """Return the tokens of a conversation up to where the model speaks.

        Raises:
            ValueError: the tokenizer or the chat template cannot write it.
        """

    def shorten(self, text: str, limit: int) -> str:
        """Return ``text``, its middle cut out and named if it has more than ``limit`` tokens."""
