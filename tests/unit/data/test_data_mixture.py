"""Mixtures keep their proportions, levels follow the accuracy, and both go on exactly where they were."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_data_load import WordTokenizer, jsonl

from dapo.config.load import recipe_from_dict
from dapo.config.schema import Curriculum, Data, Selection, TrainSource
from dapo.data import EpochStream, prepare
from dapo.data.mixture import MixturePart, MixtureStream
from dapo.errors import DataError, RecipeError
from dapo.loop.sampling.account import source_metrics
from dapo.loop.sampling.prompts import PromptHistory, PromptSelector
from dapo.types.batch import Group, Prompt, Response, Score
from dapo.types.enums import FinishReason, Verdict

RULE = Curriculum(raise_at=0.75, lower_at=0.25, window=2)


def prompts(source: str, count: int, level: int | None = None) -> list[Prompt]:
    names = [f"{source}/{level}/{n}" for n in range(count)]
    extra = {} if level is None else {"level": level}
    return [Prompt(name, name, np.array([1]), name, "", source, extra) for name in names]


def stream(*parts: MixturePart, shuffle: bool = True) -> MixtureStream:
    return MixtureStream(parts, seed=5, shuffle=shuffle, curriculum=RULE)


def parts(**weights: float) -> list[MixturePart]:
    return [MixturePart(name, weight, [prompts(name, 3 + n)]) for n, (name, weight) in enumerate(weights.items())]


@pytest.mark.parametrize(
    "weights", [{"a": 3, "b": 1}, {"a": 0.2, "b": 0.5, "c": 0.3}, {"a": 1}, {"a": 97, "b": 2, "c": 1}]
)
def test_after_every_prompt_each_source_has_its_share(weights: dict[str, float]) -> None:
    mixed, total, taken = stream(*parts(**weights)), sum(weights.values()), dict.fromkeys(weights, 0)
    for n in range(1, 301):
        (prompt,) = mixed.take(1)
        taken[prompt.source] += 1
        for name, weight in weights.items():
            assert abs(taken[name] - n * weight / total) < 1.5
    assert mixed.sources == tuple(weights)
    assert sum(taken.values()) == 300


def test_each_source_passes_over_all_its_prompts() -> None:
    mixed = stream(*parts(a=1, b=1))
    found = [prompt.id for prompt in mixed.take(24) if prompt.source == "a"]
    assert len(found) == 12
    assert all(len(set(found[i : i + 3])) == 3 for i in range(0, 12, 3))
    assert mixed.size == 7


def test_the_order_depends_on_no_batch() -> None:
    one, many = stream(*parts(a=3, b=2)), stream(*parts(a=3, b=2))
    assert [p.id for n in (5, 1, 9) for p in one.take(n)] == [p.id for p in many.take(15)]


def levels(top: int = 3) -> MixturePart:
    return MixturePart("task", 1.0, [prompts("task", 4, level) for level in range(1, top + 1)])


def at(level: int) -> Prompt:
    return Prompt("", "", np.array([1]), "", "", "task", {"level": level})


def test_levels_follow_the_accuracy_of_the_last_groups() -> None:
    mixed = stream(levels())
    told = [(1, 1.0, 1), (1, 0.5, 2), (2, 1.0, 2), (2, 0.0, 2), (2, 0.5, 1), (1, 0.0, 1), (1, 0.0, 1), (1, 0.9, 1)]
    for level, accuracy, then in told:  # over two groups: 0.75 goes up, 0.25 down, and a new level begins with none
        mixed.judged(at(level), accuracy)
        assert mixed.levels() == {"task": then}, (level, accuracy)
        assert {p.extra["level"] for p in mixed.take(3)} == {then}


def test_groups_of_another_level_or_source_say_nothing() -> None:
    mixed = stream(levels(), *parts(other=1))
    for _ in range(8):
        mixed.judged(at(2), 1.0)  # dispatched before the level went down
        mixed.judged(prompts("other", 1)[0], 1.0)
    assert mixed.levels() == {"task": 1}
    for level in (1, 1, 2, 2, 3, 3, 3):
        mixed.judged(at(level), 1.0)
    assert mixed.levels() == {"task": 3}  # there is no fourth


def test_a_stream_goes_on_exactly_where_it_was() -> None:
    def course(mixed: MixtureStream, start: int, stop: int) -> list[str]:
        seen = []
        for n in range(start, stop):
            for prompt in mixed.take(2):
                seen.append(prompt.id)
                mixed.judged(prompt, [1.0, 0.9, 0.4, 0.0, 0.1, 1.0, 1.0][n % 7])
        return seen

    def fresh() -> MixtureStream:
        return stream(levels(), *parts(b=0.5))

    whole = course(fresh(), 0, 40)
    assert {name.split("/")[1] for name in whole if name.startswith("task")} >= {"1", "2"}
    for stop in (1, 7, 18, 29):
        first, second = fresh(), fresh()
        begun = course(first, 0, stop)
        second.load(json.loads(json.dumps(first.state())))
        assert begun + course(second, stop, 40) == whole


def test_the_position_of_another_mixture_is_refused() -> None:
    state = stream(*parts(a=1, b=1)).state()
    for other in (stream(*parts(a=1, b=2)), stream(*parts(a=1)), stream(MixturePart("a", 1, [prompts("a", 3, 1)] * 2))):
        with pytest.raises(DataError, match="another mixture"):
            other.load(state)
    with pytest.raises(DataError, match="another mixture"):
        stream(*parts(a=1)).load(EpochStream(prompts("a", 3), seed=5).state())
    with pytest.raises(DataError, match="has no prompt left at level 2"):
        stream(MixturePart("a", 1, [prompts("a", 1), []]))


def test_sources_and_levels_of_a_recipe(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "mine.jsonl", ("p q", "1"), ("r", "2"))
    task = TrainSource(
        task="signed_sum", size=20, weight=3, options={"min_terms": 2}, levels=[{"max_terms": 2}, {"max_terms": 9}]
    )
    made = prepare(Data(train=[task, file.model_copy(update={"weight": 1.0})]), WordTokenizer())
    assert [(p.name, p.weight, [len(level) for level in p.levels_L]) for p in made.parts] == [
        ("signed_sum", 3.0, [20, 20]),
        ("mine", 1.0, [2]),
    ]
    first, second = made.parts[0].levels_L
    assert {len(p.problem.split()) for p in first} == {3}  # two terms and the sign of equality
    assert max(len(p.problem.split()) for p in second) > 5
    assert {p.extra["level"] for p in second} == {2}
    assert {p.source for p in made.train} == {"signed_sum", "mine"}
    assert [s.name for s in made.report.train] == ["signed_sum, level 1", "signed_sum, level 2", "mine"]
    assert prepare(Data(train=[file]), WordTokenizer()).parts == []


TASK = {"task": "signed_sum", "size": 8}
LEVELS = [{"max_terms": 3}, {"max_terms": 5}]


@pytest.mark.parametrize(
    ("data", "sampling", "said"),
    [
        ({"train": [{**TASK, "weight": 1.0}, {**TASK, "name": "b"}]}, {}, r"data\.train\.1\.weight.*give every one"),
        ({"train": [{**TASK, "levels": LEVELS}, {**TASK, "name": "b"}]}, {}, "a source with levels among others"),
        ({"train": [{**TASK, "levels": LEVELS[:1]}]}, {}, "one level is none"),
        ({"train": [{**TASK, "weight": 1.0}], "epochs": 2}, {}, r"data\.epochs.*has no meaning"),
        ({"train": [TASK], "curriculum": {"window": 4}}, {}, r"data\.curriculum.*only read where"),
        ({"train": [{**TASK, "levels": LEVELS}], "curriculum": {"lower_at": 0.9}}, {}, "is not below raise_at: 0.8"),
        (
            {"train": [{**TASK, "levels": LEVELS}]},
            {"selection": {"retire": {}}},
            r"selection\.retire.*with levels every prompt",
        ),
        (
            {"train": [TASK], "validation": [{**TASK, "seed": 2, "weight": 1.0}]},
            {},
            r"data\.validation\.0\.weight.*no such key",
        ),
        ({"train": [TASK]}, {"selection": {"easy": {"at": 0.9}}}, r"selection\.easy\.share.*missing"),
        (
            {"train": [TASK]},
            {"selection": {"easy": {"at": 0.3, "share": 0.5}, "hard": {"at": 0.4, "share": 0.5}}},
            r"not below selection\.easy\.at",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(data: Any, sampling: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        recipe_from_dict(
            {
                "model": {"path": "builtin/signed-sum"},
                "data": data,
                "rewards": [{"kind": "task"}],
                "algorithm": {"dynamic_sampling": sampling},
            }
        )


def group(prompt: Prompt, accuracies: list[float], verdict: Verdict) -> Group:
    none = np.zeros(0)
    made = [Response(none, none, none, FinishReason.STOP)] * len(accuracies)
    return Group(0, prompt, made, [Score({"accuracy": a}, a) for a in accuracies], verdict=verdict)


def test_accuracy_and_verdicts_by_source() -> None:
    a, b = prompts("a", 1)[0], prompts("b", 1)[0]
    judged = [
        group(a, [1, 0], Verdict.KEPT),
        group(a, [1, 1], Verdict.ALL_CORRECT),
        group(b, [0, 0], Verdict.ALL_WRONG),
    ]
    found = source_metrics(judged, ("a", "b"), {"b": 2})
    assert (found["source/a/groups"], found["source/a/accuracy"], found["source/a/kept_share"]) == (2, 0.75, 0.5)
    assert (found["source/a/all_correct_share"], found["source/a/all_wrong_share"]) == (0.5, 0)
    assert (found["source/b/accuracy"], found["source/b/all_wrong_share"], found["source/b/level"]) == (0, 1, 2)
    assert source_metrics(judged, ("a",), {}) == {}


def test_easy_and_hard_prompts_are_taken_less_often() -> None:
    settings = Selection(easy={"at": 0.75, "share": 0.25}, hard={"share": 0.5})  # type: ignore[arg-type]
    data = prompts("a", 4)
    selector = PromptSelector(EpochStream(data, seed=1), PromptHistory(), settings, 3)
    right = ([1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0])  # easy, hard, in between; the last was never judged
    for prompt, accuracies in zip(data, right, strict=False):
        selector.visited(group(prompt, list(map(float, accuracies)), Verdict.KEPT), np.ones(4, bool), 1)
    explore = [selector.explore(selector.history.records[p.id]) for p in data[:3]]
    assert explore == [0.25, 0.5, 1.0]
    taken = [prompt.id for prompt in selector.take(1100)]
    counts = [taken.count(p.id) / 400 for p in data]
    for share, expected in zip(counts, (0.25, 0.5, 1.0, 1.0), strict=True):
        assert abs(share - expected) < 0.08
    again = PromptSelector(EpochStream(data, seed=1), PromptHistory(), settings, 3)
    again.load(selector.state())
    assert [p.id for p in again.take(50)] == [p.id for p in selector.take(50)]


def test_the_streams_have_the_optional_members_under_the_names_that_are_asked_for() -> None:
    parts = [MixturePart("a", 1.0, [prompts("a", 3), prompts("a", 5)]), MixturePart("b", 3.0, [prompts("b", 9)])]
    mixture = MixtureStream(parts, seed=0, shuffle=True, curriculum=RULE)
    selector = PromptSelector(mixture, PromptHistory(), Selection(), 0)
    assert (selector.pass_length, selector.sources, selector.levels()) == (13, ("a", "b"), {"a": 1})
    assert hasattr(mixture, "judged")
    assert PromptSelector(EpochStream(prompts("a", 3), seed=0), PromptHistory(), Selection(), 0).sources == ("a",)


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({}, (7, (), {})),
        ({"sources": ["a", "b"]}, (7, ("a", "b"), {})),
        ({"levels": lambda: {"a": 2}}, (7, (), {"a": 2})),
        ({"pass_length": 9}, (9, (), {})),
    ],
)
def test_a_stream_may_have_any_of_the_optional_members(members: dict[str, Any], found: tuple[Any, ...]) -> None:
    stream = SimpleNamespace(size=7, **members)
    selector = PromptSelector(stream, PromptHistory(), Selection(), run_seed=0)  # type: ignore[arg-type]
    assert (selector.pass_length, selector.sources, selector.levels()) == found
