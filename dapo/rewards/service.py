"""Reward ``service``: a judge or reward model behind HTTP, asked in batches from a thread of the driver.

Questions wait in a queue; up to ``concurrency`` requests are under way. Equal questions are asked once. A service that
is away (no connection, no answer in time, 429, 502, 503, 504) is asked again, with growing pauses, until this question
or all of them went unanswered for ``outage_limit`` seconds; later ones are then asked once each. A service that answers
with another error or with nonsense is asked ``retries`` times more; a batch is then asked question by question, so that
one question cannot cost the others their scores.

The driver waits for nothing: ``submit`` and ``poll`` look at what the requests left. Replies are read in threads of
their own, in limited time: a pattern may backtrack and a parser may hang.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dapo.config.schema import Reward
from dapo.errors import RewardError
from dapo.http import Background, Client, HttpError, in_a_thread, read_key, without_query
from dapo.rewards.function import describe, describe_error, load_function, read_group, read_values
from dapo.rewards.judges import Asked, Outcomes
from dapo.rewards.simple import compile_pattern
from dapo.types.batch import Prompt, Response

log = logging.getLogger(__name__)

AWAY = (408, 425, 429, 502, 503, 504)
"""Answers that say: not now."""
SCORE = (
    r"[Ss]core:?\s*+\**+\s*+"
    r"(-?(?:\d++(?:\.\d++)?+|\.\d++)(?:[eE][-+]?\d++)?+(?:\s*+[/%]|,\d|\s++(?:out\s++)?of\b)?)"
)
"""How a reply of ``api: openai`` says its score, where the recipe does not say it. It takes in what makes the number
another one (``1/10``, ``50%``), so that the score is then none. It gives nothing back, so its time grows with the
reply's length alone."""
_SHORTEST, _LONGEST = 0.5, 30.0  # seconds of a pause
_READING = 10.0  # seconds for the replies of a request, as rewards with a pattern have by default
_ENDING = 2.0  # seconds for requests that are taken back
_KEPT = 65_536  # verdicts that are remembered, for equal questions
_TOLD = 30.0  # seconds without the service after which that is said, and again at each doubling

Question = dict[str, Any]


class _Nonsense(Exception):
    """An answer of another form than the documented one."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A question on its way."""

    digest: str
    question: Question
    members: int | None  # responses of a group; None: it is about one response
    items: list[int]  # that wait for it


@dataclass(slots=True)
class _Batch:
    """Questions of one request, and how often it failed."""

    asked: list[_Asked]
    failures: int = 0
    away_since: float | None = None
    pauses: int = 0


class ServicePool:
    """Asks a service for the scores of responses."""

    def __init__(self, reward: Reward, told: threading.Condition) -> None:
        """Describe a pool; nothing is asked before the first question.

        Args:
            reward: of ``kind: service``.
            told: notified of each score.

        Raises:
            RewardError: the key's variable is not set, or the parser cannot be loaded.
        """
        assert reward.url is not None
        self._reward, self._url = reward, reward.url
        self._client = Client(_key(reward))
        self._background: Background | None = None
        forms: dict[str, Callable[[Reward], _Form]] = {"dapo": _Own, "openai": _Chat, "classify": _Classify}
        self._form = forms[reward.api](reward)
        self._size = 1 if reward.api == "openai" else reward.batch
        self._told = told
        self._waiting: deque[_Asked] = deque()
        self._again: deque[_Batch] = deque()  # halves of batches that failed
        self._open: dict[str, _Asked] = {}
        self._known: dict[str, Outcomes] = {}
        self._done: list[tuple[int, Outcomes]] = []
        self._pending = 0
        self._tasks: set[asyncio.Task[None]] = set()  # a request each
        self._away_since: float | None = None  # no request was answered since
        self._tell_at = _TOLD
        self._random = random.Random(0)  # spreads pauses; no result depends on it

    @property
    def pending(self) -> int:
        """Items submitted and not yet returned by ``take``."""
        return self._pending

    def submit(self, item: int, prompt: Prompt, completion: Asked) -> None:
        """Queue a response or a group. A question that was answered, or is being asked, is not asked again."""
        members = None
        if isinstance(completion, Response):
            question = self._form.question(prompt, completion.text)
        else:
            members = len(completion)
            question = self._form.of_group(prompt, [each.text for each in completion])
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        with self._told:
            self._pending += 1
            if digest in self._known:
                self._done.append((item, self._known[digest]))
                self._told.notify_all()
                return
            if digest in self._open:
                self._open[digest].items.append(item)
                return
            asked = self._open[digest] = _Asked(digest, question, members, [item])
            self._waiting.append(asked)
        if self._background is None:
            self._background = Background("judge")
        self._background.do_soon(self._fill)

    def take(self) -> list[tuple[int, Outcomes]]:
        """Return the items that have a verdict; the caller holds ``told``."""
        done, self._done = self._done, []
        self._pending -= len(done)
        return done

    def close(self) -> None:
        """End the requests under way, and forget what is pending."""
        if self._background is not None and not self._background.closed:
            self._background.call(self._end())
            self._background.stop()

    # ------------------------------------------------------------------ in the other thread

    async def _end(self) -> None:
        self._waiting.clear()
        self._again.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING)
        await self._client.close()

    def _fill(self) -> None:
        """Begin requests for what waits, up to ``concurrency``."""
        while len(self._tasks) < self._reward.concurrency and (batch := self._next()) is not None:
            task = asyncio.get_running_loop().create_task(self._serve(batch))
            self._tasks.add(task)
            task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._fill()

    async def _serve(self, batch: _Batch) -> None:
        try:
            await self._ask(batch)
        except Exception as error:  # a mistake of ours: no response waits for ever
            self._settle(batch, [f"service: {describe_error(error)}"] * len(batch.asked))

    def _next(self) -> _Batch | None:
        """Return the next batch; None: nothing waits."""
        with self._told:
            if self._again:
                return self._again.popleft()
            asked = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            return _Batch(asked) if asked else None

    async def _ask(self, batch: _Batch) -> None:
        """Ask until there is an answer, or no patience left."""
        while True:
            try:
                url, body = self._form.request(self._url, [each.question for each in batch.asked])
                answer = await self._client.post(url, body, self._reward.seconds)
                self._answered()
                outcomes = await self._read(answer, batch)
            except HttpError as error:
                if error.status is not None and error.status not in AWAY:
                    self._answered()
                    if error.status < 500:
                        self._settle(batch, [f"service: {error}"[:400]] * len(batch.asked))
                        return
                    if not await self._fails(batch, str(error)):
                        return
                elif not await self._is_away(batch, str(error), error.wait):
                    return
            except _Nonsense as error:
                if not await self._fails(batch, str(error)):
                    return
            else:
                self._settle(batch, outcomes)
                return

    async def _read(self, answer: bytes, batch: _Batch) -> list[Any]:
        """Return what an answer says, read outside of this thread, which all requests share."""
        members = [asked.members for asked in batch.asked]
        try:
            return await in_a_thread(lambda: self._form.read(_json(answer), members), seconds=_READING)
        except TimeoutError:
            how = "parser" if self._reward.parser else "pattern"
            why = f"timeout: the {how} did not read the reply within {_READING:g} s"
            return [why] * len(members)

    def _answered(self) -> None:
        """Take note that the service is there."""
        with self._told:
            self._away_since, self._tell_at = None, _TOLD

    async def _fails(self, batch: _Batch, why: str) -> bool:
        """Take note of an answer that was none; False: the batch is not asked again as it is."""
        batch.failures += 1
        batch.away_since = None
        if batch.failures <= self._reward.retries:
            await self._pause(batch, None)
            return True
        if len(batch.asked) == 1:
            self._settle(batch, [f"service: {why}"[:400]])
            return False
        with self._told:
            self._again.extend(_Batch([each]) for each in batch.asked)
        return False

    async def _is_away(self, batch: _Batch, why: str, wait: float | None) -> bool:
        """Take note of a service that is away; False: it was for too long."""
        now = time.monotonic()
        batch.away_since = now if batch.away_since is None else batch.away_since
        with self._told:
            self._away_since = now if self._away_since is None else self._away_since
            away = now - min(batch.away_since, self._away_since)
        if away >= self._reward.outage_limit:
            self._settle(batch, [f"service: away for {away:.0f} s: {why}"[:400]] * len(batch.asked))
            return False
        with self._told:
            tell, self._tell_at = away >= self._tell_at, 2 * away if away >= self._tell_at else self._tell_at
        if tell:
            log.warning(
                "the service of the reward %r has been away for %.0f s (%s); it is waited for up to %.0f s "
                "(rewards.outage_limit), then its responses are unscored",
                self._reward.name,
                away,
                why,
                self._reward.outage_limit,
            )
        await self._pause(batch, wait, self._reward.outage_limit - away)
        return True

    async def _pause(self, batch: _Batch, seconds: float | None, most: float = _LONGEST) -> None:
        """Wait before the next try: ``seconds``, or twice as long as before, and at most ``most`` seconds."""
        if seconds is None:
            seconds = min(_LONGEST, _SHORTEST * 2 ** min(batch.pauses, 10)) * self._random.uniform(0.5, 1.0)
        batch.pauses += 1
        await asyncio.sleep(min(seconds, most))

    def _settle(self, batch: _Batch, outcomes: Sequence[Any]) -> None:
        """Hand out the verdicts; only scores are remembered, a failure may be another's tomorrow."""
        with self._told:
            for asked, said in zip(batch.asked, outcomes, strict=True):
                outcome = _outcome(said, self._reward.name, asked.members)
                if not isinstance(outcome, str) and not any(isinstance(each, str) for each in outcome if asked.members):
                    if len(self._known) >= _KEPT:
                        del self._known[next(iter(self._known))]
                    self._known[asked.digest] = outcome
                self._open.pop(asked.digest, None)
                self._done += [(item, outcome) for item in asked.items]
            self._told.notify_all()


def _key(reward: Reward) -> str | None:
    if reward.api_key_variable is None:
        return None
    try:
        return read_key(reward.api_key_variable, "api_key_variable", f"the service {without_query(reward.url or '')}")
    except ValueError as error:
        raise RewardError(f"reward {reward.name!r}: {error}") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Nonsense(f"the answer is no JSON: {describe_error(error)}") from None


def _outcome(said: Any, name: str, members: int | None) -> Outcomes:
    """Return a verdict's numbers, for each response of a group that has so many ``members``, or why there are none."""
    if isinstance(said, str):
        return said
    try:
        return read_values(said, name) if members is None else [*read_group(said, name, members)]
    except ValueError as error:
        return str(error)[:400]


# ------------------------------------------------------------------ forms of questions and answers


class _Form(ABC):
    """Form of requests and answers."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    @abstractmethod
    def question(self, prompt: Prompt, response: str) -> Question:
        """Return all that the score depends on: equal questions have equal scores."""

    def of_group(self, prompt: Prompt, responses: Sequence[str]) -> Question:
        """Return the same of all responses to a prompt.

        Raises:
            RewardError: this form asks about one response.
        """
        raise RewardError(f"reward {self._reward.name!r}: this api judges one response; set per: response")

    @abstractmethod
    def request(self, url: str, questions: Sequence[Question]) -> tuple[str, Any]:
        """Return the address and the body of a request."""

    @abstractmethod
    def read(self, answer: Any, members: Sequence[int | None]) -> list[Any]:
        """Return a score for each question: a number, a dict of numbers, a list of them, or a failure's text.

        Args:
            answer: of the service.
            members: for each question the responses of its group; None: it is about one response.

        Raises:
            _Nonsense: the answer has another form.
        """

    def _text(self, prompt: Prompt, **responses: str) -> str:
        template = self._reward.template or "{prompt}{response}"
        return template.format(problem=prompt.problem, prompt=prompt.text, answer=prompt.answer, **responses)


class _Own(_Form):
    """``api: dapo``: questions and scores of a batch, in one order."""

    def question(self, prompt: Prompt, response: str) -> Question:
        return {"problem": prompt.problem, "prompt": prompt.text, "response": response, "answer": prompt.answer}

    def of_group(self, prompt: Prompt, responses: Sequence[str]) -> Question:
        about = {"problem": prompt.problem, "prompt": prompt.text, "answer": prompt.answer}
        return about | {"responses": list(responses)}

    def request(self, url: str, questions: Sequence[Question]) -> tuple[str, Any]:
        return url, {"reward": self._reward.name, "questions": list(questions)}

    def read(self, answer: Any, members: Sequence[int | None]) -> list[Any]:
        scores = answer.get("scores") if isinstance(answer, dict) else None
        if not isinstance(scores, list) or len(scores) != len(members):
            what = "scores" if members[0] is None else "lists of scores"
            raise _Nonsense(f"expected {{scores: [...]}} with {len(members)} {what}, found {describe(answer)}")
        return [
            f"service: {each['error']}"[:400] if isinstance(each, dict) and isinstance(each.get("error"), str) else each
            for each in (_no_text(score) for score in scores)
        ]


class _Chat(_Form):
    """``api: openai``: a chat completion for each question, whose reply holds the score."""

    def __init__(self, reward: Reward) -> None:
        super().__init__(reward)
        self._pattern = compile_pattern(reward.pattern or SCORE, "service")
        self._parser: Callable[[str], Any] | None = None if reward.parser is None else load_function(reward.parser)

    def question(self, prompt: Prompt, response: str) -> Question:
        return {"text": self._text(prompt, response=response)}

    def of_group(self, prompt: Prompt, responses: Sequence[str]) -> Question:
        numbered = [f"Response {number}:\n{response}" for number, response in enumerate(responses, 1)]
        return {"text": self._text(prompt, responses="\n\n".join(numbered))}

    def request(self, url: str, questions: Sequence[Question]) -> tuple[str, Any]:
        (question,) = questions
        messages = [{"role": "user", "content": question["text"]}]
        body = {"model": self._reward.model, "messages": messages, "temperature": 0.0} | self._reward.options
        return _below(url, "/v1/chat/completions"), body

    def read(self, answer: Any, members: Sequence[int | None]) -> list[Any]:
        try:
            reply = answer["choices"][0]["message"]["content"]
        except (TypeError, KeyError, IndexError):
            raise _Nonsense(f"expected a chat completion, found {describe(answer)}") from None
        if not isinstance(reply, str):
            raise _Nonsense(f"the reply is no text: {describe(reply)}")
        if self._parser is not None:
            try:
                return [_no_text(self._parser(reply))]
            except Exception as error:
                return [f"exception: {describe_error(error)} (raised by {self._reward.parser})"]
        found = self._pattern.findall(reply, timeout=_READING)
        if not found:
            raise _Nonsense(f"the reply has no score by {self._pattern.pattern!r}: {reply[-80:]!r}")
        texts = [each if isinstance(each, str) else each[0] for each in found]
        if members[0] is None:
            return [_to_number(texts[-1])]
        if len(texts) != members[0]:
            raise _Nonsense(f"the reply has {len(texts)} scores by {self._pattern.pattern!r}, expected {members[0]}")
        return [[_to_number(text) for text in texts]]


class _Classify(_Form):
    """``api: classify``: texts in, probabilities of labels out; the score is the last label's."""

    def question(self, prompt: Prompt, response: str) -> Question:
        return {"text": self._text(prompt, response=response)}

    def request(self, url: str, questions: Sequence[Question]) -> tuple[str, Any]:
        texts = [question["text"] for question in questions]
        return _below(url, "/classify"), {"model": self._reward.model, "input": texts} | self._reward.options

    def read(self, answer: Any, members: Sequence[int | None]) -> list[Any]:
        count = len(members)
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            scores = [row["probs"][-1] for row in rows]
        except (TypeError, KeyError, IndexError):
            raise _Nonsense(f"expected {{data: [{{index, probs}}]}}, found {describe(answer)}") from None
        if [row["index"] for row in rows] != list(range(count)):
            raise _Nonsense(f"expected one row for each of {count} texts, found {len(rows)}")
        return [_no_text(score) for score in scores]


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _Nonsense(f"what the pattern found is no number: {text[:80]!r}") from None


def _below(url: str, path: str) -> str:
    """Return the address of an interface, the query as it was; a url that names it already stays."""
    parts = urlsplit(url)
    base = parts.path.rstrip("/")
    return parts._replace(path=base if base.endswith(path) else base.removesuffix("/v1") + path).geturl()


def _no_text(score: Any) -> Any:
    """Return a score that is a text as something that is surely no failure's text."""
    return [score] if isinstance(score, str) else score
