"""Tables and the figure of ``real_problems.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from real_numbers import ARMS, MEASURES

COMPARED = (
    "imitating for as long gives worse sampled answers than DAPO",
    "and worse greedy ones",
    "imitating for as long gives better sampled answers than DAPO",
    "and better greedy ones",
)


def markdown(report: Mapping[str, Any]) -> str:
    machine, sets = report["machine"], report["tasks"]
    seeds = sorted({seed for one in sets.values() for seed in one["seeds"]})
    return "\n".join(
        [
            "# Real problems from nothing",
            "",
            f"Made by `{machine['command']}` on one thread of {machine['cpu']}, commit {machine['commit']}, "
            f"{machine['date']}. Seeds {', '.join(map(str, seeds))}; intervals are 95 % over seeds (Student's t). "
            "Each cell: accuracy of four sampled responses to a problem / of the greedy one. **Commonest answer**: "
            "always giving the commonest answer of the training problems. **Imitated longer**: from the same start, on "
            "new examples (word problems: the same ones), for as many seconds as DAPO took.",
            "",
            *accuracy_table(sets),
            "",
            "## What it says",
            "",
            *findings(sets),
            "",
            "## What changed: right at least once in four, and different answers",
            "",
            *_variety(sets),
            "",
            "## What it still cannot do",
            "",
            *hard_table(sets),
            "",
            "## Answers before and after",
            "",
            "Greedy, of the first seed: the first held-out problem that was learnt, the first that is still wrong, and "
            "the first that was lost, where there is one. What all problems of a task begin and end with is left out.",
            "",
            *_answers(sets),
            "",
            "## Work, and held-out problems in the training data",
            "",
            *_work(sets),
            "",
            "![accuracy before and after](real_problems.png)",
            "",
        ]
    )


FEWEST = 3
"""Seeds of which something is concluded: two may agree by chance."""


def findings(sets: Mapping[str, Any]) -> list[str]:
    """Of which sets each sentence holds: where the 95 % interval over seeds, three at least, is clear of zero."""

    def clear(gain: Mapping[str, Any], measure: str, sign: int) -> bool:
        one = gain.get(measure)
        return one is not None and one["low"] is not None and min(sign * one["low"], sign * one["high"]) > 0

    def no_better(one: Mapping[str, Any]) -> bool:
        return mean(found["greedy"] for found in one["arms"]["after"].values()) <= one["commonest"]

    said = {
        "DAPO made sampled answers better": lambda one: clear(one["gain"], "sampled", 1),
        "and greedy ones": lambda one: clear(one["gain"], "greedy", 1),
        "a right answer among four became rarer": lambda one: clear(one["gain"], "pass", -1),
        COMPARED[0]: lambda one: clear(one["over_longer"], "sampled", 1),
        COMPARED[1]: lambda one: clear(one["over_longer"], "greedy", 1),
        COMPARED[2]: lambda one: clear(one["over_longer"], "sampled", -1),
        COMPARED[3]: lambda one: clear(one["over_longer"], "greedy", -1),
        "after DAPO greedy answers are no better than always the commonest": no_better,
    }
    sets = {key: one for key, one in sets.items() if len(one["seeds"]) >= FEWEST}
    if not sets:
        return [f"- Fewer than {FEWEST} seeds so far: nothing is concluded from them."]
    if not any(one["over_longer"] for one in sets.values()):
        said = {text: holds for text, holds in said.items() if text not in COMPARED}
    return [
        f"- {text}: **{', '.join(key for key, one in sets.items() if holds(one)) or 'none'}**"
        for text, holds in said.items()
    ]


def page_block(report: Mapping[str, Any]) -> str:
    """What docs/evidence.md shows of it."""
    sets, machine = report["tasks"], report["machine"]
    seeds = max(len(one["seeds"]) for one in sets.values())
    return "\n".join(
        [
            f"{seeds} seed{'s' * (seeds > 1)} at most, {machine['date']}, one thread of {machine['cpu']}. A sentence "
            f"holds of a set where the 95 % interval over its seeds, {FEWEST} at least, is clear of zero:",
            "",
            *findings(sets),
        ]
    )


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _table(*head: str) -> list[str]:
    return [_row(*head), "| " + " | ".join("---" for _ in head) + " |"]


def _mean(arm: Mapping[Any, Mapping[str, float]], measure: str) -> str:
    return f"{100 * mean(one[measure] for one in arm.values()):.1f}" if arm else ""


def _both(arm: Mapping[Any, Mapping[str, float]]) -> str:
    return f"{_mean(arm, 'sampled')} / {_mean(arm, 'greedy')}" if arm else "not run"


def _gain(gain: Mapping[str, Any], measure: str) -> str:
    if not gain:
        return "not run"
    one = gain[measure]
    text = f"{100 * one['mean']:+.1f}"
    return text if one["low"] is None else f"{text} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"


def accuracy_table(sets: Mapping[str, Any]) -> list[str]:
    lines = _table(
        "held-out set",
        "seeds",
        "commonest answer, %",
        "after `dapo sft`, %",
        "then DAPO, %",
        "gain, sampled",
        "gain, greedy",
        "imitated longer, %",
        "DAPO over that, sampled",
        "greedy",
    )
    for key, one in sets.items():
        arms = one["arms"]
        lines.append(
            _row(
                key,
                len(one["seeds"]),
                f"{100 * one['commonest']:.1f}",
                _both(arms["before"]),
                _both(arms["after"]),
                _gain(one["gain"], "sampled"),
                _gain(one["gain"], "greedy"),
                _both(arms["longer"]),
                _gain(one["over_longer"], "sampled"),
                _gain(one["over_longer"], "greedy"),
            )
        )
    return lines


def _variety(sets: Mapping[str, Any]) -> list[str]:
    lines = _table(
        "held-out set",
        "pass@4 before, %",
        "pass@4 after, %",
        "gain",
        "different greedy answers per problem, before",
        "after",
    )
    for key, one in sets.items():
        before, after = (_mean(one["arms"][arm], "pass") for arm in ARMS[:2])
        spread = (f"{one['distinct'][arm]:.2f}" for arm in ARMS[:2])
        lines.append(_row(key, before, after, _gain(one["gain"], "pass"), *spread))
    return lines


def hard_table(sets: Mapping[str, Any]) -> list[str]:
    lines = _table("held-out set", "by", "accuracy after DAPO, sampled, all seeds")
    for key, one in sets.items():
        parts = [
            f"{part['from']}{'' if part['from'] == part['to'] else ' to ' + str(part['to'])}: {part['accuracy']:.0%}"
            for part in one["hard"]["thirds"]
        ]
        lines.append(_row(key, one["hard"]["of"], "; ".join(parts)))
    return lines


def _answers(sets: Mapping[str, Any]) -> list[str]:
    lines = _table("held-out set", "", "problem", "right answer", "before", "after")
    for key, one in sets.items():
        for what, found in one["examples"].items():
            if what != "seed":
                cells = (f"`{found[part]}`" if found[part] else "" for part in ("problem", "answer", "before", "after"))
                lines.append(_row(key, what, *cells))
    return lines


def _work(sets: Mapping[str, Any]) -> list[str]:
    """Of tasks: sets that share a model share a row."""
    lines = _table(
        "task",
        "parameters",
        "steps: sft, DAPO, sft longer",
        "seconds",
        "loss at the end, imitated / held out",
        "accuracy on training problems, last steps, %",
        "held-out problems among imitated ones: exact, taken out, of",
        "among DAPO's",
    )
    for key, one in sets.items():
        seed = next(iter(one["leaks"]))
        steps, seconds = (
            ", ".join(f"{mean(of[arm] for of in one[what].values() if arm in of):.0f}" for arm in _done(one))
            for what in ("steps", "seconds")
        )
        loss = " / ".join(f"{mean(values):.3f}" for values in zip(*one["loss"].values(), strict=True))
        trained = [value for value in one["trained_on"].values() if value is not None]
        leaks = (
            "{exact}, {taken_out}, {problems:,}".format(**one["leaks"][seed][what]) for what in ("imitated", "rewarded")
        )
        accuracy = f"{100 * mean(trained):.1f}" if trained else ""
        lines.append(_row(key, f"{one['parameters']:,}", steps, seconds, loss, accuracy, *leaks))
    return [*lines, "", "Leaks are those of the first seed; what is taken out was not trained on."]


def _done(one: Mapping[str, Any]) -> list[str]:
    return [arm for arm in ARMS if one["arms"][arm]]


# ---------------------------------------------------------------------------------------------------- figure

# Okabe and Ito's colours, which colour-blind readers tell apart; the markers differ too.
STYLES = {
    "before": ("#6B7280", "o", "after dapo sft"),
    "after": ("#0072B2", "D", "then DAPO"),
    "longer": ("#E69F00", "X", "imitated longer instead"),
}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Accuracy of each set before and after, sampled and greedy: each seed small, their mean large."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    sets = report["tasks"]
    figure = Figure(figsize=(10, 1.2 + 0.5 * len(sets)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, measure, title in zip(panels, MEASURES, ("four sampled answers", "greedy answer"), strict=False):
        for row, one in enumerate(sets.values()):
            axes.plot([one["commonest"]] * 2, [row - 0.3, row + 0.3], color="#000000", linewidth=1.5)
            for place, (arm, (colour, marker, _)) in enumerate(STYLES.items()):
                values = [found[measure] for found in one["arms"][arm].values()]
                at = row + 0.22 * (place - 1)
                axes.plot(values, [at] * len(values), ".", color=colour, alpha=0.5, markersize=5)
                if values:
                    axes.plot([mean(values)], [at], marker, color=colour, markersize=8)
        axes.set_title(title, loc="left")
        axes.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(True, axis="x", color="#E5E7EB")
    panels[0].set_yticks(range(len(sets)), list(sets))
    panels[0].invert_yaxis()
    for colour, marker, label in STYLES.values():
        panels[1].plot([], [], marker, color=colour, label=label)
    panels[1].plot([], [], color="#000000", label="always the commonest answer")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)
