"""Mode ``replace`` (SkyRL): kept groups stand in a second time for rejected ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dapo.types.batch import Group
from dapo.types.enums import Disposition
from dapo.types.seeds import COPIES, derive_seed


def copies(batch: Sequence[Group], prompts_per_step: int, *, first_id: int, seed: tuple[int, int]) -> list[Group]:
    """Copies of ``batch``'s groups that make it ``prompts_per_step`` long, in random order, none twice before all once.

    A copy is a group of its own (ids from ``first_id`` on), so that mean and std stay those of G responses.

    Args:
        seed: (run seed, step).
    """
    missing = prompts_per_step - len(batch) if batch else 0
    made: list[Group] = []
    for turn in range(-(-missing // max(1, len(batch)))):
        order = sorted(batch, key=lambda group: derive_seed(seed[0], COPIES, seed[1], turn, group.id))
        for group in order[: missing - len(made)]:
            made.append(dataclasses.replace(group, id=first_id + len(made), disposition=Disposition.COPIED))
    return made
