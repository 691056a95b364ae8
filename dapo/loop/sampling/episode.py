"""State of an episode: its limits, what is known while it is played, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from dapo.loop.sampling.turn_rows import RowOfTurns
from dapo.types.batch import Prompt, Response, SampleRequest
from dapo.types.enums import FinishReason
from dapo.types.environment import Answer, Question, Spoken


@dataclass(frozen=True, slots=True)
class Limits:
    """Say what bounds an episode, and what happens then."""

    max_turns: int  # of the model
    max_turn_tokens: int | None = None  # None: what is left of the episode
    max_reply_tokens: int = 512  # contents of a reply
    truncates_turns: bool = False  # the limit of turns counts as truncation
    truncates_tokens: bool = False  # a turn that meets its token limit ends the episode
    refuses_long_replies: bool = False  # a long reply is an error; else its middle is cut
    most_tokens: int | None = None  # of a turn and all before it; None: of the episode's prompt and tokens
    ends_on_error: bool = False  # an environment that fails ends its episode; else the response is unscored


@dataclass(slots=True)
class EpisodeState:
    """Hold an episode under way."""

    request: SampleRequest  # as asked for, with the limit of the whole response
    prompt: Prompt
    response: Response  # up to the last turn that ended
    spoken: list[Spoken] = field(default_factory=list)  # turns of the model in it
    finish: FinishReason = FinishReason.STOP  # of the last of them
    question: Question | None = None  # asked, and its answer not in effect
    answer: Answer | None = None
    lines: list[RowOfTurns] = field(default_factory=list)  # its rows so far, where turns have prompts of their own
    due: int | None = None  # engine step at which the answer takes effect; None: the episode is taken back
    ended: str = ""  # by which limit, while its scores are asked for
    last: tuple[Question, Answer] | None = None  # that ended it, while its group is not scored
    held: bool = False  # it ended, and others of its group have not
    losses: int = 0  # of the process that held it when its group was to be scored
