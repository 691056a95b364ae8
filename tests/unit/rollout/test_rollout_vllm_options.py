"""What vLLM is told at its start, without vLLM."""

from __future__ import annotations

import pytest

from dapo.config.schema import Vllm
from dapo.models.facts import facts_of
from dapo.rollout.vllm_options import engine_args


def args(loaded, *, fp32_head=False, **settings):
    return engine_args(facts_of(loaded), 64, 8, Vllm(**settings), cuda=True, sleeps=True, fp32_head=fp32_head)


@pytest.fixture
def loaded(model):
    found = model("llama")
    found.fingerprint = {}
    return found


def test_a_float32_head_is_vllms_too(loaded):
    assert "hf_overrides" not in args(loaded)
    assert args(loaded, fp32_head=True)["hf_overrides"] == {"head_dtype": "float32"}


def test_overrides_of_the_recipe_stay(loaded):
    given = {"hf_overrides": {"rope_theta": 1e6}}
    assert args(loaded, engine_args=given)["hf_overrides"] == {"rope_theta": 1e6}
    both = args(loaded, fp32_head=True, engine_args=given)["hf_overrides"]
    assert both == {"rope_theta": 1e6, "head_dtype": "float32"}
