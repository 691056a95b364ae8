"""Environments of ``verifiers`` in guarded processes, and whole runs with one."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from small_run import dapo
from test_run_environment import assert_recomputed, playing_recipe, weights

from dapo.environments.pool import EnvironmentPool
from dapo.environments.worker import Load
from dapo.errors import RecipeError
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics
from dapo.types.batch import Key, Prompt
from dapo.types.environment import NOT_HELD, Question, Spoken

pytestmark = [
    pytest.mark.verifiers,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("verifiers") is None, reason="make test-verifiers installs verifiers"),
]
HERE = Path(__file__).parent


@pytest.fixture
def started(monkeypatch):
    """Start pools of workers, which find the modules of this folder."""
    monkeypatch.chdir(HERE)
    made = []

    def start(name, data=None, reader="none", read=(), workers=1, **args):
        what = Load("verifiers", args, (), reader, 60.0, 4, False, None, name, data, read)
        made.append(EnvironmentPool(what, workers=workers))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close()


def asked(n, *texts, end=None, answer="13", sample=0):
    spoken = [Spoken(number, text, text, (3,), 9, 1) for number, text in enumerate(texts)]
    prompt = Prompt("id", "9 +4 =", np.array([1]), "9 +4 =", answer, "sums")
    past, turn = (spoken, None) if end else (spoken[:-1], spoken[-1])
    return Question(Key("train", n, sample), prompt, 1, tuple(past), turn, end)


def group(n, *samples):
    keys = tuple(Key("train", n, sample) for sample in samples)
    return Question(keys[0], asked(n, "").prompt, 1, members=keys)


def answers(pool, *questions):
    for one in questions:
        pool.ask(one)
    found = {}
    while len(found) < len(questions):
        found |= {answer.key: answer for answer in pool.poll(None)}
    return [found[one.key] for one in questions]


def said(answer):
    return [(message["role"], message["content"]) for message in answer.reply.messages]


def test_turns_are_answered_and_the_rubric_scores_where_the_episode_ends(started):
    pool = started("far-sums", read=("first_try",), size=20)
    hint, right = answers(pool, asked(0, "=10"), asked(1, "=13"))
    assert said(hint) == [("user", "+3")]
    assert (right.reply.done, right.reply.reward, right.reply.scores) == (True, 1.0, {"first_try": 1.0})
    assert right.reply.facts == {"right": 1.0, "first_try": 1.0, "num_turns": 2 - 1}
    (second,) = answers(pool, asked(0, "=10", "=13"))
    assert second.replayed is None
    assert (second.reply.reward, second.reply.scores, second.reply.facts["num_turns"]) == (1.0, {"first_try": 0.0}, 2.0)


def test_an_episode_that_is_not_there_is_played_again(started):
    (again,) = answers(started("far-sums", size=20), asked(0, "=10", "=13"))
    assert [None if each is None else each.messages[0]["content"] for each in again.replayed] == [None, "+3"]
    assert again.reply.reward == 1.0


def test_a_limit_ends_the_library_s_loop_and_the_rubric_scores_what_there_is(started):
    (ended,) = answers(started("far-sums", size=20), asked(0, "=10", end="tokens"))
    assert (ended.reply.done, ended.reply.reward, ended.reply.facts["num_turns"]) == (True, 0.0, 1.0)


def test_an_exception_fails_one_episode_and_no_other(started):
    failed, recorded, fine = answers(
        started("odd_cases"), asked(0, "=10"), asked(1, "=10", answer="14"), asked(2, "=10", answer="12")
    )
    assert failed.failure.startswith("exception: ValueError: unlucky")
    assert "recorded" in recorded.failure
    assert said(fine) == [("user", "+2")]


def test_a_reward_function_that_raises_scores_nothing(started):
    """The library logs it, and counts 0."""
    (failed,) = answers(started("odd_cases", kind="breaks"), asked(0, "=13"))
    assert "Error calling reward function breaks" in failed.failure


@pytest.mark.parametrize("cut", [True, False])
def test_the_library_knows_that_a_turn_met_its_limit_of_tokens(started, cut):
    question = asked(0, "=13")
    (told,) = answers(started("odd_cases", kind="truncated"), replace(question, turn=question.turn._replace(cut=cut)))
    assert told.reply.reward == float(cut)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("rewrites", "=10", "rewrote earlier messages"),
        ("changes", "=13", "something else than its record's prompt"),
        ("twice", "=10", "two turns at once"),
    ],
)
def test_an_environment_that_changes_what_was_said_is_refused(started, kind, text, reason):
    (failed,) = answers(started("odd_cases", kind=kind), asked(0, text))
    assert reason in failed.failure


def test_tools_of_an_environment_are_called_by_the_model(started):
    pool = started("odd_cases", kind="tools", reader="hermes")
    assert [tool["function"]["name"] for tool in pool.abilities.tools] == ["add"]
    call = f"<tool_call>{json.dumps({'name': 'add', 'arguments': {'a': 9, 'b': 4}})}</tool_call>"
    (sum_,) = answers(pool, asked(0, call))
    assert said(sum_) == [("tool", "13")]
    (last,) = answers(pool, asked(0, call, "=13"))
    assert (last.reply.done, last.reply.reward) == (True, 1.0)


def test_what_cannot_be_played_is_refused_at_the_start(started):
    with pytest.raises(RecipeError, match="'not-there' cannot be loaded"):
        started("not-there")


def numbers(scored):
    return [(one.reward, one.scores, dict(one.facts)) for one in scored.members]


def test_a_rubric_that_compares_is_asked_once_about_a_whole_group(started):
    """Half a point for the right sum, half for the fewest turns of the group; turns of another group do not count."""
    pool = started("far-sums", read=("first_try",), workers=2, size=20, compared=True)
    assert pool.abilities.compares
    first = answers(pool, *(asked(0, text, sample=n) for n, text in enumerate(["=13", "=10", "=99"])), asked(1, "=10"))
    assert [(one.reply.done, one.reply.reward, one.reply.facts) for one in first] == [
        (True, 0.0, {}),
        (False, 0.0, {}),
        (True, 0.0, {}),
        (False, 0.0, {}),
    ]
    second = answers(pool, asked(0, "=10", "=13", sample=1), asked(1, "=10", "=13"))
    assert [one.replayed for one in second] == [None, None]
    whole, other = answers(pool, group(0, 0, 1, 2), group(1, 0))
    facts = {"right": 1.0, "fewest_turns": 1.0, "first_try": 1.0, "num_turns": 1.0}
    assert numbers(whole) == [
        (1.0, {"first_try": 1.0}, facts),
        (0.5, {"first_try": 0.0}, {**facts, "fewest_turns": 0.0, "first_try": 0.0, "num_turns": 2.0}),
        (0.5, {"first_try": 0.0}, {**facts, "right": 0.0, "first_try": 0.0}),
    ]
    assert [one.reward for one in other.members] == [1.0], "the only one of its group"


def test_an_episode_that_its_process_does_not_hold_is_named_and_scored_once_it_was_played_again(started):
    pool = started("far-sums", size=20, compared=True)
    answers(pool, asked(0, "=13"))
    (scored,) = answers(pool, group(0, 0, 1))
    assert (scored.failure, scored.members) == (NOT_HELD, ())
    answers(pool, asked(0, "=13"), asked(0, "=10", end="turns", sample=1))
    (scored,) = answers(pool, group(0, 0, 1))
    assert [one.reward for one in scored.members] == [1.0, 0.5]
    pool.drop(Key("train", 0, 1))
    assert answers(pool, group(0, 0, 1))[0].failure == NOT_HELD


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("compared", "Error calling group reward function compared: 2"),
        ("too_few", "IndexError: list index out of range"),
    ],
)
def test_a_comparison_that_raises_scores_nothing_and_its_worker_goes_on(started, kind, reason):
    """The library logs it, and counts 0."""
    pool = started("odd_cases", kind=kind)
    answers(pool, asked(0, "=12", answer="12"), asked(0, "=11", end="turns", answer="12", sample=1))
    (failed,) = answers(pool, group(0, 0, 1))
    assert reason in failed.failure
    assert said(answers(pool, asked(1, "=10", answer="12"))[0]) == [("user", "+2")]


def test_a_mixture_compares_if_one_of_its_environments_does(started):
    assert started("odd_cases", kind="mixture").abilities.compares


def recipe(folder: Path, compared: bool = False) -> Path:
    """Write a recipe for a tiny random model beside its environment."""
    folder.mkdir(exist_ok=True)
    (folder / "far_sums.py").write_text((HERE / "far_sums.py").read_text())
    make_tiny_model(folder / "model", "llama", seed=1)
    (folder / "recipe.yaml").write_text(
        f"""
run: {{name: run, dir: .}}
model: {{path: model}}
environment:
  {{kind: verifiers, id: far-sums, args: {{size: 400, compared: {str(compared).lower()}}},
   max_turns: 3, max_turn_tokens: 4, workers: 1}}
data: {{validation: [{{task: environment, split: eval, name: held_out}}]}}
rollout: {{prompts_per_step: 4, group_size: 8, max_response_tokens: 20, slots: 12}}
algorithm: {{dynamic_sampling: {{oversample: 3, cap: {{groups: 60, then: train_partial}}}}, overlong_filtering: false}}
learner: {{learning_rate: 1.0e-3}}
validation: {{every: 4, samples: 1}}
checkpoint: {{every: 1}}
trainer: {{steps: 4}}
"""
    )
    return folder / "recipe.yaml"


@pytest.mark.parametrize("compared", [False, True])
def test_a_run_takes_data_and_rewards_and_goes_on_to_the_same_bits_after_a_stop(tmp_path, compared):
    for name, steps in (("whole", 4), ("cut", 2)):
        path = recipe(tmp_path / name, compared)
        dapo("train", path.name, f"trainer.steps={steps}", cwd=path.parent)
    cut = tmp_path / "cut"
    dapo("train", "--resume", "run", "trainer.steps=4", cwd=cut)
    rows = [row for row in read_metrics(cut / "run/metrics.jsonl") if row.get("groups/finished")]
    assert all(row["environment/errors"] == 0 for row in rows)
    assert all("environment/fact/first_try" in row for row in rows)
    assert all(("environment/fact/fewest_turns" in row) == compared for row in rows)
    ours, theirs = weights(cut / "run"), weights(tmp_path / "whole/run")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("more", [(), ("environment.id=not-there",)])
def test_a_check_leaves_nothing_behind(tmp_path, monkeypatch, more):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    dapo("check", recipe(tmp_path).name, *more, cwd=tmp_path, expect=None if more else 0)
    assert list(temporary.iterdir()) == []


def test_a_plain_forward_pass_gives_the_log_probabilities_of_all_model_tokens(tmp_path):
    with playing_recipe(recipe(tmp_path), count=32) as (_, learner, groups):
        assert_recomputed(learner, groups, fewest=5)
