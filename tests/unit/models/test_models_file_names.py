"""A rank of a mixture of experts reads its own experts from files that hold them one by one."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
import torch
from expert_models import ARCHITECTURES, save_experts
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dapo.errors import ModelError
from dapo.models import read as reading
from dapo.models import weight_files
from dapo.models.load import whole_model
from dapo.models.read import give_memory, read_weights_of
from dapo.models.skeleton import model_without_weights
from dapo.models.slices import own_part


def read(folder, model):
    read_weights_of(str(folder), model, torch.float32, trust_remote_code=False)


def empty(folder):
    return model_without_weights(str(folder), torch.float32, trust_remote_code=False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_experts_are_stacked_as_transformers_does(architecture, tmp_path, caplog):
    save_experts(tmp_path, architecture)
    model, expected = empty(tmp_path), whole_model(str(tmp_path), torch.float32, trust_remote_code=False)
    give_memory(model, torch.device("cpu"))
    with caplog.at_level(logging.WARNING, "dapo"):
        read(tmp_path, model)
    assert not caplog.records  # nothing was read whole
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


class Counting:
    """An open file that counts the bytes it gives."""

    def __init__(self, file, counted):
        self._file, self._counted = file, counted

    def __getattr__(self, name):
        return getattr(self._file, name)

    def get_tensor(self, name):
        tensor = self._file.get_tensor(name)
        self._counted[name] = tensor.nbytes
        return tensor


def test_a_rank_reads_its_own_experts_only(tmp_path, monkeypatch):
    """Of 8 experts over 4 ranks, rank 1 reads the third and the fourth: a quarter of the bytes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    save_experts(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    counted = {}

    @contextmanager
    def opened(paths):
        with weight_files.opened(paths) as places:
            yield {name: [Counting(one, counted) for one in files] for name, files in places.items()}

    monkeypatch.setattr(reading, "opened", opened)
    monkeypatch.setattr("torch.distributed.checkpoint.state_dict_loader.load", lambda *_, **__: None)  # asks all ranks
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    try:
        model = empty(tmp_path)
        fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
        give_memory(model, torch.device("cpu"))
        read(tmp_path, model)
        layers = [(name, own_part(tensor)) for name, tensor in model.state_dict().items() if ".experts." in name]
    finally:
        torch.distributed.destroy_process_group()
    assert {name.split(".experts.")[1].split(".")[0] for name in counted} == {"2", "3"}
    experts = sum(tensor.nbytes for name, tensor in tensors.items() if ".experts." in name)
    assert sum(counted.values()) == experts / 4
    assert len(layers) == 4
    for name, own in layers:
        place = name.rpartition(".")[0]
        parts = ["down_proj"] if name.endswith("down_proj") else ["gate_proj", "up_proj"]
        for row, expert in enumerate((2, 3)):
            assert torch.equal(own[row], torch.cat([tensors[f"{place}.{expert}.{part}.weight"] for part in parts]))


def test_a_missing_expert_is_refused(tmp_path):
    save_experts(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    model = empty(tmp_path)
    give_memory(model, torch.device("cpu"))
    with pytest.raises(ModelError, match=r"another shape .*layers\.1\.mlp\.experts\.gate_up_proj"):
        read(tmp_path, model)
