"""Safetensors files of checkpoints: what is written is what safetensors reads, and slices are one tensor again."""

from __future__ import annotations

import zlib

import pytest
import torch
from safetensors.torch import load_file

from dapo.learner.tensor_files import TensorFiles, write_tensors

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(4, 3).t(),
    "b": torch.randn(5, 2, 3).to(torch.bfloat16),
    "count": torch.tensor(7.0, dtype=torch.float64),
    "flags": torch.tensor([True, False, True]),
    "ids": torch.arange(3, dtype=torch.int64),
    "none": torch.zeros(0, 4),
}


def test_safetensors_reads_what_was_written_and_the_sum_is_the_file_s(tmp_path):
    saved = write_tensors(tmp_path / "x.safetensors", TENSORS)
    content = (tmp_path / "x.safetensors").read_bytes()
    assert (saved.name, saved.size, saved.crc32) == ("x.safetensors", len(content), zlib.crc32(content))
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_a_type_that_the_format_does_not_know_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"odd is a tensor of torch\.complex64"):
        write_tensors(tmp_path / "x.safetensors", {"odd": torch.zeros(2, dtype=torch.complex64)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cuts", [(7,), (3, 7), (0, 2, 2, 5, 7), (4, 5, 6, 7)])
def test_slices_of_any_files_are_one_tensor_whole_or_by_rows(tmp_path, cuts):
    whole = torch.randn(7, 3)
    paths = []
    for number, (first, end) in enumerate(zip((0, *cuts), cuts, strict=False)):
        paths.append(tmp_path / str(number))
        write_tensors(paths[-1], {"w": whole[first:end], **({"n": torch.ones(())} if number == 0 else {})})
    with TensorFiles(paths) as files:
        assert files.shapes == {"w": (7, 3), "n": ()}
        assert torch.equal(files.whole("w"), whole)
        assert torch.equal(files.whole("n"), torch.ones(()))
        for first in range(8):
            for count in range(8 - first):
                assert torch.equal(files.rows("w", first, count), whole[first : first + count])


def test_files_that_do_not_fit_each_other_or_are_none_are_named(tmp_path):
    write_tensors(tmp_path / "one", {"w": torch.zeros(2, 3)})
    write_tensors(tmp_path / "two", {"w": torch.zeros(2, 4)})
    (tmp_path / "cut").write_bytes((tmp_path / "one").read_bytes()[:-1])
    whole = {
        "two": "two is no whole safetensors file: w of shape .2, 4. does not continue .2, 3.",
        "cut": "cut is no whole safetensors file",
        "gone": "gone: ",
    }
    for name, said in whole.items():
        with pytest.raises(OSError, match=f"^{said}"):
            TensorFiles([tmp_path / "one", tmp_path / name])
