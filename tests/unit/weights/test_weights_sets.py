"""Sets of weights in a folder that several trainers may use."""

from __future__ import annotations

import itertools
from contextlib import suppress

import torch
from between import between_its_calls

from dapo.models.weight_files import read_shapes, write_part
from dapo.weights.sets import WeightSets


def test_whenever_another_trainer_removes_the_folder_a_set_is_written(tmp_path, monkeypatch):
    """It has used the folder before, finds it empty at its end, and knows of nobody else."""
    numbers = itertools.count()

    def before():
        return (tmp_path / str(next(numbers)) / "weights",)

    def writes(shared):
        folder = WeightSets(shared).new(1)
        write_part(folder, 0, 1, {"w": torch.ones(2)})
        return folder

    def ends(shared):
        with suppress(OSError):
            shared.rmdir()

    for shared, folder, _ in between_its_calls(monkeypatch, before, writes, ends):
        assert folder.parent == shared
        assert read_shapes(folder) == {"w": [2]}
