"""Several rewards with weights and names, as one ``Scorer``."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dapo.config.schema import Reward
from dapo.errors import RewardError
from dapo.metrics.names import reward_name_problem
from dapo.rewards import simple
from dapo.rewards.code import START_SECONDS, CodeSettings
from dapo.rewards.function import pickled, runs_in_the_driver
from dapo.rewards.judges import Asked, Hasty, Judge, Outcome, Outcomes, Verifier, ask, make_judge
from dapo.rewards.pool import MEMORY_MIB, WorkerPool
from dapo.rewards.question import as_given
from dapo.rewards.service import ServicePool
from dapo.rewards.task import SIGNED_SUM
from dapo.sandbox.select import SandboxSettings, try_sandbox
from dapo.types.batch import Key, Prompt, Response, Score

ACCURACY = "accuracy"
LOCAL = SandboxSettings()
_TICK = 0.02  # seconds between looks at services while worker processes are waited for
MAX_NAMES = 256  # different names of numbers in a run: each is a metric of its own


@dataclass(slots=True)
class _Pending:
    """One response on its way: the outcomes so far, by index of the reward."""

    key: Key
    source: str
    missing: int
    answer: str | None = None  # what the response answers, as the reward called accuracy reads it
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class CompositeScorer:
    """A ``Scorer`` over the recipe's rewards. Make one with ``build_scorer``.

    Attributes:
        failures: unscored responses by kind of reason: "timeout", "crash", "exception", "not a number", "name",
            "accuracy".
        scored: responses scored so far.
        sandbox: a line that says what runs programs; None: no reward runs any.
        by_group: a reward sees all responses to a prompt.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        workers: int = 1,
        tasks: Iterable[str] | None = None,
        output: Path | None = None,
        memory_mib: int | None = MEMORY_MIB,
        sandbox: SandboxSettings = LOCAL,
    ) -> None:
        """See ``build_scorer``, which also checks."""
        self.failures: Counter[str] = Counter()
        self.scored = 0
        self.sandbox: str | None = None
        self._rewards = list(rewards)
        self.by_group = any(reward.per == "group" for reward in rewards)
        self._inline: dict[int, Judge] = {}
        self._hasty: dict[int, Hasty] = {}  # of those in ``_remote`` that are mostly done at once
        self._remote: dict[int, int] = {}  # index of the reward -> index of the verifier in the pool
        self._told = threading.Condition()  # of the verdicts of services
        self._services: dict[int, ServicePool] = {}  # by index of the reward
        verifiers: list[Verifier] = []
        for index, reward in enumerate(self._rewards):
            if reward.kind == "service":
                self._services[index] = ServicePool(reward, self._told)
                continue
            if reward.kind == "environment":
                continue
            sent = pickled(reward.function or "", reward.name)
            code = _code_settings(reward, sandbox) if reward.kind == "code" else None
            verifier = Verifier(
                reward.kind,
                reward.name,
                reward.function or "",
                reward.pattern,
                reward.tolerance,
                per_group=reward.per == "group",
                pickled=sent,
                code=code,
            )
            stays = runs_in_the_driver(verifier.function, sent) is not None
            ours = reward.kind == "task" and tasks is not None and set(tasks) <= {SIGNED_SUM}
            plain = reward.kind == "last_number" or (reward.kind == "exact" and reward.pattern is None)
            if stays or ours or plain:  # nothing in them can take long
                self._inline[index] = make_judge(verifier, warm=not ours)
            else:
                self._remote[index] = len(verifiers)
                verifiers.append(verifier)
                if reward.kind in ("exact", "regex"):
                    self._hasty[index] = Hasty(verifier)
        self._pool: WorkerPool | None = None
        if verifiers:
            self._pool = WorkerPool(verifiers, workers=workers, output=output, memory_mib=memory_mib)
        self._applicable: dict[str, list[int]] = {}  # indices of the rewards that a source's responses get
        self._names: set[str] = set()
        self._pending: dict[int, _Pending] = {}
        self._groups: dict[int, list[int]] = {}  # by item of a reward that sees its group: tickets of its responses
        self._ready: list[tuple[Key, Score]] = []
        self._next = 0

    def submit(self, key: Key, prompt: Prompt, completion: Response) -> None:
        """Queue one response. Rewards that cannot take long are computed at once, the others go to worker processes.

        Those are sent some at a time, by ``poll`` at the latest. A reward that sees its group takes it for one of one.
        """
        self.submit_group([key], prompt, [completion])

    def submit_group(self, keys: Sequence[Key], prompt: Prompt, completions: Sequence[Response]) -> None:
        """Queue the responses of a group. A reward that sees its group is asked once, the others for each response."""
        applicable = self._applicable.get(prompt.source)
        if applicable is None:
            rewards = enumerate(self._rewards)
            applicable = [i for i, r in rewards if r.sources is None or prompt.source in r.sources]
            self._applicable[prompt.source] = applicable
        tickets = range(self._next, self._next + len(keys))
        self._next += len(keys)
        for ticket, key in zip(tickets, keys, strict=True):
            self._pending[ticket] = _Pending(key, prompt.source, missing=len(applicable))
        for index in applicable:
            reward, read = self._rewards[index], list(completions)
            if reward.kind not in ("function", "environment") and reward.reads not in ("response", "episode"):
                for place, each in enumerate(read):  # nothing within the thinking is an answer
                    read[place] = each if each.answer is None else replace(each, text=each.answer)
            if reward.per == "group":
                item = tickets[0] * len(self._rewards) + index
                self._groups[item] = list(tickets)
                self._ask(item, prompt, read)
                continue
            for ticket, each in zip(tickets, read, strict=True):
                self._ask(ticket * len(self._rewards) + index, prompt, each)
        if not applicable:
            for ticket in tickets:
                self._finish(ticket)

    def _ask(self, item: int, prompt: Prompt, read: Asked) -> None:
        """Ask one reward about a response, or about those of a group."""
        index = item % len(self._rewards)
        reward = self._rewards[index]
        if isinstance(read, Response):
            if reward.kind == "environment":
                self._settle(item, _of_environment(reward, read), None)
                return
            hasty = self._hasty.get(index)
            if hasty is not None and (done := hasty(prompt, read)) is not None:
                self._settle(item, *done)
                return
        inline = self._inline.get(index)
        if inline is not None:
            self._settle(item, *ask(inline, prompt, as_given(read) if reward.kind == "function" else read))
        elif index in self._services:
            self._services[index].submit(item, prompt, read)
        else:
            assert self._pool is not None  # a reward that is not inline has a verifier
            seconds = reward.seconds + (START_SECONDS if reward.kind == "code" else 0.0)
            self._pool.submit(item, self._remote[index], seconds, prompt, read)

    def poll(self, timeout: float | None = None) -> list[tuple[Key, Score]]:
        """Return finished scores, ordered by key. timeout 0: those that are ready; None: wait until one is (or nothing
        is pending).

        Raises:
            RewardError: the user's reward function could never be loaded.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._working or self._asking:
            left = 0.0 if self._ready else None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._pool is not None and self._working:
                tick = _TICK if left is None else min(_TICK, left)
                for done in self._pool.poll(tick if self._asking else left):
                    self._settle(done.item, done.outcome, done.answer)
            self._take_from_services(0.0 if self._working else left)
            # A response that waits for two verifiers is finished by neither alone: ask again while nothing is.
            if self._ready or left == 0.0:
                break
        ready, self._ready = self._ready, []
        return sorted(ready, key=lambda pair: pair[0])

    @property
    def _working(self) -> bool:
        """Return whether worker processes owe verdicts."""
        return self._pool is not None and self._pool.pending > 0

    @property
    def _asking(self) -> bool:
        """Return whether services owe verdicts."""
        return any(service.pending for service in self._services.values())

    def _take_from_services(self, seconds: float | None) -> None:
        """Take the verdicts that services gave; wait up to ``seconds`` for the first one (None: without limit)."""
        if not self._asking:
            return
        with self._told:
            done = [pair for service in self._services.values() for pair in service.take()]
            if not done and seconds != 0.0:
                self._told.wait(seconds)
                done = [pair for service in self._services.values() for pair in service.take()]
        for item, outcome in done:
            self._settle(item, outcome, None)

    @property
    def quick(self) -> bool:
        """No reward takes more than a moment as a rule: a verdict may be waited for as soon as it is asked for."""
        return not self._services and all(self._rewards[i].kind in ("exact", "regex") for i in self._remote)

    def start(self) -> None:
        """Start a worker now, if any reward needs one.

        Raises:
            RewardError: the user's reward function cannot be loaded.
        """
        if self._pool is not None:
            self._pool.start()

    def stats(self) -> dict[str, float]:
        """Counters since construction: scored, unscored, unscored/REASON, worker_restarts, timeouts."""
        counters = {
            "scored": float(self.scored),
            "unscored": float(sum(self.failures.values())),
            "worker_restarts": float(self._pool.losses.restarts if self._pool else 0),
            "timeouts": float(self._pool.losses.timeouts if self._pool else 0),
        }
        counters.update({f"unscored/{kind.replace(' ', '_')}": float(n) for kind, n in self.failures.items()})
        return counters

    def close(self) -> None:
        """End the worker processes. Pending responses are forgotten."""
        if self._pool is not None:
            self._pool.close()
        for service in self._services.values():
            service.close()
        self._pending.clear()
        self._groups.clear()
        self._ready.clear()

    def _settle(self, item: int, outcome: Outcomes, answer: str | None) -> None:
        """Take in a reward's verdict on a response, or those on a group."""
        ticket, index = divmod(item, len(self._rewards))
        tickets = self._groups.pop(item, [ticket])
        outcomes = outcome if isinstance(outcome, list) else [outcome] * len(tickets)
        for ticket, each in zip(tickets, outcomes, strict=True):
            pending = self._pending[ticket]
            pending.outcomes[index] = each
            if self._rewards[index].name == ACCURACY:
                pending.answer = answer
            pending.missing -= 1
            if pending.missing == 0:
                self._finish(ticket)

    def _finish(self, ticket: int) -> None:
        pending = self._pending.pop(ticket)
        score = self._combine(pending)
        if score.reason is None:
            score = self._known_names(score)
        if score.reason is None:
            self.scored += 1
        else:
            self.failures[score.reason.partition(":")[0]] += 1
        self._ready.append((pending.key, score))

    def _known_names(self, score: Score) -> Score:
        """Return the score, unless it brings a run more names than it can have metrics."""
        if score.values.keys() <= self._names:
            return score
        new = score.values.keys() - self._names
        if len(self._names) + len(new) > MAX_NAMES:
            reason = f"name: {min(new)!r} would be one name too many; a run has at most {MAX_NAMES}"
            known = {name: value for name, value in score.values.items() if name not in new}
            return Score(values=known, reason=reason, answer=score.answer)
        self._names |= new
        return score

    def _combine(self, pending: _Pending) -> Score:
        """Weighted sum of all values; unscored when any verifier failed, with what the others said.

        Where several failed, the reason is that of the accuracy, else the first in the recipe's order.
        """
        values: dict[str, float] = {}
        unknown: set[str] = set()  # names of which no value can be told: their reward failed, or two gave one
        reasons: list[str] = []
        total = 0.0
        for index in sorted(pending.outcomes):
            reward, outcome = self._rewards[index], pending.outcomes[index]
            if isinstance(outcome, str):
                own = reward.name == ACCURACY
                unknown.add(reward.name)
                reasons.insert(0 if own else len(reasons), outcome if own else f"{outcome} (reward {reward.name!r})")
                continue
            if values and (twice := sorted(values.keys() & outcome.keys())):
                reasons.append(f"exception: two rewards are called {twice[0]!r}")
                unknown.update(twice)
            values.update(outcome)
            total += reward.weight * outcome[reward.name]
        for name in unknown:
            values.pop(name, None)
        if ACCURACY not in values and not reasons and self._rewards:
            reasons.append(f"accuracy: no reward called accuracy applies to the source {pending.source!r}")
        if not 0.0 <= values.get(ACCURACY, 0.0) <= 1.0:
            theirs = any(each.name == ACCURACY and each.kind == "environment" for each in self._rewards)
            given = any(each.name == ACCURACY and each.kind == "function" for each in self._rewards)
            owner = "environment's reward" if theirs else "function's reward"
            move = f"; call the {owner} otherwise, and add one called accuracy" if theirs or given else ""
            reasons.insert(0, f"accuracy: {values.pop(ACCURACY):g} is not in [0, 1]{move}")
        if reasons:
            return Score(values=values, reason=reasons[0], answer=pending.answer)
        return Score(values=values, reward=total, answer=pending.answer)


def _code_settings(reward: Reward, sandbox: SandboxSettings) -> CodeSettings:
    return CodeSettings(reward.tests, reward.entry_point, reward.partial, reward.seconds, reward.memory_mib, sandbox)


def _of_environment(reward: Reward, completion: Response) -> Outcome:
    """Return what the environment said: its score of this name, else the sum of the rewards of its replies."""
    if completion.ended is None:
        return "exception: no environment took part in this response"
    turns = sum(turn.reward for turn in completion.turns)
    return {reward.name: completion.scores.get(reward.name, turns)}


def _check_reward(reward: Reward) -> None:
    wrong = reward_name_problem(reward.name)
    if wrong is not None:
        raise RewardError(f"a reward is called {reward.name[:100]!r}: the name {wrong}; choose another")
    if (reward.kind == "function") != (reward.function is not None):
        raise RewardError(
            f"reward {reward.name!r}: `kind: function` and `function: package.module:name` belong together, found "
            f"kind {reward.kind!r} and function {reward.function!r}"
        )
    if reward.pattern is not None and reward.kind not in ("exact", "regex", "service"):
        raise RewardError(f"reward {reward.name!r}: `pattern` has no effect with kind {reward.kind!r}; remove it")
    if reward.kind == "regex" and reward.pattern is None:
        raise RewardError("reward kind `regex` needs a `pattern`")
    if reward.kind == "service" and reward.url is None:
        raise RewardError(f"reward {reward.name!r}: `kind: service` needs a `url`")
    if reward.pattern is not None:
        simple.compile_pattern(reward.pattern, reward.kind)


def build_scorer(
    rewards: Sequence[Reward],
    *,
    workers: int = 1,
    sources: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    output: Path | None = None,
    memory_mib: int | None = MEMORY_MIB,
    sandbox: SandboxSettings = LOCAL,
) -> CompositeScorer:
    """Return the scorer of a recipe.

    ``last_number``, ``exact`` without a pattern and signed_sum's own scorer run in the driver: their time grows in
    proportion to the text. So do patterns, for a moment (``hasty``). Everything else (patterns that take longer,
    ``math``, reasoning-gym, the user's functions) runs in worker processes, which start when first needed; with a
    user's function one starts here, so that a function that cannot be loaded is refused before training.

    Args:
        rewards: the recipe's rewards.
        workers: worker processes at most.
        sources: names of all data sources; each must have exactly one reward called ``accuracy``.
        tasks: names of all procedural tasks among the sources; when signed_sum is the only one, reward kind ``task``
            runs in the driver. None: unknown.
        output: file for whatever user code prints; None: it is dropped.
        memory_mib: limit of each worker process in MiB; None: none.
        sandbox: what runs programs of ``kind: code``; it is tried here.

    Raises:
        RewardError: rewards that contradict each other, a bad pattern, a function that cannot be loaded.
        SandboxError: there is no sandbox as the recipe wants it.
    """
    for reward in rewards:
        _check_reward(reward)
    known = None if sources is None else sorted(set(sources))
    for reward in rewards:
        for name in reward.sources or []:
            if known is not None and name not in known:
                raise RewardError(
                    f"reward {reward.name!r} is for the source {name!r}; the sources are {', '.join(known)}"
                )
    for source in [None] if known is None else known:
        names = Counter(r.name for r in rewards if source is None or r.sources is None or source in r.sources)
        where = "" if source is None else f" for the source {source!r}"
        overlapping = source is None and any(reward.sources for reward in rewards)
        if rewards and not names[ACCURACY]:
            raise RewardError(
                f"no reward is called `accuracy`{where}; the keep rule needs one. Found: {', '.join(names)}"
            )
        doubled = [name for name, count in names.items() if count > 1]
        if doubled and not overlapping:
            raise RewardError(f"two rewards are called {doubled[0]!r}{where}; names are unique within a source")
    line = try_sandbox(sandbox) if any(reward.kind == "code" for reward in rewards) else None
    scorer = CompositeScorer(
        rewards, workers=workers, tasks=tasks, output=output, memory_mib=memory_mib, sandbox=sandbox
    )
    scorer.sandbox = line
    if any(reward.kind == "function" for reward in rewards):
        try:
            scorer.start()
        except BaseException:
            scorer.close()
            raise
    return scorer
