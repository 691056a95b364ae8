"""Tickets to tensors that no learner holds."""

from __future__ import annotations

from pathlib import Path

from dapo.models.weight_files import model_tensors, write_weights
from dapo.types.batch import Ticket
from dapo.weights.sets import WeightSets
from dapo.weights.shared import offer

_kept = []  # an offered model lives as long as somebody holds it


class Bag:
    """Tensors by name, where a model is expected."""

    def __init__(self, tensors):
        self.tensors = dict(tensors)

    def state_dict(self, keep_vars=False):
        return self.tensors


def to_model(version, model) -> Ticket:
    """By route ``shared``, naming what a learner names; ``model`` has to be kept by the caller."""
    return Ticket(version, "shared", offer(model), tuple(model_tensors(model)))


def to_tensors(version, tensors) -> Ticket:
    """By route ``shared``: of (name, tensor) pairs."""
    _kept.append(Bag(tensors))
    del _kept[:-4]
    return to_model(version, _kept[-1])


def in_folder(version, tensors, folder) -> Ticket:
    """By route ``folder``."""
    tensors, own = dict(tensors), WeightSets(Path(folder)).new(version)
    write_weights(own, tensors.items())
    return Ticket(version, "folder", str(own), tuple(tensors))
