"""What vLLM is told at its start, without vLLM."""

from __future__ import annotations

import pytest

from dapo.config.schema import Vllm
from dapo.engines.vllm_options import engine_args
from dapo.errors import EngineError
from dapo.models.facts import facts_of


def args(loaded, *, fp32_head=False, adapter_rank=None, **settings):
    own = {"fp32_head": fp32_head, "adapter_rank": adapter_rank}
    return engine_args(facts_of(loaded), 64, 8, Vllm(**settings), cuda=True, sleeps=True, **own)


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


def test_an_adapter_that_comes_by_itself_gets_room_beside_weights_of_the_folder(loaded):
    assert (args(loaded)["load_format"], "enable_lora" in args(loaded)) == ("dummy", False)
    found = args(loaded, adapter_rank=12)
    assert (found["load_format"], found["enable_lora"], found["max_lora_rank"]) == ("auto", True, 16)
    with pytest.raises(EngineError, match=r"rank is 513.*up to rank 512.*lora\.merge to true"):
        args(loaded, adapter_rank=513)
