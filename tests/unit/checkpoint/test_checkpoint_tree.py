"""How a saved tree lies on the disk; that any tree comes back as it was is tested with the store."""

import numpy as np
import pytest

from dapo.checkpoint.tree import load_tree, save_tree


def test_thousands_of_arrays_are_few_members_and_independent_of_each_other(tmp_path):
    tree = [{"tokens": np.arange(n % 7), "logprobs": np.full(n % 7, n, np.float32)} for n in range(3000)]
    save_tree(tree, tmp_path, "state")
    with np.load(tmp_path / "state.npz") as archive:
        assert sorted(archive.files) == ["f4", "i8"]
    loaded = load_tree(tmp_path, "state")
    loaded[1]["tokens"][:] = 99
    for n in range(2, 3000):
        np.testing.assert_array_equal(loaded[n]["tokens"], tree[n]["tokens"])
        np.testing.assert_array_equal(loaded[n]["logprobs"], tree[n]["logprobs"])


def test_what_cannot_be_told_apart_is_refused(tmp_path):
    with pytest.raises(ValueError, match="__array__"):
        save_tree({"__array__": 1}, tmp_path, "state")
