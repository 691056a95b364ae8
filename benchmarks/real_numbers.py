"""Numbers of ``real_problems.py``: from every answer before and after to what its tables say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
from sampling_learning import interval

from dapo.algorithms.statistics import pass_at_k
from dapo.data.formats import RawProblem

Answer = Mapping[str, Any]  # a line of ``dapo evaluate --out``
ARMS = ("before", "after", "longer")
MEASURES = ("sampled", "greedy", "pass")
SHOWN = 88  # characters of a problem


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


def thirds(answers: Sequence[Answer], size_of: Callable[[RawProblem], int]) -> list[dict[str, float]]:
    """Accuracy of sampled responses by size of the problem, in up to three parts of about equal number."""
    sized = [
        (size_of(RawProblem(a["question"], a["answer"])), float(a["accuracy"])) for a in answers if not a["greedy"]
    ]
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
