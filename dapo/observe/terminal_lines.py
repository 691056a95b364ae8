"""Lines of a run that stay in a terminal: a step, an evaluation and a sample."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console as RichConsole
from rich.text import Text

from dapo.metrics.printed import EVALUATION, STEP
from dapo.observe import supervised
from dapo.observe.live_view import BAD, GOOD, QUIET, RunState, accuracy_text
from dapo.observe.text import clean, duration, number, percent, shorten

NAME_ROOM = 66
"""Cells that an evaluation's numbers take beside the name of its set."""


def step_line(state: RunState, width: int | None = None) -> str:
    """One step as a plain line; of a narrow terminal what matters least is left out, so that it stays one line."""
    digits, left = len(str(state.total_steps)), state.seconds_left
    metrics = state.metrics
    if metrics.get("groups/finished") == 0:  # nothing to take an accuracy or a length of
        done = f"step {state.step:>{digits}}/{state.total_steps}  trained on groups judged before, none was new"
        return done if left is None else f"{done}  {duration(left)} left"
    if supervised.MARK in metrics:
        parts = [f"step {state.step:>{digits}}/{state.total_steps}", *supervised.step_parts(metrics)]
        parts += [] if left is None else [f"{duration(left)} left"]
        return "  ".join(parts if width is None or len("  ".join(parts)) <= width else parts[:3])
    parts = [
        f"step {state.step:>{digits}}/{state.total_steps}",
        *(_word(word, metrics.get(key)) for word, key in STEP.items() if word != "unscored" or metrics.get(key)),
    ]
    if left is not None:
        parts.append(f"{duration(left)} left")
    for spare in (5, 4, 3):  # tokens a second, the length, the entropy
        if width is not None and len("  ".join(parts)) > width:
            del parts[spare]
    return "  ".join(parts)


def _word(word: str, value: float | None) -> str:
    """Return a word of a step's line with its number."""
    if word == "tok/s":
        return f"{number(value)} {word}"
    return f"{word} {percent(value) if word == 'accuracy' else percent(value, 0) if word == 'kept' else number(value)}"


def validation_lines(
    step: int, metrics: Mapping[str, float], width: int | None = None, reasons: Mapping[str, str] | None = None
) -> list[Text]:
    """Return an evaluation as lines that stay: the mean, then each set when there are several, their numbers in
    columns.

    Args:
        step: of training.
        metrics: with the keys of ``validation/``.
        width: cells of a line, for which long names of sets are cut; None: as long as they are.
        reasons: by set, why most of its unscored responses are.
    """
    why = reasons or {}
    suffix = "/accuracy"
    sets = [key[len("validation/") : -len(suffix)] for key in metrics if key.endswith(suffix) and key.count("/") > 1]
    names = [_cut(name, width) for name in sets]
    longest = max((name.cell_len for name in names), default=0)
    head = Text().append(f"step {step}  ", style=QUIET).append("held-out ", style="bold")
    lines = [_evaluation(head, metrics, width=width, why=next(iter(why.values()), "") if len(sets) <= 1 else "")]
    for name, shown in zip(sets, names, strict=True) if len(sets) > 1 else ():
        shown.pad_right(longest - shown.cell_len)
        lines.append(
            _evaluation(Text("  ").append_text(shown).append("  "), metrics, f"{name}/", width, why.get(name, ""))
        )
    return lines


def _cut(name: str, width: int | None) -> Text:
    text = Text(clean(name, newlines=False))
    if width is not None:
        text.truncate(max(8, width - NAME_ROOM - 4), overflow="ellipsis")
    return text


def _evaluation(
    head: Text, metrics: Mapping[str, float], name: str = "", width: int | None = None, why: str = ""
) -> Text:
    """Return the numbers of one set in one line. A narrow terminal loses the length first, then the line's end."""
    prefix = f"validation/{name}"
    line = Text(no_wrap=True, overflow="ellipsis").append_text(head).append_text(accuracy_text(metrics, prefix))
    parts = [
        Text().append(f"  {word} ", style=QUIET).append(number(value) if word == "length" else percent(value))
        for word in ("greedy", "length", "truncated")
        if (value := metrics.get(prefix + EVALUATION[word].removeprefix("validation/"))) is not None
    ]
    if metrics.get(f"{prefix}unscored"):
        parts.insert(0, _unscored(metrics, prefix, why))
    if width is not None and line.cell_len + sum(part.cell_len for part in parts) > width:
        parts = [part for part in parts if not part.plain.startswith("  length")]
    for part in parts:
        line.append_text(part)
    return line


def _unscored(metrics: Mapping[str, float], prefix: str, why: str) -> Text:
    """Return how many responses the accuracy leaves out, why, and the accuracy if all of them were wrong."""
    count, of = metrics[f"{prefix}unscored"], metrics.get(f"{prefix}responses")
    text = Text(f"  {count:.0f}{'' if of is None else f' of {of:.0f}'} unscored", style="yellow")
    if why:
        text.append(f": {shorten(clean(why, newlines=False), 100)}")
    least = metrics.get(f"{prefix}accuracy_unscored_wrong")
    return text if least is None else text.append(f" ({percent(least)} if they are wrong)")


def sample_lines(
    prompt: str,
    response: str,
    accuracy: float | None,
    reward: float | None = None,
    limit: int = 400,
    width: int | None = None,
) -> Text:
    """Return a prompt and its response, with a bar at the left of every line; everything in it is untrusted.

    Args:
        prompt: the problem, without the template around it.
        response: of the model.
        accuracy: None: unscored.
        reward: weighted sum of all rewards, told where it is not the accuracy.
        limit: characters shown of each text.
        width: cells after which a line is broken; None: never.
    """
    mark, style = ("?", "yellow") if accuracy is None else ("✓", GOOD) if accuracy >= 1 else ("✗", BAD)
    text = Text()
    for line in _broken(shorten(clean(prompt).strip(), limit), width):
        text.append("  ┃ ", style=QUIET).append(line + "\n", style=QUIET)
    for line in _broken(shorten(clean(response).strip(), limit), width) or [""]:
        text.append("  ┃ ", style=style).append(line + "\n")
    verdict = "unscored" if accuracy is None else f"accuracy {accuracy:g}"
    if reward is not None and reward != accuracy:
        verdict += f", reward {reward:.3g}"
    return text.append(f"  {mark} {verdict}", style=style)


def _broken(text: str, width: int | None) -> list[str]:
    """Lines that fit beside the bar."""
    lines = text.splitlines()
    if width is None:
        return lines
    room = max(8, width - 4)
    console = RichConsole(width=room)
    return [
        part.plain.rstrip() for line in lines for part in Text(line).wrap(console, room, overflow="fold") or [Text()]
    ]
