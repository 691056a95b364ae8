"""``dapo.check``: what ``dapo check`` prints, as an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Unpack

from dapo.api.recipe import RecipeLike, RewardLike, ask
from dapo.cli.check import look_at_run
from dapo.cli.check_screen import DOUBTS, GRAVE, NOT_HERE_TITLE, Sections

if TYPE_CHECKING:
    from dapo.api.sections import EnvironmentSettings, Settings


@dataclass(frozen=True, slots=True)
class Report:
    """Answer to what a run would do, need and write. Printed: the verdict, and what ``dapo check --verbose`` says.

    Attributes:
        sections: lines by title: ``data``, ``rewards, tried``, ``arithmetic``, ``memory, estimated``, ``files``...
    """

    sections: Mapping[str, tuple[str, ...]]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unusual settings of the recipe."""
        return self.sections.get("warnings", ())

    @property
    def doubts(self) -> tuple[str, ...]:
        """Doubts to settle before a start: odd data, rewards that accept wrong answers, more work than this machine
        does in a day."""
        return (*self.sections.get(GRAVE, ()), *self.sections.get(DOUBTS, ()))

    @property
    def not_here(self) -> tuple[str, ...]:
        """Why ``train`` would refuse the recipe on this machine as it is now; elsewhere it may start."""
        return self.sections.get(NOT_HERE_TITLE, ())

    @property
    def good(self) -> bool:
        """Return whether the recipe has no doubts. ``not_here`` says whether this machine can run it now."""
        return not self.doubts

    @property
    def verdict(self) -> str:
        """Whether the recipe is good, and whether this machine can run it, in a sentence or two."""
        said = "The recipe has doubts: look at them before you train." if self.doubts else "The recipe is good."
        if self.not_here:
            return f"This machine cannot run the recipe as it is now. {'' if self.good else said}".strip()
        return said

    def __str__(self) -> str:
        parts = ["\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in self.sections.items()]
        return "\n\n".join([self.verdict, *parts])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict, what to look at in full, and the other sections folded."""
        unfolded = (GRAVE, DOUBTS, NOT_HERE_TITLE)
        parts = [f"<p><b>{self.verdict}</b></p>"]
        for title in sorted(self.sections, key=lambda title: title not in unfolded):
            lines, opened = escape("\n".join(self.sections[title])), " open" * (title in unfolded)
            parts.append(f"<details{opened}><summary>{escape(title)}</summary><pre>{lines}</pre></details>")
        return "".join(parts)


def check(
    recipe: RecipeLike | None = None,
    *,
    rewards: Sequence[RewardLike] | RewardLike | None = None,
    train: Any = None,
    validation: Any = None,
    objective: Any = None,
    environment: EnvironmentSettings | str | Callable[..., Any] | None = None,
    tools: Sequence[Any] = (),
    tokenizer: Any = None,
    tries: int = 0,
    **settings: Unpack[Settings],
) -> Report:
    """Everything about a run before it starts; trains nothing.

    Args:
        recipe: as in ``train``, with the other arguments.
        rewards: in place of the recipe's.
        train: training data.
        validation: held-out data.
        objective: a loss of yours.
        environment: who answers the model between its turns.
        tools: typed functions that the model may call.
        tokenizer: of a loaded model.
        tries: groups to generate and score with the model itself; 0: its weights are not loaded.
        settings: by section or key.

    Raises:
        DapoError: what ``dapo check`` would have refused.
    """
    asked = ask(
        recipe,
        rewards=rewards,
        train=train,
        validation=validation,
        objective=objective,
        environment=environment,
        tools=tools,
        tokenizer=tokenizer,
        settings=settings,
    )
    sections = Sections()
    look_at_run(asked.loaded, sections, tries=tries)
    return Report(sections.whole)
