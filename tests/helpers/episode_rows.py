"""Episodes of random tokens: in one row, and with a prompt for each turn that repeats what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dapo.types.batch import MODEL, Group, Response, Turn


def as_episode(made: Response, cuts: Sequence[int], replies: Sequence[int]) -> Response:
    """Return a completion with replies of 9s put in behind the tokens ``cuts``, ``replies`` tokens each."""
    pieces, turns, start = [], [], 0
    whole = {name: [] for name in ("token_ids", "logprobs", "versions", "generated")}
    for first, stop in zip([0, *cuts], [*cuts, len(made)], strict=True):
        pieces.append((first, stop))
    for number, (first, stop) in enumerate(pieces):
        own = slice(first, stop)
        turns.append(Turn(start, start + stop - first, MODEL, ""))
        start += stop - first
        whole["token_ids"].append(made.token_ids[own])
        whole["logprobs"].append(made.logprobs[own])
        whole["versions"].append(made.versions[own])
        whole["generated"].append(np.ones(stop - first, np.bool_))
        if number < len(replies):
            count = replies[number]
            turns.append(Turn(start, start + count, "user", ""))
            start += count
            whole["token_ids"].append(np.full(count, 9))
            whole["logprobs"].append(np.zeros(count, np.float32))
            whole["versions"].append(np.zeros(count, np.int32))
            whole["generated"].append(np.zeros(count, np.bool_))
    arrays = {name: np.concatenate(parts) for name, parts in whole.items()}
    return replace(made, **arrays, turns=tuple(turns), ended="done")


def by_turns(group: Group) -> Group:
    """Return the group with a prompt for each turn, as a template writes it that keeps earlier turns."""
    cut = []
    for made in group.completions_G:
        turns = [
            replace(turn, prompt_ids=np.concatenate([group.prompt.token_ids, made.token_ids[: turn.first]]))
            if turn.who == MODEL
            else turn
            for turn in made.turns
        ]
        cut.append(replace(made, turns=tuple(turns)))
    return replace(group, completions_G=cut)


def random_episodes(groups: Sequence[Group], random: np.random.Generator) -> list[Group]:
    """Return the groups with each response cut into one to four turns."""
    made = []
    for group in groups:
        own = []
        for completion in group.completions_G:
            most = min(4, len(completion))
            cuts = np.sort(random.choice(np.arange(1, len(completion)), int(random.integers(0, most)), replace=False))
            own.append(as_episode(completion, cuts.tolist(), random.integers(1, 4, len(cuts)).tolist()))
        made.append(replace(group, completions_G=own))
    return made
