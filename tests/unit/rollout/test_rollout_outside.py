"""What engines with weights and generators of their own need: seeds behind a prefix, weights in a folder."""

import numpy as np
import pytest
import torch

from dapo.build import engines
from dapo.config import recipe_from_dict
from dapo.contracts.types import Partial, SampleRequest, SamplingParams
from dapo.errors import RecipeError
from dapo.rollout.seeds import generator_seed
from dapo.rollout.weights import read_weights, write_weights


def request(seed, made):
    prefix = Partial(np.zeros(made, np.int64), np.zeros(made, np.float32), np.zeros(made, np.int32))
    return SampleRequest((0, 0), np.array([1]), SamplingParams(10), seed, prefix if made else None)


def test_seeds_differ_behind_every_prefix_and_fit_a_generator():
    seeds = {generator_seed(request(seed, made)) for seed in range(50) for made in range(40)}
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    torch.Generator().manual_seed(max(seeds))
    assert generator_seed(request(3, 7)) == generator_seed(request(3, 7))


def test_weights_through_a_folder_are_the_same_bits(tmp_path):
    tensors = {"a.weight": torch.randn(3, 4).t(), "b": torch.tensor(7.0), "c": torch.randn(5).bfloat16()}
    write_weights(tmp_path / "new", tensors.items())
    write_weights(tmp_path / "new", tensors.items())  # again, over the old ones
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["model.safetensors"]
    with pytest.raises(FileNotFoundError, match="cannot be seen"):
        read_weights(tmp_path / "old")
    back = dict(read_weights(tmp_path / "new"))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) and back[name].dtype is tensor.dtype for name, tensor in tensors.items())


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_an_engine_whose_package_is_missing_is_refused_with_the_extra(monkeypatch, engine):
    recipe = recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum", "size": 8}]},
            "rollout": {"engine": engine, "server": {"url": "http://localhost:1"}},
        }
    ).recipe
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=rf"pip install 'dapo-rl\[{engine}\]'.*rollout.engine: embedded"):
        engines.check_engine(recipe)
    embedded = recipe.rollout.model_copy(update={"engine": "embedded"})
    engines.check_engine(recipe.model_copy(update={"rollout": embedded}))
