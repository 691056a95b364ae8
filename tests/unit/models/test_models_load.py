"""Loading: what is refused and how, end-of-sequence ids, tokenizers, and the probe."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from dapo.config.schema import Lora
from dapo.errors import ModelError
from dapo.models import attention, loaded, packed_attention, tokenizer
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.run.export import write_adapter


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def edit(folder, name, **changes):
    file = folder / name
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_a_tiny_model_loads_packed(folder):
    model = load_model(folder)
    assert model.packed
    assert model.notes == ()
    assert model.stop_token_ids == (1,)
    assert model.pad_token_id == 0
    assert model.model.config._attn_implementation == attention.NAME
    assert not model.model.training
    assert model.fingerprint["parameters"] == 111_936
    assert model.fingerprint["tied"] is True
    json.dumps(model.fingerprint)


def test_padded_keeps_the_models_own_attention(folder):
    model = load_model(folder, attention_mode="padded")
    assert not model.packed
    assert model.model.config._attn_implementation == "sdpa"


def test_equal_seeds_make_equal_models_and_leave_the_global_generator_alone(tmp_path):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    files = [make_tiny_model(tmp_path / str(n), seed=3) / "model.safetensors" for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert torch.equal(torch.get_rng_state(), state)


def test_every_end_of_sequence_id_is_collected(folder):
    edit(folder, "config.json", eos_token_id=[1, 5])
    edit(folder, "generation_config.json", eos_token_id=[7])
    edit(folder, "tokenizer_config.json", eos_token="?")
    model = load_model(folder)
    assert model.stop_token_ids == (1, 5, 7, model.tokenizer.convert_tokens_to_ids("?"))


def test_no_end_of_sequence_id_is_said(folder):
    edit(folder, "config.json", eos_token_id=None)
    edit(folder, "generation_config.json", eos_token_id=None)
    edit(folder, "tokenizer_config.json", eos_token=...)
    model = load_model(folder)
    assert model.stop_token_ids == ()
    assert "rollout.stop_token_ids" in model.notes[0]


def test_a_hub_that_gives_nothing_is_no_missing_file(monkeypatch):
    def unreachable(name, **options):
        raise OSError("We couldn't connect to the hub.\nCheck your connection")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # do not ask whether there is a network
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", unreachable)
    with pytest.raises(ModelError) as refused:
        load_model("owner/name", device="cpu")
    said = str(refused.value)
    assert said.startswith("model.path 'owner/name' is no folder here, and the hub did not give its tokenizer: We ")
    assert "(`hf download owner/name --local-dir FOLDER`) and give the folder as model.path" in said
    assert "tokenizer.json" not in said


def test_a_hub_without_a_way_to_it_is_asked_once(monkeypatch):
    """Its client would try ten times; a copy in the cache, and a name that the hub cannot have, need no way."""
    monkeypatch.setattr(tokenizer, "unreachable", lambda: "https://hub cannot be reached (no route)")
    asked = []

    def asking(name, **options):
        asked.append(name)
        raise OSError("the client was asked")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", asking)
    with pytest.raises(ModelError, match=r"https://hub cannot be reached \(no route\)\. Correct the name, or"):
        load_model("owner/name", device="cpu")
    assert asked == []
    with pytest.raises(ModelError, match="the client was asked"):
        load_model("owner/na me", device="cpu")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: f"/cache/{name}/{file}")
    with pytest.raises(ModelError, match="the client was asked"):
        load_model("owner/name", device="cpu")
    assert asked == ["owner/na me", "owner/name"]


def test_a_tokenizer_without_pad_token_gets_one(folder):
    edit(folder, "tokenizer_config.json", pad_token=...)
    edit(folder, "config.json", pad_token_id=...)
    model = load_model(folder)
    assert model.pad_token_id == 1  # the stop token: masks never come from pad ids
    assert model.tokenizer.pad_token_id == 1


def test_a_tokenizer_that_autotokenizer_breaks_is_read_from_its_file(tmp_path):
    folder = make_tiny_model(tmp_path, "qwen2")
    right = [6, 18, 29, 76]
    assert AutoTokenizer.from_pretrained(folder)("4 +7 -9 =")["input_ids"] != right, "the trap is gone: drop the check"
    model = load_model(folder)
    assert model.tokenizer("4 +7 -9 =")["input_ids"] == right
    assert model.stop_token_ids == (1,)
    assert "tokenizer.json is used" in model.notes[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not a valid JSON"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pytorch_model.bin.*only safetensors"),
        (lambda f: (f / "model.safetensors").unlink(), "no \\*.safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 64), "cannot be loaded as a causal language model"),
        (lambda f: edit(f, "config.json", num_hidden_layers=3), "lacks 9 weights"),
        (lambda f: edit(f, "config.json", model_type="no_such_model"), "no_such_model"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (lambda f: edit(f, "config.json", intermediate_size=96), "lacks 6 weights.*another shape"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder, damage, message):
    damage(folder)
    with pytest.raises(ModelError, match=message) as refused:
        load_model(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(("row", "value"), [(5, float("nan")), (79, float("inf"))])  # ids that the probe may not meet
def test_numbers_that_are_none_are_called_so(folder, row, value):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][row, 3] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 of 5,120 numbers of model\.embed_tokens\.weight are NaN or infinite"):
        load_model(folder)


def only_an_adapter(folder, *, with_config):
    """What PEFT saves, alone or in a folder with the configuration of its model."""
    for file in folder.iterdir():
        if file.name != "config.json" or not with_config:
            file.unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
    save_file({"base_model.model.x.lora_A.weight": torch.zeros(1)}, folder / "adapter_model.safetensors")


@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_alone_is_to_be_merged_first(folder, with_config):
    only_an_adapter(folder, with_config=with_config)
    said = r"but an adapter of some/base: merge it first.*merge_and_unload\(\)"
    with pytest.raises(ModelError, match=said) as refused:
        load_model(folder)
    assert str(folder) in str(refused.value)


def test_the_advice_to_merge_an_adapter_gives_the_model_that_was_trained(folder, tmp_path):
    from peft import AutoPeftModelForCausalLM

    trained = load_model(folder, attention_mode="padded", lora=Lora(rank=2, modules_to_save=["norm"]))
    with torch.no_grad():
        for parameter in trained.model.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    write_adapter(tmp_path / "adapter", trained)
    tuned = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    tuned.merge_and_unload().save_pretrained(tmp_path / "whole")
    for file in folder.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "whole")
    ids = torch.tensor([[6, 18, 29, 76]])
    merged = load_model(tmp_path / "whole", attention_mode="padded").model(ids).logits
    torch.testing.assert_close(merged, trained.model(ids).logits, rtol=1e-5, atol=1e-5)


def test_a_folder_of_gguf_files_is_told_to_name_one(tmp_path):
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=rf"2 GGUF files; name one: model\.path={tmp_path}/a\.gguf"):
        load_model(tmp_path)


def test_a_path_that_is_not_there_is_refused():
    with pytest.raises(ModelError, match="is not a folder here"):
        load_model("./no/such/model")


def test_more_tokens_than_embedding_rows_is_refused(tmp_path):
    with pytest.raises(ModelError, match="78 tokens, the model's embedding 40 rows"):
        load_model(make_tiny_model(tmp_path, vocabulary=40))


def test_cuda_without_cuda_is_refused(folder):
    if torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    with pytest.raises(ModelError, match=r"model\.device=cpu"):
        load_model(folder, device="cuda")


@pytest.fixture
def broken_packing(monkeypatch):
    """Responses do not see their prompt."""
    monkeypatch.setattr(packed_attention.PackedContext, "prompts", [])


def test_the_probe_falls_back_to_padded_rows_and_says_why(folder, broken_packing):
    model = load_model(folder)
    assert not model.packed
    assert "differ from its own" in model.notes[0]
    assert model.model.config._attn_implementation == "sdpa"


def test_the_probe_refuses_where_packed_is_asked_for(folder, broken_packing):
    with pytest.raises(ModelError, match=r"'packed', but .* differ from its own"):
        load_model(folder, attention_mode="packed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_notices_broken_packing_in_every_precision(folder, broken_packing, dtype):
    assert not load_model(folder, dtype=dtype).packed


def test_the_probe_refuses_a_head_it_does_not_know(folder, monkeypatch):
    def doubled(self, hidden, sink=None):
        return self.model.get_output_embeddings()(hidden) * 2

    monkeypatch.setattr(loaded.LoadedModel, "head", doubled)
    with pytest.raises(ModelError, match="even with padded rows"):
        load_model(folder)


def test_a_model_that_does_not_run_is_refused(tmp_path):
    folder = make_tiny_model(tmp_path, "mamba")  # its plain implementation mixes float32 into bfloat16
    with pytest.raises(ModelError, match=r"fails .*bfloat16 on cpu"):
        load_model(folder, dtype=torch.bfloat16)


def test_recurrent_layers_are_padded(tmp_path):
    model = load_model(make_tiny_model(tmp_path, "mamba"))
    assert not model.packed
    assert "rows are padded" in model.notes[0]


def test_own_attention_is_put_back(folder):
    model = load_model(folder)
    ids = torch.tensor([[6, 18, 29, 76]])
    with attention.own_attention(model.model):
        assert model.model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] > 4
    assert model.model.config._attn_implementation == attention.NAME
