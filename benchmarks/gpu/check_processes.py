"""A learner and a second process on one device: memory that changes hands, and weights that are lent."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from benchmarks.gpu.check_learner import learn
from benchmarks.gpu.made import load_small, make_learner, make_rows
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.second import Second, second
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, make_loaded
from benchmarks.gpu.speed_learner import PER_PARAMETER, layer_sizes
from benchmarks.gpu.timing import peak_bytes, reset_peak
from dapo.models.checksum import checksum
from dapo.models.memory import activation_bytes
from dapo.models.weight_files import model_tensors, write_weights
from dapo.types.batch import Ticket
from dapo.weights.ipc import lend
from dapo.weights.sets import WeightSets

RANK, ENGINE = 0.42, 0.7
"""Shares of the device's memory: together more than there is."""


def two_processes(room: Room) -> None:
    """In turns, a learner reaches over 30 % of the memory, and a second process takes 70 %."""
    shape = room.sized(PUBLISHED["0.5b"], REHEARSED)
    whole = torch.cuda.mem_get_info()[1] if room.on_card else 2**28
    if room.on_card and torch.cuda.mem_get_info()[0] < 0.9 * whole:
        raise Skipped("others hold memory of this device")
    group, prompt = room.sized((8, 128), (2, 6))
    tokens = _tokens(shape, int(RANK * whole)) if room.on_card else 2 * group * 12
    loaded = make_loaded(shape, room.device, "bfloat16")
    learner = make_learner(loaded, microbatch_tokens=tokens)
    rows = make_rows(shape.vocabulary, 2, group, prompt, max(8, tokens // (2 * group) - prompt), equal=True)
    with second(room.device) as other:
        for number in (1, 2):
            reset_peak(room.device)
            learn(learner, rows, 1e-6)
            learner.publish(number)  # the worker then gives cached memory back
            if room.on_card:
                what = f"round {number}: what the learner reached, share of the memory"
                room.expect(what, peak_bytes(room.device) / whole, at_least=1 - ENGINE)
                held = torch.cuda.memory_reserved() / whole
                room.expect(f"round {number}: what it still holds, share", held, at_most=1 - ENGINE - 0.02)
            _take(room, other, int(ENGINE * whole), number)
    learner.close()


def _take(room: Room, other: Second, count: int, number: int) -> None:
    said = other.take(count)
    room.expect_true(f"round {number}: a second process takes {ENGINE:.0%} of the memory", not said, said)
    other.drop()


def _tokens(shape: Any, memory: int) -> int:
    """Return the tokens of a micro-batch with which a learner of this shape reaches so many bytes."""
    layer = layer_sizes(shape)
    each = activation_bytes(layer, shape.layers, 1, 2, checkpointing=False)
    return max(1024, int(memory - PER_PARAMETER * shape.parameters) // each)


def ipc(room: Room) -> None:
    """Another process reads the learner's weights: on a card where they lie, in a rehearsal from a folder."""
    loaded = load_small(room, "bfloat16", layers=room.sized(8, 2))
    tensors = dict(model_tensors(loaded.model))
    wanted = {name: checksum(tensor) for name, tensor in tensors.items()}
    with second(room.device) as other:
        for version in (1, 2):
            ticket, kept = _lent(room, tensors, version)
            found = other.sums(ticket)
            differing = [name for name in wanted if found.get(name) != wanted[name]]
            room.expect_true(
                f"version {version}: the tensors are the learner's", not differing, ", ".join(differing[:3])
            )
            room.expect(f"version {version}: tensors read", len(found), at_least=len(wanted), at_most=len(wanted))
            del kept
            with torch.no_grad():
                for tensor in tensors.values():
                    tensor.mul_(1.5)
            wanted = {name: checksum(tensor) for name, tensor in tensors.items()}


def _lent(room: Room, tensors: dict[str, torch.Tensor], version: int) -> tuple[Ticket, Any]:
    """Return a ticket, and what has to be kept while it is read."""
    if not room.on_card:
        folder = WeightSets(room.folder).new(version)
        write_weights(folder, tensors.items())
        return Ticket(version, "folder", str(folder), tuple(tensors)), folder
    device, handles, kept = lend(tensors, torch.bfloat16)
    return Ticket(version, "ipc", "", tuple(tensors), cargo=pickle.dumps({device: handles})), kept
