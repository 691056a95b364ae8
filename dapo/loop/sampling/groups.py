"""Follow a group from its dispatch to its use: while it is open, while it is scored, and when a batch is taken.

``OpenGroup`` is a group on its way, ``Scores`` decides when its scores take effect, ``divide``, ``expired`` and
``copies`` say which kept groups train, wait, leave or are used twice.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.config.schema import DynamicSampling
from dapo.errors import RewardError
from dapo.loop.sampling.account import Account
from dapo.loop.sampling.rollouts import Rollouts
from dapo.metrics.phases import Phases
from dapo.types.batch import Group, Key, Prompt, Response, SampleRequest, SamplingParams, Score
from dapo.types.codec import from_tree, to_tree
from dapo.types.enums import Disposition
from dapo.types.seeds import COPIES, TRAINING, derive_seed, derive_seeds


@dataclass(slots=True)
class OpenGroup:
    """Hold a dispatched group that is not finished; the engine continues the responses that go on."""

    id: int
    prompt: Prompt
    born: int  # the training step whose weights were the engine's when it was dispatched
    completions_G: list[Response]
    scores_G: list[Score | None] = field(default_factory=list)
    unscored: int = field(init=False)  # responses without a score
    uncounted: dict[int, int] = field(init=False, default_factory=dict)
    """Tokens of a prefix, by response, that count as generated when it ends: a stop came in the middle of a step."""

    def __post_init__(self) -> None:
        self.unscored = sum(score is None for score in self.scores_G)

    def scored(self, index: int, score: Score) -> bool:
        """Take in a response's score. True when it was the last one missing."""
        self.scores_G[index] = score
        self.unscored -= 1
        return self.unscored == 0

    @classmethod
    def new(cls, number: int, prompt: Prompt, born: int, size: int) -> OpenGroup:
        """Make a group that is about to be dispatched."""
        return cls(number, prompt, born, [Response.empty()] * size, [None] * size)

    def tokens(self) -> int:
        """Count the sampled tokens held here; those that still decode are not known before the response ends."""
        held = sum(response.model_tokens for response in self.completions_G)
        return held - sum(self.uncounted.get(key.sample, 0) for key in self.missing())

    def interrupted(self, response: Response) -> None:
        """Take in what there is of a response that the engine gave back."""
        self.completions_G[response.key.sample] = response
        self.uncounted.pop(response.key.sample, None)

    def missing(self) -> list[Key]:
        """Return the keys of the responses that did not end yet."""
        return [Key("train", self.id, index) for index, each in enumerate(self.completions_G) if each.finish is None]

    def requests(self, sampling: SamplingParams, run_seed: int) -> list[SampleRequest]:
        """Return requests for the responses that did not end yet."""
        seeds = derive_seeds(run_seed, TRAINING, self.id, count=len(self.completions_G))
        return [
            SampleRequest(
                key=key,
                prompt_ids=self.prompt.token_ids,
                sampling=sampling,
                seed=seeds[key.sample],
                prefix=self.completions_G[key.sample] if len(self.completions_G[key.sample]) else None,
                priority=self.id,
            )
            for key in self.missing()
        ]

    def unscored_completions(self) -> list[tuple[Key, Response]]:
        """Return the responses that ended and have no score yet."""
        return [
            (Key("train", self.id, index), completion)
            for index, completion in enumerate(self.completions_G)
            if completion.finish is not None and self.scores_G[index] is None
        ]

    def close(self) -> Group:
        """Make the finished group."""
        scores = [s for s in self.scores_G if s is not None]
        return Group(id=self.id, prompt=self.prompt, completions_G=self.completions_G, scores_G=scores, born=self.born)


class Scores:
    """Hand training's responses to the verifiers and give their scores back group by group.

    A score takes effect a fixed number of engine steps after its response ended, or later: with the last score of its
    group, since nothing depends on a group that is not whole. The collector then waits for a late score, so the speed
    of a verifier changes nothing. Where the wall clock decides anyway (generation beside learning), a group takes
    effect when all of its scores are there, whatever the engine's clock says: an engine that has nothing to do takes no
    further step. The collector does not wait then, so a slow verifier never stops an engine.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        lag: int,
        phases: Phases,
        pulse: Callable[[], None] = lambda: None,
        *,
        waits: bool = True,
    ) -> None:
        """Begin without responses.

        Args:
            rollouts: asks the verifiers.
            lag: engine steps between the end of a response and the earliest effect of its score; without ``waits`` no
                engine step decides.
            phases: waiting for a score is the phase ``score``.
            pulse: called whenever a score arrived that ``due`` waited for.
            waits: whether ``due`` waits for a late score.
        """
        self.rollouts, self.lag, self.phases, self.pulse, self.waits = rollouts, lag, phases, pulse, waits
        self._ended: deque[tuple[int, Key]] = deque()  # (tick at which the score may take effect, key)
        self._due: dict[int, list[Key]] = {}  # those of groups that are not whole, by group
        self._arrived: dict[Key, Score] = {}
        self._asked: set[Key] = set()  # handed over, and not yet in effect
        self.waiting = 0  # responses that were handed over and whose score has not arrived

    def submit(self, group: OpenGroup, ended: Sequence[tuple[Key, Response]], tick: int) -> None:
        """Ask for the scores of responses of a group that ended at ``tick`` or before, unless they were asked for.

        Verifiers that see whole groups are asked about all of them once no response of the group is missing.
        """
        if self.rollouts.by_group:
            ended = [] if group.missing() else group.unscored_completions()
        new = [(key, response) for key, response in ended if key not in self._asked]
        self.rollouts.judge(group.prompt, new)
        self.waiting += len(new)
        for key, _ in new:
            self._asked.add(key)
            self._ended.append((tick + self.lag, key))

    def due(self, until: int | None, missing: Callable[[int], int]) -> Iterator[tuple[Key, Score]]:
        """Yield the scores that take effect up to tick ``until``; wait for a late one.

        A group's scores come together, in the order in which its responses ended. Groups come in the order in which
        their last responses ended.

        Args:
            until: the engine's clock, which decides only where a late score is waited for; None: every score that was
                asked for, also of groups that are not whole.
            missing: for the id of a group, how many of its responses have no score yet.

        Raises:
            RewardError: a score never came back.
        """
        self._arrived_now(0)
        while self._ended and (until is None or not self.waits or self._ended[0][0] <= until):
            _, key = self._ended[0]
            due = [*self._due.get(key.group, ()), key]
            whole = len(due) == missing(key.group) and (self.waits or until is None)
            if whole:
                self._wait_for(due)
            self._ended.popleft()
            self._due[key.group] = due
            if whole:
                yield from self._scores(self._due.pop(key.group))
        for group in [] if self.waits or until is None else list(self._due):
            keys = self._due[group]
            if len(keys) == missing(group) and all(key in self._arrived for key in keys):
                yield from self._scores(self._due.pop(group))
        if until is None:
            self._wait_for([key for keys in self._due.values() for key in keys])
            for group in list(self._due):
                yield from self._scores(self._due.pop(group))

    def _scores(self, keys: list[Key]) -> Iterator[tuple[Key, Score]]:
        for key in keys:
            self._asked.discard(key)
            yield key, self._arrived.pop(key)

    def wait(self, seconds: float | None) -> None:
        """Wait for a score, where nothing else is to be done.

        Args:
            seconds: at most; None: until one arrives.

        Raises:
            RewardError: with None, none of the scores will come.
        """
        if not self._arrived_now(seconds) and self.waiting and seconds is None:
            raise RewardError(
                f"the scores of {self.waiting} responses never came back: the scorer says that it owes none"
            )

    def state(self, tick: int) -> dict[str, Any]:
        """Return what was asked and is not in effect, in order, at ``tick`` of the engine's clock."""
        self._arrived_now(0)
        return {
            "ended": [[at - tick, *key] for at, key in self._ended],
            "due": [list(key) for keys in self._due.values() for key in keys],
            "arrived": [[list(key), to_tree(score)] for key, score in self._arrived.items()],
        }

    def load(self, state: Mapping[str, Any], tick: int, groups: Mapping[int, OpenGroup]) -> None:
        """Go on from ``state`` at ``tick`` of this engine's clock; ask again for what had not arrived."""
        self._ended = deque((at + tick, Key(*key)) for at, *key in state["ended"])
        for key in (Key(*each) for each in state["due"]):
            self._due.setdefault(key.group, []).append(key)
        self._arrived = {Key(*key): from_tree(Score, tree) for key, tree in state["arrived"]}
        self._asked = {key for _, key in self._ended} | {key for keys in self._due.values() for key in keys}
        late = {key.group for key in self._asked - self._arrived.keys()}
        if self.rollouts.by_group:  # one late score needs all responses of its group
            self._arrived = {key: score for key, score in self._arrived.items() if key.group not in late}
        again = sorted(self._asked - self._arrived.keys())
        for group in (groups[number] for number in sorted(late)):
            asked = [(key, group.completions_G[key.sample]) for key in again if key.group == group.id]
            self.rollouts.judge(group.prompt, asked)
            self.waiting += len(asked)

    def held(self) -> tuple[int, int | None]:
        """Count the scores that arrived and are not in effect; return the engine step of the first that has one."""
        return len(self._asked) - self.waiting, self._ended[0][0] if self._ended and self.waits else None

    def _wait_for(self, keys: Sequence[Key]) -> None:
        """Wait for scores before any of them takes effect: an exception in the wait leaves everything as it was."""
        for key in keys:
            while key not in self._arrived:
                if not self._arrived_now(None):
                    raise RewardError(f"the score of response {key.sample} of group {key.group} never came back")
                self.pulse()

    def _arrived_now(self, timeout: float | None) -> bool:
        """Take in the scores that are there (None: wait for one); the verifiers go on with the others."""
        if not self.waiting:
            return False
        with self.phases("score"):
            scores = self.rollouts.scores("train", timeout)
        self._arrived.update(scores)
        self.waiting -= len(scores)
        return bool(scores)


# ---------------------------------------------------------------------- what becomes of kept groups


def divide(
    kept: Sequence[Group], prompts_per_step: int, settings: DynamicSampling, account: Account
) -> tuple[list[Group], list[Group]]:
    """Divide kept groups into the oldest P, which train, and those that are carried; book each on the account.

    With ``surplus: discard`` no group is carried.
    """
    ordered = sorted(kept, key=lambda group: group.id)  # in order of dispatch
    batch, rest = ordered[:prompts_per_step], ordered[prompts_per_step:]
    for group in batch:
        if group.disposition is not Disposition.FILLED:
            group.disposition = Disposition.TRAINED
            account.disposed(group, "trained")
    carried = settings.surplus == "carry"
    for group in rest:
        group.disposition = Disposition.CARRIED if carried else Disposition.DISCARDED
        account.disposed(group, None if carried else "discarded")
    return batch, rest if carried else []


def expired(kept: Sequence[Group], step: int, max_age: int, account: Account) -> list[Group]:
    """Return the kept groups that would be too old when they train in ``step``; book them as expired."""
    old = [group for group in kept if step - group.born > max_age]
    for group in old:
        group.disposition = Disposition.EXPIRED
        account.disposed(group, "expired")
    return old


def copies(batch: Sequence[Group], prompts_per_step: int, *, first_id: int, seed: tuple[int, int]) -> list[Group]:
    """Copy groups in random order until ``batch`` has ``prompts_per_step``; none is copied twice before all are once.

    This is mode ``replace``, as in SkyRL. A copy is a group of its own (ids from ``first_id`` on), so that mean and
    standard deviation remain those of G responses.

    Args:
        batch: the kept groups.
        prompts_per_step: P.
        first_id: id of the first copy.
        seed: (run seed, step).
    """
    missing = prompts_per_step - len(batch) if batch else 0
    made: list[Group] = []
    for turn in range(-(-missing // max(1, len(batch)))):
        order = sorted(batch, key=lambda group: derive_seed(seed[0], COPIES, seed[1], turn, group.id))
        for group in order[: missing - len(made)]:
            made.append(dataclasses.replace(group, id=first_id + len(made), disposition=Disposition.COPIED))
    return made
