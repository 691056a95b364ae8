"""Groups to and from plain trees of numbers, strings and arrays, for checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from dapo.types.batch import Completion, Group, Partial, Prompt, Score
from dapo.types.enums import Disposition, FinishReason, Verdict

Tree = dict[str, Any]


def prompt_state(prompt: Prompt) -> Tree:
    return {
        "id": prompt.id,
        "text": prompt.text,
        "token_ids": prompt.token_ids,
        "problem": prompt.problem,
        "answer": prompt.answer,
        "source": prompt.source,
        "extra": dict(prompt.extra),
    }


def load_prompt(state: Tree) -> Prompt:
    return Prompt(**state)


def completion_state(completion: Completion) -> Tree:
    return {
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "versions": completion.versions,
        "finish": completion.finish.value,
        "text": completion.text,
        "generated": completion.generated,
        **({} if completion.thinking is None else _thought(completion)),
    }


def _thought(completion: Completion) -> Tree:
    return {"answer": completion.answer, "thinking": completion.thinking, "closed": completion.closed}


def load_completion(state: Tree) -> Completion:
    return Completion(**{**state, "finish": FinishReason(state["finish"])})


def score_state(score: Score) -> Tree:
    return {"values": dict(score.values), "reward": score.reward, "reason": score.reason, "answer": score.answer}


def load_score(state: Tree) -> Score:
    return Score(**state)


def partial_state(partial: Partial) -> Tree:
    return {
        "token_ids": partial.token_ids,
        "logprobs": partial.logprobs,
        "versions": partial.versions,
        "generated": partial.generated,
    }


def load_partial(state: Tree) -> Partial:
    return Partial(**state)


def empty_partial() -> Partial:
    return Partial(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32))


def group_state(group: Group) -> Tree:
    """A finished group. What the trainer adds (rewards, advantages) is computed again when it trains."""
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
