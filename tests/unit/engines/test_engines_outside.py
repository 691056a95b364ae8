"""What engines with weights and generators of their own need: seeds behind a prefix, weights in a folder."""

import numpy as np
import pytest
import torch

from dapo.config import recipe_from_dict
from dapo.errors import RecipeError
from dapo.models.weight_files import read_shapes, read_weights, write_weights
from dapo.run import engines
from dapo.types.batch import Response, SampleRequest, SamplingParams
from dapo.types.seeds import generator_seed


def request(seed, made):
    prefix = Response(np.zeros(made, np.int64), np.zeros(made, np.float32), np.zeros(made, np.int32))
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
    assert read_shapes(tmp_path / "new") == {name: list(tensor.shape) for name, tensor in tensors.items()}
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) and back[name].dtype is tensor.dtype for name, tensor in tensors.items())


def test_an_engine_whose_package_is_missing_is_refused_with_the_extra(monkeypatch):
    recipe = recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum", "size": 8}]},
            "rollout": {"engine": "vllm"},
        }
    ).recipe
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install '\w+>=[\d.]+'.*rollout.engine: embedded"):
        engines.check_engine(recipe)
    embedded = recipe.rollout.model_copy(update={"engine": "embedded"})
    engines.check_engine(recipe.model_copy(update={"rollout": embedded}))


def test_moments_in_8_bits_without_torchao_are_refused_with_the_extra(monkeypatch):
    recipe = recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum", "size": 8}]},
            "learner": {"optimizer": "adamw_8bit"},
        }
    ).recipe
    find = engines.importlib.util.find_spec
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None if name == "torchao" else find(name))
    with pytest.raises(RecipeError, match=r"needs the package torchao.*pip install .*moments in float32"):
        engines.check_engine(recipe)


def test_graphs_that_a_recipe_insists_on_are_refused_without_a_card_before_anything_is_loaded(monkeypatch):
    def recipe_with(**more):
        given = {"model": {"path": "no/such"}, "data": {"train": [{"task": "signed_sum", "size": 8}]},
                 "rollout": {"embedded": {"cuda_graphs": True}}}  # fmt: skip
        return recipe_from_dict(given | more).recipe

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        RecipeError, match=r"cuda_graphs is true, and model.device: auto is a CPU here.*take the setting"
    ):
        engines.check_engine(recipe_with())
    engines.check_engine(recipe_with(rollout={}))
    assert engines.missing_card(recipe_with(launch={"backend": "ray"})) is None  # devices are the cluster's
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    engines.check_engine(recipe_with())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "engine: embedded; old log-probabilities: the sampler's own"),
        (
            {"rollout": {"engine": "generate"}},
            "engine: generate; old log-probabilities: the learner's; correction of the gap: truncate",
        ),
        (
            {
                "rollout": {"engine": "vllm_server", "server": {"url": "http://h:1"}},
                "algorithm": {"correction": {"kind": "mask_token"}},
            },
            "engine: vllm_server at http://h:1; old log-probabilities: the learner's; "
            "correction of the gap: mask_token",
        ),
    ],
)
def test_what_depends_on_the_engine_is_said(settings, said):
    base = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum", "size": 8}]}}
    assert engines.describe_engine(recipe_from_dict(base | settings).recipe) == said
