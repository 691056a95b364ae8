"""Whole training steps of TRL and verl against ours on the same rollouts (``fixtures/steps-*.json``).

Loss, gradient norm and weights, over three rollout batches. A peer's step is its trainer's own (``ask_trl_steps.py``,
``ask_verl_steps.py``); ours is ``dapo.train`` and ``dapo.sft`` (``our_steps.py``).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from our_steps import answer, cheaply, imitate, train
from step_differences import DIFFERENCES, page
from step_questions import IMITATIONS, STEPS, TRL, VERL
from steps import distance, sketch, weights_of, write_model

FOLDER = Path(os.environ.get("DAPO_ORACLE_ANSWERS", Path(__file__).parent / "fixtures"))
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "step_differences.md"
NUMBERS = {"rtol": 5e-5, "atol": 2e-6}  # of losses and gradient norms; at most 2e-5 was seen
WEIGHTS = 6e-5  # of the weights' change: |ours - theirs| / |theirs|; at most 2e-5 was seen
APART = 1e-2
"""What is apart by definition shows by at least so much, in the loss, the gradient's norm or the weights' change."""


QUICK = {
    TRL: (
        *("dapo", "dapo, one optimiser step", "dapo, masked", "grpo, KL", "bnpo", "dr_grpo", "cispo", "gspo"),
        *("correction, token_truncate", "its own defaults", "scaled rewards", "turns, grpo"),
        "dapo, two passes",
    ),
    VERL: (
        *("token-mean", "token-mean, old is the sampler's", "seq-mean-token-mean", "KL in the reward", "entropy"),
        *("correction, sequence", "its own defaults for GRPO, with the KL loss", "no dual clip"),
        *("two passes", "turns, token-mean"),
    ),
}
"""Of the steps, for the default tests; the others are slow only by their number."""


def mark_of(peer, name):
    if name not in QUICK[peer]:
        return pytest.mark.slow
    return pytest.mark.whole if name.startswith("turns") else ()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("steps") / "model")


@pytest.fixture(scope="module")
def quick(model):
    with cheaply(model):
        yield


def fixture(peer):
    path = FOLDER / f"steps-{peer}.json"
    return json.loads(path.read_text()) if path.exists() else None


FIXTURES = {peer: fixture(peer) for peer in (TRL, VERL)}


def theirs(peer, kind, name):
    found = FIXTURES[peer]
    if found is None:
        assert "DAPO_ORACLE_ANSWERS" in os.environ, f"a committed fixture is missing in {FOLDER}"
        pytest.skip("this peer could not be asked here")
    (case,) = [case for case in found["cases"] if case.get(kind) == name]
    return found, case


def deviations(ours, theirs):
    """How far two answers are apart: (loss, gradient norm, change of the weights), each at its worst step."""
    numbers = [
        max(abs(a - b) / max(abs(b), 0.05) for a, b in zip(ours[key], theirs[key], strict=True))
        for key in ("loss", "grad_norm")
    ]
    return (*numbers, max(map(distance, ours["update"], theirs["update"])))


def assert_equal(ours, theirs):
    for key in ("loss", "grad_norm"):
        np.testing.assert_allclose(ours[key], theirs[key], **NUMBERS, err_msg=key)
    for step, (own, other) in enumerate(zip(ours["update"], theirs["update"], strict=True)):
        assert distance(own, other) < WEIGHTS, f"weights after training step {step + 1}"


@pytest.mark.parametrize(
    ("peer", "name"),
    [pytest.param(peer, name, marks=mark_of(peer, name)) for peer, steps in STEPS.items() for name in steps],
)
@pytest.mark.usefixtures("quick")
def test_a_whole_step_is_the_peers_or_apart_by_definition(peer, name, model, tmp_path):
    step = STEPS[peer][name]
    found, case = theirs(peer, "step", name)
    assert case["theirs"] == json.loads(json.dumps(step.theirs)), "asked with other settings: make the fixture again"
    ours = answer(step.ours, step.reward_factor, model, found["worlds"][step.world], tmp_path)
    if step.equal:
        assert_equal(ours, case["answer"])
        return
    apart = deviations(ours, case["answer"])
    assert max(apart) > APART
    if step.scale is not None:
        for key in (
            "loss",
            "grad_norm",
        ):  # AdamW's eps makes the second optimiser step of a batch follow another update
            assert ours[key][0] / case["answer"][key][0] == pytest.approx(step.scale, rel=1e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_weight_decay_is_apart_in_the_norms_alone(model, tmp_path):
    step = STEPS[TRL]["norms do not decay"]
    found, case = theirs(TRL, "step", step.name)
    ours = answer(step.ours, 1.0, model, found["worlds"][step.world], tmp_path)["update"][0]
    other = case["answer"]["update"][0]
    assert distance(ours, other, only="norm") > 10 * distance(ours, other, only="proj") > 0


def test_the_loop_that_is_compared_is_the_program(model, tmp_path):
    step = STEPS[TRL]["correction, token_truncate"]
    found, _ = theirs(TRL, "step", step.name)
    asked = (step.ours, 1.0, model, found["worlds"][step.world])
    with cheaply(model):
        ours = answer(*asked, tmp_path / "loop")
    assert train(*asked, tmp_path / "program") == ours


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "completion-only" else pytest.mark.slow) for n in IMITATIONS]
)
def test_a_supervised_run_is_that_of_trl(name, model, tmp_path):
    one = IMITATIONS[name]
    _, case = theirs(TRL, "imitation", name)
    assert case["theirs"] == one.theirs
    ours = imitate(one.ours, model, tmp_path)
    assert len(ours["loss"]) == 3
    if one.equal:
        assert_equal(ours, case["answer"])
    else:
        assert max(deviations(ours, case["answer"])) > APART


def test_every_difference_shows_and_the_setting_closes_it():
    for row in DIFFERENCES:
        apart, equal = STEPS[row.peer][row.apart], row.equal and STEPS[row.peer][row.equal]
        assert not apart.equal
        if equal is None:
            continue
        assert equal.equal
        named = {
            key: yaml.safe_load(value)
            for key, value in re.findall(r"`((?:algorithm|learner)\.[\w.]+): (\w[\w.-]*)`", row.closes)
        }
        assert named.items() <= equal.ours.items(), row
        assert not named or not named.items() <= apart.ours.items(), row
    assert all(name in STEPS[peer] for peer, names in QUICK.items() for name in names)
    shown = {(row.peer, row.apart) for row in DIFFERENCES}
    assert shown == {(peer, s.name) for peer, steps in STEPS.items() for s in steps.values() if not s.equal}
    assert page() == PAGE.read_text(), "python tests/oracles/step_differences.py prints this page"


def test_a_sketch_sees_a_change_of_any_tensor(model):
    from transformers import AutoModelForCausalLM

    before = weights_of(AutoModelForCausalLM.from_pretrained(model))
    after = {name: value + 0.01 * np.sign(value) for name, value in before.items()}
    exact = sketch(before, after)
    assert distance(exact, exact) == 0
    for name in before:
        moved = after | {name: before[name] + (after[name] - before[name]) * 1.01}
        share = 0.01 * exact[name][0] / np.sqrt(sum(numbers[0] ** 2 for numbers in exact.values()))
        assert 0.1 * share < distance(sketch(before, moved), exact) < 3 * share
