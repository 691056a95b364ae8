"""Output of ``dapo check``: the verdict and what is wrong first, then the parts of the run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dapo.cli.error_lines import said_of, tell_error
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
NUMBERS = ("memory_bytes", "memory_bytes_here", "step_seconds", "hours")
"""What a check estimates of a run on this machine."""
WEIGHTS = "the weights"
WRITTEN = "the weights, and what the model writes (--try 4 loads it, generates, scores, learns)"
"""What a check without `--try` leaves out."""


@dataclass(slots=True)
class Sections:
    """Collect the lines of a check by title.

    Attributes:
        whole: every line, as ``dapo.check`` returns them.
        brief: the lines that ``dapo check`` shows without ``--verbose``.
        numbers: those of ``NUMBERS`` that are known.
    """

    whole: dict[str, tuple[str, ...]] = field(default_factory=dict)
    brief: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check.

    Attributes:
        called: the recipe's name.
        command: that starts it.
        sections: what was found, up to the refusal.
        left_out: what was not looked at.
        error: the refusal; None: there is none.
    """

    called: str
    command: str
    sections: Sections
    left_out: tuple[str, ...] = ()
    error: DapoError | None = None

    def lines(self, *titles: str) -> list[str]:
        """Return the lines of sections."""
        return [addressed(line) for title in titles for line in self.sections.whole.get(title, ())]

    @property
    def exit_code(self) -> int:
        """0, ``NOT_HERE``, or that of the refusal."""
        if self.error is not None:
            return NOT_HERE if self.error.exit_code == NOT_HERE else REFUSED
        return NOT_HERE if self.lines(NOT_HERE_TITLE) else 0


def check_of(loaded: LoadedRecipe, look: Look, *, tried: bool) -> Checked:
    """Look at a recipe.

    Args:
        loaded: the recipe.
        look: fills the sections.
        tried: whether the model itself was asked.
    """
    called = short_name(loaded.path) if loaded.path else "RECIPE"
    supervised, sections = loaded.recipe.run.stage == "sft", Sections()
    overrides = [override for override in loaded.overrides if not override.startswith("run.stage")]
    command = f"{'dapo sft' if supervised else 'dapo train'} {shlex.join([called, *overrides])}"
    try:
        look(loaded, sections)
    except DapoError as error:
        return Checked(called, command, sections, error=error)
    untried = [] if tried else [WEIGHTS if supervised else WRITTEN]
    return Checked(called, command, sections, (*sections.whole.get(LEFT_OUT, ()), *untried))


def print_check(checked: Checked, *, verbose: bool) -> int:
    """Print a check, and return the exit code.

    Args:
        checked: the result.
        verbose: show the parts that do not concern this recipe as well.
    """
    if checked.error is not None:
        print(f"{checked.called}: refused", flush=True)
        tell_error(checked.error)
    else:
        here, grave, doubts = checked.lines(NOT_HERE_TITLE), checked.lines(GRAVE), checked.lines(WARNINGS, DOUBTS)
        print(verdict(checked.called, checked.command, here, grave, doubts))
        told = {"not here": here, "not good": grave, "doubt": doubts, "here": checked.lines(HERE)}
        for what, lines_of_it in told.items():
            for line in lines_of_it:
                print(f"  {what}: {line}")
        left_out = [f"Not looked at: {'; '.join(checked.left_out)}."] * bool(checked.left_out)
        print(" ".join(left_out + ([] if verbose else ["Every detail: --verbose."])))
    for title, lines in (checked.sections.whole if verbose else checked.sections.brief).items():
        if title not in ON_TOP:
            print_section(title, lines)
    sys.stdout.flush()
    return checked.exit_code


def print_object(checked: Checked) -> int:
    """Print a check as JSON, as docs/cli.md describes it, and return the exit code."""
    here, grave = checked.lines(NOT_HERE_TITLE), checked.lines(GRAVE)
    word = "refused" if checked.error else "not here" if here else "not good" if grave else "good"
    found = {
        "recipe": checked.called,
        "verdict": word,
        "exit_code": checked.exit_code,
        "command": checked.command,
        **{name: checked.sections.numbers.get(name) for name in NUMBERS},
        "not_here": here,
        "not_good": grave,
        "doubts": checked.lines(WARNINGS, DOUBTS),
        "not_looked_at": list(checked.left_out),
        "refusal": said_of(checked.error) if checked.error else None,
        "sections": {title: checked.lines(title) for title in checked.sections.whole if title not in ON_TOP},
    }
    print(json.dumps(found, indent=1))
    return checked.exit_code


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
