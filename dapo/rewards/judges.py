"""Judges of a reward's kind: how an answer is read, judged, and made a vote. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dapo.errors import RewardError
from dapo.hooks import OBJECTS, user_line
from dapo.rewards import last_number, math, simple
from dapo.rewards.code import CodeJudge, CodeSettings, find_program
from dapo.rewards.compared_text import vote_text
from dapo.rewards.function import describe_error, load_function, read_group, read_values
from dapo.rewards.marks import extract_answer
from dapo.rewards.question import Kind
from dapo.rewards.signatures import adapt
from dapo.rewards.simple import TookLong
from dapo.rewards.task import read_answer, task, warm_up
from dapo.sandbox.runs import SandboxError
from dapo.types.batch import Prompt, Response

Outcome = dict[str, float] | str
"""Numbers by name, or why there are none: a kind of failure (``KINDS``), a colon, details."""
Outcomes = Outcome | list[Outcome]
"""Of one response, or of each response of a group; a text stands for all of them."""
Asked = Response | list[Response]
"""What a reward is asked about: a response, or with ``per: group`` those of a group."""
KINDS = ("timeout", "crash", "exception", "not a number", "name", "sandbox", "service")
HOPELESS = "timeout: an equal answer to an equal problem was not judged in time, or ended its worker, before"
MOMENT = 0.02
"""Seconds that a pattern may take in the driver."""
TRIES = 32
"""Moments that a reward may lose in the driver: one that backtracks on everything goes to workers from then on."""
Read = str | None


@dataclass(frozen=True, slots=True)
class Verifier:
    """A reward by its description, which is what travels to a worker."""

    kind: Kind
    name: str
    function: str = ""
    pattern: str | None = None
    tolerance: float = 0.0
    per_group: bool = False  # of a function: it sees all responses to a prompt
    pickled: bytes | None = field(default=None, repr=False)  # a function that was given as an object, by cloudpickle
    code: CodeSettings | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """A reward that can be asked.

    Attributes:
        name: of the reward.
        read: (prompt, response) -> what the verdict depends on beside the gold answer: the answer found, or the whole
            text. Its time grows in proportion to the text. None for a user's function, which may look at anything.
        score: (prompt, response, what was read) -> (a number or a dict of numbers, the answer for majority votes).
        per_prompt: the verdict depends on the prompt's record, not on the gold answer alone.
        function: the user's function, as messages name it; "" for a built-in reward.
    """

    name: str
    read: Callable[[Prompt, Response], Read] | None
    score: Callable[[Prompt, Any, Read], tuple[Any, str | None]]
    per_prompt: bool = False
    function: str = ""

    def digest(self, prompt: Prompt, read: Read) -> str:
        """Equal for two responses whose verdicts are necessarily the same."""
        parts = [self.name, str(read is None), read or "", prompt.answer, prompt.id if self.per_prompt else ""]
        found = hashlib.sha256()
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            found.update(b"%d:" % len(data) + data)
        return found.hexdigest()


def make_judge(verifier: Verifier, seconds: float | None = None, *, warm: bool = True) -> Judge:
    """Make the judge of a description, with its imports done.

    Args:
        verifier: the description.
        seconds: that a pattern may take for a response, or ``TookLong`` is raised; None: as long as it likes.
        warm: import what tasks of reasoning-gym need; False: no problem is of one.

    Raises:
        RewardError: a pattern that is none, or a function that cannot be loaded.
    """
    if verifier.kind == "math":
        math.warm_up()
        return Judge(verifier.name, lambda _, completion: extract_answer(completion.text), _score_math)
    if verifier.kind == "last_number":
        return Judge(verifier.name, lambda _, done: done.text, partial(_score_last_number, verifier.tolerance))
    if verifier.kind == "task":
        if warm:
            warm_up()
        return Judge(verifier.name, lambda prompt, done: read_answer(prompt, done.text), _score_task, per_prompt=True)
    if verifier.kind == "code":
        assert verifier.code is not None
        judged = CodeJudge(verifier.name, verifier.code)
        return Judge(verifier.name, lambda _, done: find_program(done.text), judged.score, per_prompt=True)
    if verifier.kind == "function":
        given = load_function(verifier.function) if verifier.pickled is None else _unpickled(verifier)
        named = verifier.function.removeprefix(f"{OBJECTS}:")
        function = adapt(given, named, verifier.name, verifier.per_group)
        return Judge(verifier.name, None, lambda prompt, asked, _: (function(prompt, asked), None), function=named)
    if verifier.kind == "regex" and verifier.pattern is None:
        raise RewardError("reward kind `regex` needs a `pattern`")
    pattern = None if verifier.pattern is None else simple.compile_pattern(verifier.pattern, verifier.kind)
    score: Callable[..., tuple[Any, str | None]]
    if verifier.kind == "exact":
        score = partial(_score_exact, pattern, seconds)
    else:
        assert pattern is not None
        score = partial(_score_regex, pattern, seconds)
    return Judge(verifier.name, lambda _, completion: completion.text, score)


def _unpickled(verifier: Verifier) -> Callable[..., Any]:
    """In a worker: the function that the driver was given. It was made in the driver, by the user's own program."""
    assert verifier.pickled is not None
    try:
        return pickle.loads(verifier.pickled)  # type: ignore[no-any-return]
    except BaseException as error:  # modules that it imports may raise anything
        raise RewardError(
            f"the reward {verifier.name!r}, a function given from Python, cannot be made again in a worker: "
            f"{describe_error(error)}. Modules that it uses must be installed, or lie in {os.getcwd()}"
        ) from error


def ask(
    judge: Judge,
    prompt: Prompt,
    completion: Asked,
    *,
    hopeless: Container[str] = (),
    begin: Callable[[str], None] | None = None,
) -> tuple[Outcomes, str | None]:
    """One verdict and the answer for votes. Whatever a judge does short of ending the process becomes an outcome.

    Args:
        judge: whom to ask.
        prompt: with the gold answer.
        completion: the response, or those of a group.
        hopeless: digests of verdicts that were not found in time; they are not tried again.
        begin: called with the digest before the part that may take long, unless the judge has none. None: the judge is
            trusted to be quick, and there are no digests.

    Raises:
        TookLong: a pattern did, where the judge has a limit for that.
    """
    try:
        read = None
        if judge.read is not None and not isinstance(completion, list):
            read = judge.read(prompt, completion)
            digest = judge.digest(prompt, read) if begin is not None else ""
            if digest in hopeless:
                return HOPELESS, None
            if begin is not None:
                begin(digest)
        result, vote = judge.score(prompt, completion, read)
    except simple.TookLong:
        raise
    except SandboxError as error:
        return f"sandbox: {error}"[:400], None
    except BaseException as error:  # SystemExit and KeyboardInterrupt of user code too
        where = f" (raised by {judge.function}{user_line(error)})" if judge.function else ""
        return f"exception: {describe_error(error)}{where}", None
    returned = f" (returned by {judge.function})" if judge.function else ""
    try:
        if not isinstance(completion, list):
            return read_values(result, judge.name), vote
        verdicts = read_group(result, judge.name, len(completion))
        return [f"{each}{returned}" if isinstance(each, str) else each for each in verdicts], None
    except Exception as error:
        said = str(error)[:400] if isinstance(error, ValueError) else f"exception: {describe_error(error)}"
        return f"{said}{returned}", None


def _score_math(prompt: Prompt, completion: Response, read: Read) -> tuple[float, str | None]:
    return math.judge_answer(read, prompt.answer), math.vote(read)


def _score_task(prompt: Prompt, completion: Response, read: Read) -> tuple[float, str | None]:
    return task(prompt, completion), None if read is None else vote_text(read)


def _score_last_number(tolerance: float, prompt: Prompt, completion: Response, read: Read) -> tuple[float, str | None]:
    found = last_number.read_last_number(completion.text)
    return last_number.judge(found, prompt.answer, tolerance), last_number.vote(found)


def _score_exact(
    pattern: Any, seconds: float | None, prompt: Prompt, completion: Response, _: Read
) -> tuple[float, str | None]:
    answer = simple.find_answer(completion.text, pattern, seconds)
    return simple.equals(answer, prompt.answer), simple.vote(answer)


def _score_regex(
    pattern: Any, seconds: float | None, prompt: Prompt, completion: Response, _: Read
) -> tuple[float, str | None]:
    return float(simple.found_in(completion.text, pattern, seconds)), None


class Hasty:
    """Asks a reward of a pattern in the driver, for a moment: nearly all are done in microseconds.

    What takes longer, because the pattern backtracks, is asked again in a worker, where the reward's time limit rules.
    The verdict is the same in both places.

    Args:
        verifier: of kind ``exact`` or ``regex``, with a pattern.
        moment: seconds for one response.
    """

    def __init__(self, verifier: Verifier, moment: float = MOMENT) -> None:
        self._judge: Judge = make_judge(verifier, moment)
        self._tries = TRIES

    def __call__(self, prompt: Prompt, completion: Response) -> tuple[Outcomes, str | None] | None:
        """Verdict and answer for votes; None: it takes too long here."""
        if not self._tries:
            return None
        try:
            return ask(self._judge, prompt, completion)
        except TookLong:
            self._tries -= 1
            return None
