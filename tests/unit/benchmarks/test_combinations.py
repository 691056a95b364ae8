"""Drawn combinations: recipes allow them, kills are real, and the comparison sees an open account."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from dapo.config.load import load_recipe
from dapo.environments.speech import make_speech
from dapo.models.builtin import ensure_builtin_model

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
CLOSED = {
    "step": 1,
    "groups/waiting": 1,
    "groups/unfinished": 2,
    "cost/held_tokens": 30,
    **{f"total/groups/{name}": 4 for name in ("trained", "filled", "discarded", "expired")},
    "total/groups/dispatched": 19,
    **{f"total/cost/{name}_tokens": 10 for name in ("trained", "filled", "rejected", "discarded", "expired")},
    "counters/generated_tokens": 80,
}


@pytest.fixture
def combinations(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import combinations

    return combinations


def test_a_number_draws_the_same_settings_and_a_recipe_accepts_them(combinations):
    first, again, other = (combinations.drawn(random.Random(number)) for number in (3, 3, 4))
    assert first == again != other
    for overrides in (first, other):
        assert len(overrides) > 3
        load_recipe("quickstart", [*combinations.COMMON, *overrides])


def test_settings_that_are_refused_together_are_left_out_one_by_one(combinations, monkeypatch):
    never_bind = ["preset=gspo", "algorithm.clip={low: 0.1, high: 0.1}", "rollout.slots=5"]
    monkeypatch.setattr(combinations, "CHOICES", [(1.0, [never_bind])])
    monkeypatch.setattr(combinations, "REWARDS", [])
    monkeypatch.setattr(combinations, "EPISODES", [])
    kept = {tuple(combinations.drawn(random.Random(number))) for number in (1, 2, 5, 8)}
    assert all("rollout.slots=5" in overrides and len(overrides) == 2 for overrides in kept)


def alternatives(combinations):
    """Each set of overrides with what it needs: an environment's settings need an environment."""
    game = [one for share, sets in combinations.EPISODES if share == 1.0 for one in sets[0]]
    for base, choices in (([], combinations.CHOICES + combinations.REWARDS), (game, combinations.EPISODES)):
        for _, sets in choices:
            yield from ([*base, *one] for one in sets)


def test_every_choice_is_accepted_on_its_own(combinations):
    for overrides in alternatives(combinations):
        load_recipe("quickstart", [*combinations.COMMON, *overrides])


def test_the_template_of_rows_by_turn_can_write_a_dialogue(combinations, tmp_path):
    (overrides,) = [one for one in alternatives(combinations) if "environment.rows=turns" in one]
    recipe = load_recipe("quickstart", [*combinations.COMMON, *overrides]).recipe
    folder = ensure_builtin_model("builtin/signed-sum", tmp_path)
    coder = AutoTokenizer.from_pretrained(folder)
    speech = make_speech(recipe.data, coder, chat=True, rows=recipe.environment.rows)
    assert speech.end_of_turn == "<eos>"
    said = [{"role": "user", "content": "3 +1 ?"}, {"role": "assistant", "content": "=4"}]
    ids = speech.written([*said, {"role": "user", "content": "+1"}])
    assert coder.convert_ids_to_tokens(ids) == ["3", "+1", "?", "=4", "<eos>", "+1"]


def test_a_setting_that_was_only_ever_refused_fails_the_command(combinations):
    tried = [("refused", ["a", "b"]), ("equal", ["b", "c"]), ("refused", ["a", "d"]), ("failed", ["d"])]
    assert combinations.always_refused(tried) == ["a"]
    assert combinations.always_refused(tried[1:]) == []  # once may be another's fault


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["equal", "equal"], 0),
        (["refused", "equal"], 0),
        (["refused", "refused"], 1),
        (["equal", "differs"], 1),
        (["equal", "failed"], 1),
    ],
)
def test_the_command_fails_where_a_run_differs_or_fails_or_a_setting_was_never_tried(
    combinations, tmp_path, monkeypatch, words, code
):
    def ended(_, number, folder, __):
        folder.mkdir()
        return words[number - 1], [], ["preset=dapo"]

    monkeypatch.setattr(combinations, "try_one", ended)
    monkeypatch.setattr(combinations, "Runner", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(combinations, "ensure_builtin_model", lambda *_: tmp_path)
    monkeypatch.setattr("sys.argv", ["combinations", "--work", str(tmp_path), "--count", str(len(words))])
    assert combinations.main() == code


def run_folder(folder, row, weight=1.0):
    (folder / "checkpoints/step_000001/learner").mkdir(parents=True)
    (folder / "rollouts").mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    save_file({"w": torch.tensor([weight])}, folder / "checkpoints/step_000001/learner/model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"groups/waiting": 0}, "groups: 18 have an end or are held, 19 began"),
        ({"total/cost/rejected_tokens": 11}, "tokens: 81 have an end or are held, 80 began"),
    ],
)
def test_an_account_that_does_not_close_is_seen(combinations, tmp_path, changed, said):
    whole, cut = (run_folder(tmp_path / name, CLOSED | changed) for name in ("whole", "cut"))
    found = combinations.differences(whole, cut)
    assert [line.strip() for line in found] == ([] if said is None else [said])


def test_another_weight_is_seen(combinations, tmp_path):
    runs = [run_folder(tmp_path / str(weight), CLOSED, weight) for weight in (1.0, 1.5)]
    (line,) = combinations.differences(*runs)
    assert "weights: w" in line


def test_a_run_is_killed_then_resumed_from_its_checkpoint_or_begun_again_without_one(combinations, tmp_path):
    class Killed:
        """Is killed before its first checkpoint, then after it, and then ends."""

        def __init__(self):
            self.verbs, self.limits = [], []

        def run(self, words, output, limit):
            assert output == tmp_path / "cut.txt"
            self.verbs.append(words[:2])
            self.limits.append(limit)
            (tmp_path / "cut" / "half").mkdir(parents=True, exist_ok=True)
            if len(self.verbs) == 2:
                assert list((tmp_path / "cut").iterdir()) == [tmp_path / "cut/half"]
                (tmp_path / "cut/checkpoints/step_000001").mkdir(parents=True)
            return 0 if len(self.verbs) == 3 else None

    runner = Killed()
    code = combinations.killed_and_resumed(runner, ["train", "quickstart"], tmp_path / "cut", 10.0, random.Random(1))
    assert code == 0
    assert runner.verbs == [["train", "quickstart"]] * 2 + [["train", "--resume"]]
    assert all(2.0 <= limit <= 10.0 for limit in runner.limits)
