"""What a run takes of this machine, by hand-worked values; the speed of the processor is given."""

from __future__ import annotations

import pytest
import torch
from test_cli_check_memory import facts_with, recipe_with

from dapo.cli import check_machine
from dapo.cli.check_machine import Prompts, needs_here
from dapo.cli.check_memory import estimate_memory, largest_pass

PARAMETERS = 10_000_000


@pytest.fixture
def machine(monkeypatch):
    """A machine with 4 cores and 8 GiB, whose products reach 10^9 operations a second of a thread."""
    monkeypatch.setattr(check_machine, "_product_rate", lambda name, inner, outer, rows: 1e9)
    monkeypatch.setattr(check_machine, "core_count", lambda: 4)
    monkeypatch.setattr(check_machine, "memory_size", lambda: 8 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_seconds_of_a_step_by_hand(machine):
    recipe = recipe_with(
        algorithm={"dynamic_sampling": {"mode": "off"}}, learner={"minibatch_prompts": 2}, validation={"every": 0}
    )
    needs = needs_here(recipe, facts_with(PARAMETERS), Prompts(10, 12))
    # 8 responses of 15 tokens and 4 prompts of 10; 2 operations a weight; 90 % of the products' speed; 2 layers
    assert needs.generate == pytest.approx(2e7 * (120 + 40) / 0.9e9 + 15 * 2 * 1.5e-4)
    # forward and backward over 160 tokens, and two optimizer steps
    assert needs.learn == pytest.approx(3 * 2e7 * 160 / 0.9e9 + 2 * PARAMETERS * 6e-9)
    assert needs.seconds(recipe) == pytest.approx(recipe.trainer.steps * needs.step)


def test_threads_count_up_to_the_cores(machine):
    found = {
        threads: needs_here(recipe_with(run={"threads": threads}), facts_with(PARAMETERS), Prompts(10, 12)).generate
        for threads in (1, 2, 4, 16)
    }
    assert found[1] == pytest.approx(2 * found[2]) == pytest.approx(4 * found[4])
    assert found[16] == found[4]


def test_evaluations_are_counted_with_their_responses(machine):
    recipe = recipe_with(
        validation={"every": 10, "samples": 3, "greedy": True, "max_response_tokens": 60}, trainer={"steps": 25}
    )
    needs = needs_here(recipe, facts_with(PARAMETERS), Prompts(10, 12, held_out=5))
    tokens = 5 * (3 + 1) * 30
    assert needs.evaluation == pytest.approx(2e7 * (tokens + 50) / 0.9e9 + 30 * 2 * 1.5e-4)
    assert needs.seconds(recipe) == pytest.approx(25 * needs.step + 4 * needs.evaluation)  # 0, 10, 20 and 25


def test_memory_is_that_of_all_processes_on_a_processor(machine):
    facts = facts_with(100_000_000)
    one = needs_here(recipe_with(), facts, Prompts(10, 12))
    assert 16 * facts.parameters < one.memory < 17 * facts.parameters + 2**29
    assert one.fits
    assert one.has == 8 * 2**30
    ranks = recipe_with(learner={"ranks": 8})
    each = estimate_memory(ranks, facts, 12)
    many = needs_here(ranks, facts, Prompts(10, 12))
    assert many.memory > 8 * (each.weights + each.gradients + each.optimiser + 300 * 2**20)
    assert not needs_here(recipe_with(), facts_with(10**9), Prompts(10, 12)).fits


@pytest.mark.parametrize(
    ("sections", "tokens"),
    [
        ({}, 4 * (12 + 2 * 30)),  # four groups that share their prompts
        ({"learner": {"microbatch_tokens": 100, "minibatch_prompts": 1}}, 12 + 2 * 30),
        ({"learner": {"microbatch_tokens": 100}}, 100),
        ({"learner": {"microbatch_tokens": 8}}, 12 + 30),  # a long row has a pass of its own
        ({"model": {"path": "a/b", "attention": "padded"}}, 4 * 2 * (12 + 30)),
    ],
)
def test_a_pass_is_no_larger_than_its_minibatch(sections, tokens):
    recipe = recipe_with(**{"learner": {"microbatch_tokens": 16384}, **sections})
    assert largest_pass(recipe, 12) == tokens
    more = recipe.learner.model_copy(update={"microbatch_tokens": 16384})
    whole = estimate_memory(recipe.model_copy(update={"learner": more}), facts_with(PARAMETERS), 12)
    assert estimate_memory(recipe, facts_with(PARAMETERS), 12).activations <= whole.activations
