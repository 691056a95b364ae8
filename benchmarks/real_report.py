"""Numbers, tables and the figure of ``real_problems.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from sampling_learning import interval

from dapo.algorithms.statistics import pass_at_k
from dapo.data.formats import Problem

Answer = Mapping[str, Any]  # a line of ``dapo evaluate --out``
ARMS = ("before", "after", "longer")
MEASURES = ("sampled", "greedy", "pass")
SHOWN = 88  # characters of a problem


# ---------------------------------------------------------------------------------------------------- numbers


def summarise(found: Mapping[str, Mapping[int, Any]], tasks: Mapping[str, Any]) -> dict[str, Any]:
    """By held-out set: each seed's numbers and what the tables say of them. ``found``: what ``read_seed`` gave, by task
    and seed; seeds without a result are left out, and tasks without any."""
    report: dict[str, Any] = {}
    for name, by_seed in found.items():
        seeds = {seed: one for seed, one in by_seed.items() if one is not None}
        if not seeds:
            continue
        first = next(iter(seeds.values()))
        for key in dict.fromkeys(answer["set"] for answer in first["answers"]["before"]):
            report[key] = _of_set(key, seeds, tasks[name]) | {"task": name}
    return report


def _of_set(key: str, seeds: Mapping[int, Any], task: Any) -> dict[str, Any]:
    def of(one: Any, arm: str) -> list[Answer]:
        return [answer for answer in one["answers"].get(arm, ()) if answer["set"] == key]

    arms = {
        arm: {seed: accuracies(of(one, arm)) for seed, one in seeds.items() if arm in one["answers"]} for arm in ARMS
    }
    last = [answer for one in seeds.values() for answer in of(one, "after")]
    first_seed, first = next(iter(seeds.items()))
    asked = {answer["problem"]: answer["answer"] for answer in of(first, "before")}
    return {
        "seeds": list(seeds),
        "arms": arms,
        "gain": gains(arms["before"], arms["after"]),
        "over_longer": gains(arms["longer"], arms["after"]),
        "commonest": mean(answer == first["commonest"][key] for answer in asked.values()),
        "commonest_answer": first["commonest"][key],
        "problems": len(asked),
        "parameters": first["parameters"],
        "leaks": {seed: one["leaks"] for seed, one in seeds.items()},
        "steps": {seed: one["steps"] for seed, one in seeds.items()},
        "seconds": {seed: one["seconds"] for seed, one in seeds.items()},
        "loss": {seed: [mean(one["loss"]["trained"]), one["loss"]["held_out"]] for seed, one in seeds.items()},
        "trained_on": {seed: one["trained_on"].get(key) for seed, one in seeds.items()},
        "ended": {seed: one["ended"] for seed, one in seeds.items()},
        "hard": {"of": task.hard, "thirds": thirds(last, task.size_of)},
        "distinct": {
            arm: mean(distinct(of(one, arm)) for one in seeds.values() if arm in one["answers"]) for arm in ARMS[:2]
        },
        "examples": {"seed": first_seed, **examples(of(first, "before"), of(first, "after"), first["boilerplate"])},
    }


def accuracies(answers: Sequence[Answer]) -> dict[str, float]:
    """Of sampled and of greedy responses, and the share of problems of which a sampled one is right (pass@k)."""
    sampled: dict[int, list[float]] = {}
    greedy = []
    for answer in answers:
        if answer["greedy"]:
            greedy.append(float(answer["accuracy"]))
        else:
            sampled.setdefault(answer["problem"], []).append(float(answer["accuracy"]))
    return {
        "sampled": mean(mean(values) for values in sampled.values()),
        "greedy": mean(greedy),
        "pass": mean(pass_at_k(len(v), sum(x == 1.0 for x in v), len(v)) for v in sampled.values()),
    }


def gains(
    before: Mapping[int, Mapping[str, float]], after: Mapping[int, Mapping[str, float]]
) -> dict[str, dict[str, float | None]]:
    """By measure: the mean of after - before over the seeds that have both, and its 95 % interval (Student's t)."""
    both = [seed for seed in after if seed in before]
    if not both:
        return {}
    return {
        measure: interval(np.array([after[seed][measure] - before[seed][measure] for seed in both]))
        for measure in MEASURES
    }


def thirds(answers: Sequence[Answer], size_of: Callable[[Problem], int]) -> list[dict[str, float]]:
    """Accuracy of sampled responses by size of the problem, in up to three parts of about equal number."""
    sized = [(size_of(Problem(a["question"], a["answer"])), float(a["accuracy"])) for a in answers if not a["greedy"]]
    sizes = sorted(size for size, _ in sized)
    cuts = sorted({sizes[(len(sizes) - 1) * third // 3] for third in (1, 2, 3)})
    parts, low = [], sizes[0] - 1
    for cut in cuts:
        part = [(size, right) for size, right in sized if low < size <= cut]
        own = [size for size, _ in part]
        parts.append({"from": min(own), "to": max(own), "accuracy": mean(right for _, right in part)})
        low = cut
    return parts


def distinct(answers: Sequence[Answer]) -> float:
    """Different responses over the problems' number, of greedy responses: near 0 where all problems get one answer."""
    said = [answer["response"] for answer in answers if answer["greedy"]]
    return len(set(said)) / len(said)


def examples(
    before: Sequence[Answer], after: Sequence[Answer], boilerplate: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The first problem that greedy decoding learnt to answer, and the first that is still answered wrongly."""
    pairs = [
        (old, new)
        for old, new in zip((a for a in before if a["greedy"]), (a for a in after if a["greedy"]), strict=True)
    ]
    found: dict[str, dict[str, str]] = {}
    for what, wanted in (("learnt", (0.0, 1.0)), ("still wrong", (0.0, 0.0)), ("lost", (1.0, 0.0))):
        for old, new in pairs:
            if (old["accuracy"], new["accuracy"]) == wanted:
                found[what] = {
                    "problem": shown(old["question"], boilerplate),
                    "answer": old["answer"],
                    "before": old["response"],
                    "after": new["response"],
                }
                break
    return found


def shown(problem: str, boilerplate: Sequence[str]) -> str:
    """A problem in one line, without what all of its task begin or end with."""
    for phrase in boilerplate[:2]:
        problem = problem.removeprefix(phrase).removesuffix(phrase)
    line = " ".join(problem.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


# ---------------------------------------------------------------------------------------------------- words


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
            *_accuracies(sets),
            "",
            "## What changed: right at least once in four, and different answers",
            "",
            *_variety(sets),
            "",
            "## What it still cannot do",
            "",
            *_hard(sets),
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


def _accuracies(sets: Mapping[str, Any]) -> list[str]:
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


def _hard(sets: Mapping[str, Any]) -> list[str]:
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
