"""``dapo.check``: what ``dapo check`` prints, as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo.api.recipe import RecipeLike, RewardLike, ask
from dapo.cli.check import look_at_run
from dapo.cli.check_screen import DOUBTS, NOT_HERE_TITLE, Sections


@dataclass(frozen=True, slots=True)
class Report:
    """What a run would do, need and write. Printed, it has every line of ``dapo check --verbose``.

    Attributes:
        sections: lines by title: ``data``, ``rewards, tried``, ``arithmetic``, ``memory, estimated``, ``files``...
    """

    sections: Mapping[str, tuple[str, ...]]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is unusual in the recipe."""
        return self.sections.get("warnings", ())

    @property
    def doubts(self) -> tuple[str, ...]:
        """What to look at before starting: odd data, rewards that call wrong answers right."""
        return self.sections.get(DOUBTS, ())

    @property
    def not_here(self) -> tuple[str, ...]:
        """Why ``train`` would refuse the recipe on this machine as it is now; elsewhere it may start."""
        return self.sections.get(NOT_HERE_TITLE, ())

    @property
    def good(self) -> bool:
        """No doubts, and it starts on this machine. (What cannot work anywhere is refused with an error.)"""
        return not self.doubts and not self.not_here

    def __str__(self) -> str:
        return "\n\n".join(
            "\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in self.sections.items()
        )


def check(
    recipe: RecipeLike | None = None,
    *,
    rewards: Sequence[RewardLike] | RewardLike | None = None,
    train: Any = None,
    validation: Any = None,
    objective: Any = None,
    tries: int = 0,
    **settings: Any,
) -> Report:
    """Everything about a run before it starts; trains nothing.

    Args:
        recipe: as in ``train``, with the other arguments.
        rewards: in place of the recipe's.
        train: training data.
        validation: held-out data.
        objective: a loss of yours.
        tries: groups to generate and score with the model itself; 0: its weights are not loaded.
        settings: by section or key.

    Raises:
        DapoError: what ``dapo check`` would have refused.
    """
    asked = ask(recipe, rewards=rewards, train=train, validation=validation, objective=objective, settings=settings)
    sections = Sections()
    look_at_run(asked.loaded, sections, tries=tries)
    return Report(sections.whole)
