"""Follow a group from its dispatch to its use: while it is open, while it is scored, and when a batch is taken.

``OpenGroup`` is a group on its way, ``Scores`` decides when its scores take effect, ``divide``, ``expired`` and
``copies`` say which kept groups train, wait, leave or are used twice. The last part turns groups into plain trees of
numbers, strings and arrays, for checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.config.schema import DynamicSampling
from dapo.errors import RewardError
from dapo.loop.sampling.account import Account
from dapo.loop.sampling.rollouts import Rollouts
from dapo.metrics.phases import Phases
from dapo.types.batch import Group, Key, Prompt, Response, SampleRequest, SamplingParams, Score, Turn
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.seeds import COPIES, TRAINING, derive_seed, derive_seeds

Tree = dict[str, Any]


@dataclass(slots=True)
class OpenGroup:
    """Hold a dispatched group that is not finished; the engine continues the responses that go on."""

    id: int
    prompt: Prompt
    born: int  # the training step whose weights were the engine's when it was dispatched
    completions_G: list[Response]
    scores_G: list[Score | None] = field(default_factory=list)
    unscored: int = field(init=False)  # responses without a score

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
        return sum(response.model_tokens for response in self.completions_G)

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

    def submit(self, key: Key, prompt: Prompt, response: Response, tick: int) -> None:
        """Ask for the score of a response that ended at ``tick``, unless it was asked for before."""
        if key in self._asked:
            return
        self._asked.add(key)
        self.rollouts.judge(key, prompt, response)
        self._ended.append((tick + self.lag, key))
        self.waiting += 1

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
            _, key = self._ended.popleft()
            self._due.setdefault(key.group, []).append(key)
            if len(self._due[key.group]) == missing(key.group) and (self.waits or until is None):
                yield from self._scores(self._due.pop(key.group))
        for group in [] if self.waits or until is None else list(self._due):
            keys = self._due[group]
            if len(keys) == missing(group) and all(key in self._arrived for key in keys):
                yield from self._scores(self._due.pop(group))
        if until is None:
            due, self._due = self._due, {}
            for keys in due.values():
                yield from self._scores(keys)

    def _scores(self, keys: list[Key]) -> Iterator[tuple[Key, Score]]:
        for key in keys:
            if key not in self._arrived:
                self._wait_for(key)
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

    def held(self) -> tuple[int, int | None]:
        """Count the scores that arrived and are not in effect; return the engine step of the first that has one."""
        return len(self._asked) - self.waiting, self._ended[0][0] if self._ended and self.waits else None

    def _wait_for(self, key: Key) -> None:
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


# ---------------------------------------------------------------------- trees for checkpoints


def prompt_state(prompt: Prompt) -> Tree:
    return {
        "id": prompt.id,
        "text": prompt.text,
        "token_ids": prompt.token_ids,
        "problem": prompt.problem,
        "answer": prompt.answer,
        "source": prompt.source,
        "extra": dict(prompt.extra),
        **({} if prompt.chat is None else {"chat": dict(prompt.chat)}),
    }


def load_prompt(state: Tree) -> Prompt:
    return Prompt(**state)


def completion_state(completion: Response) -> Tree:
    return {
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "versions": completion.versions,
        "finish": None if completion.finish is None else completion.finish.value,
        "text": completion.text,
        "generated": completion.generated,
        "extra": dict(completion.extra),
        **({} if completion.thinking is None else _thought(completion)),
        **({} if completion.ended is None and not completion.turns else _episode(completion)),
    }


def _thought(completion: Response) -> Tree:
    return {"answer": completion.answer, "thinking": completion.thinking, "closed": completion.closed}


def _episode(completion: Response) -> Tree:
    turns = [turn_state(turn) for turn in completion.turns]
    told = {"turns": turns, "ended": completion.ended, "scores": dict(completion.scores)}
    return {**told, "answer": completion.answer}


def load_completion(state: Tree) -> Response:
    turns = tuple(load_turn(tree) for tree in state.get("turns", ()))
    return Response(**{**state, "finish": state["finish"] and FinishReason(state["finish"]), "turns": turns})


def turn_state(turn: Turn) -> Tree:
    state = {**dataclasses.asdict(turn), "calls": list(turn.calls), "messages": list(turn.messages)}
    absent = [name for name in ("prompt_ids", "asked") if state[name] is None]
    return {name: value for name, value in state.items() if name not in absent}


def load_turn(state: Tree) -> Turn:
    return Turn(**{**state, "calls": tuple(state["calls"]), "messages": tuple(state.get("messages", ()))})


def score_state(score: Score) -> Tree:
    return {"values": dict(score.values), "reward": score.reward, "reason": score.reason, "answer": score.answer}


def load_score(state: Tree) -> Score:
    return Score(**state)


def group_state(group: Group) -> Tree:
    """Return the tree of a finished group. Shaped rewards and advantages are computed anew when it trains."""
    return {
        "id": group.id,
        "prompt": prompt_state(group.prompt),
        "completions": [completion_state(c) for c in group.completions_G],
        "scores": [score_state(s) for s in group.scores_G],
        "born": group.born,
        "verdict": group.verdict.value if group.verdict else None,
        "disposition": group.disposition.value if group.disposition else None,
    }


def load_group(state: Tree) -> Group:
    return Group(
        id=state["id"],
        prompt=load_prompt(state["prompt"]),
        completions_G=[load_completion(c) for c in state["completions"]],
        scores_G=[load_score(s) for s in state["scores"]],
        born=state["born"],
        verdict=Verdict(state["verdict"]) if state["verdict"] else None,
        disposition=Disposition(state["disposition"]) if state["disposition"] else None,
    )


def open_group_state(group: OpenGroup) -> Tree:
    return {
        "id": group.id,
        "prompt": prompt_state(group.prompt),
        "born": group.born,
        "completions": [completion_state(c) for c in group.completions_G],
        "scores": [None if s is None else score_state(s) for s in group.scores_G],
    }


def load_open_group(state: Tree) -> OpenGroup:
    return OpenGroup(
        id=state["id"],
        prompt=load_prompt(state["prompt"]),
        born=state["born"],
        completions_G=[load_completion(c) for c in state["completions"]],
        scores_G=[None if s is None else load_score(s) for s in state["scores"]],
    )
