"""Output of ``dapo check``: the verdict and what is wrong first, then the parts of the run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dapo.cli.error_lines import tell_error
from dapo.config import LoadedRecipe
from dapo.config.shipped import short_name
from dapo.errors import DapoError
from dapo.links import addressed
from dapo.words import counted

NOT_HERE = 3
"""Exit code if nothing is wrong with the recipe and this machine would not start it."""
REFUSED = 2
WARNINGS, DOUBTS, NOT_HERE_TITLE = "warnings", "look at this before you start", "would not start on this machine"
GRAVE, HERE, LEFT_OUT = "settle this before you start", "on this machine", "not looked at"
ON_TOP = (WARNINGS, DOUBTS, NOT_HERE_TITLE, GRAVE, HERE, LEFT_OUT)
"""Sections that stand under the verdict."""
WEIGHTS = "the weights"
WRITTEN = "the weights, and what the model writes (--try 4 loads it, generates, scores, learns)"
"""What a check without `--try` leaves out."""


@dataclass(slots=True)
class Sections:
    """Collect the lines of a check by title.

    Attributes:
        whole: every line, as ``dapo.check`` returns them.
        brief: the lines that ``dapo check`` shows without ``--verbose``.
    """

    whole: dict[str, tuple[str, ...]] = field(default_factory=dict)
    brief: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(
        self,
        title: str,
        lines: Iterable[str],
        *,
        shown: Callable[[str], bool] = lambda line: True,
        instead: Iterable[str] = (),
    ) -> None:
        """Add a section if it has lines, or lines to one that is there.

        Args:
            title: of the section.
            lines: all of them.
            shown: returns which of them concern this recipe.
            instead: what is shown for the lines that are not.
        """
        found = tuple(lines)
        if found:
            self.whole[title] = (*self.whole.get(title, ()), *found)
        if brief := (*filter(shown, found), *instead):
            self.brief[title] = (*self.brief.get(title, ()), *brief)


def hidden(line: str) -> bool:
    """Show a line with ``--verbose`` alone."""
    return False


Look = Callable[[LoadedRecipe, Sections], None]
"""Fills the sections of a recipe, and raises DapoError for what is refused."""


def print_check(loaded: LoadedRecipe, look: Look, *, tried: bool, verbose: bool) -> int:
    """Print a check, and return the exit code: 0, ``NOT_HERE``, or that of the refusal.

    Args:
        loaded: the recipe.
        look: fills the sections.
        tried: whether the model itself was asked.
        verbose: show the parts that do not concern this recipe as well.
    """
    called = short_name(loaded.path) if loaded.path else "RECIPE"
    supervised, sections, code = loaded.recipe.run.stage == "sft", Sections(), 0
    try:
        look(loaded, sections)
    except DapoError as error:
        print(f"{called}: refused", flush=True)
        tell_error(error)
        code = NOT_HERE if error.exit_code == NOT_HERE else REFUSED
    else:
        doubts = [*sections.whole.get(WARNINGS, ()), *sections.whole.get(DOUBTS, ())]
        here, grave = (sections.whole.get(title, ()) for title in (NOT_HERE_TITLE, GRAVE))
        overrides = [override for override in loaded.overrides if not override.startswith("run.stage")]
        command = "dapo sft" if supervised else "dapo train"
        print(verdict(called, f"{command} {shlex.join([called, *overrides])}", here, grave, doubts))
        told = (("not here", here), ("not good", grave), ("doubt", doubts), ("here", sections.whole.get(HERE, ())))
        for what, lines in told:
            for line in lines:
                print(f"  {what}: {addressed(line)}")
        left_out = [*sections.whole.get(LEFT_OUT, ()), *([] if tried else [WEIGHTS if supervised else WRITTEN])]
        more = [] if verbose else ["Every detail: --verbose."]
        print(" ".join([f"Not looked at: {'; '.join(left_out)}."] * bool(left_out) + more))
        code = NOT_HERE if here else 0
    for title, lines in (sections.whole if verbose else sections.brief).items():
        if title not in ON_TOP:
            print_section(title, lines)
    sys.stdout.flush()
    return code


def verdict(called: str, command: str, here: Sequence[str], grave: Sequence[str], doubts: Sequence[str]) -> str:
    """Return the first line: whether the recipe is good, whether it starts here, and how to start it.

    Args:
        called: the recipe's name.
        command: that starts it.
        here: what this machine lacks.
        grave: why the run is not called good.
        doubts: what to look at first.
    """
    odd = counted(len(grave) + len(doubts), "doubt")
    if here:
        more = f", and there {'are' if len(grave) + len(doubts) > 1 else 'is'} {odd}" if grave or doubts else ""
        return f"{called}: this machine cannot run it{more}. Elsewhere, or after the next move below: {command}"
    if grave:
        return f"{called}: not good, with {odd}. Settle what is below, or start it all the same with: {command}"
    if doubts:
        return f"{called}: good, with {odd}. Look at the doubts first, then start it with: {command}"
    return f"{called}: good. Start it with: {command}"


def print_section(title: str, lines: Iterable[str]) -> None:
    """Print a title and its lines after an empty line."""
    print(f"\n{title}")
    for line in lines:
        print(f"  {addressed(line)}")
