"""Tokens per second of training, and the share of the card's matrix peak that this is."""

from __future__ import annotations

import torch

from benchmarks.gpu import bounds
from benchmarks.gpu.child import tidy
from benchmarks.gpu.limits import PEAK
from benchmarks.gpu.made import make_learner, make_rows
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, Shape, make_loaded
from benchmarks.gpu.timing import peak_bytes, reset_peak, seconds
from dapo.errors import LearnerError
from dapo.models.memory import LayerSizes, activation_bytes, head_bytes, layer_bytes
from dapo.types.batch import LearnStep, Row

PER_PARAMETER = 20  # bytes in bfloat16: weights 2, gradients 2 + 4, masters 4, moments 8
_RESERVE = 0.88  # of free memory; the rest is the allocator's and the kernels' own


def learn(room: Room, size: str) -> None:
    """One optimiser step of four micro-batches of 16,384 tokens, with and without activation checkpointing."""
    whole = PUBLISHED[size] if room.on_card else REHEARSED
    group, prompt, response = room.sized((8, 128, 1024), (2, 6, 12))
    microbatches = room.sized(4, 2)
    tokens = 2 * (prompt + group * (response - 1))  # of a micro-batch: two groups
    peak = room.found("card_limits", PEAK)
    free = torch.cuda.mem_get_info()[0] * _RESERVE if room.on_card else 1e12
    for checkpointing in (False, True):
        shape = fitting(whole, free, tokens, checkpointing)
        name = f"{'with' if checkpointing else 'without'} checkpointing"
        if shape is None:
            room.note(f"{name}: does not fit into free memory", free, "B")
            continue
        rows = make_rows(whole.vocabulary, 2 * microbatches, group, prompt, response, equal=True)
        shape, took = _timed(room, shape, rows, tokens, checkpointing, name)
        if took is None:
            continue
        room.note(f"{name}: shape", shape.name)
        room.note(f"{name}: parameters", shape.parameters)
        attended = bounds.attended_tokens(prompt, response, group)
        count, predicted = tokens * microbatches, sum(len(row.token_ids) for row in rows)
        operations = bounds.training_operations(shape, count, attended, predicted)
        room.rate(f"{name}: training", count / took, "tokens/s", main=True)
        room.rate(f"{name}: operations needed", operations / took, "FLOP/s")
        if peak:
            room.rate(f"{name}: share of the matrix peak (aim at 7B layers: 0.5)", operations / took / peak, main=True)


def _timed(
    room: Room, shape: Shape, rows: list[Row], tokens: int, checkpointing: bool, name: str
) -> tuple[Shape, float | None]:
    """Seconds of a step, and the shape that they are of. Where the estimate was too low that is said, and fewer layers
    are timed: the rate is worth having all the same. None: not even these fit.

    Raises:
        Skipped: there is no time left.
    """
    for layers in (shape.layers, max(1, shape.layers * 3 // 4)):
        own = shape if layers == shape.layers else shape.with_layers(layers)
        if room.left < 3.0:
            raise Skipped("the time was over")
        try:
            return own, _step(room, own, rows, tokens, checkpointing, name)
        except torch.OutOfMemoryError as error:  # of the optimiser
            said = str(error)
        except LearnerError as error:  # what a pass makes of one
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
            said = str(error.__cause__)
        finally:
            tidy(room.device)
        room.expect_true(f"{name}: {own.name} fits, as estimated", False, said.partition(".")[0])
    return shape, None


def fitting(whole: Shape, free: float, tokens: int, checkpointing: bool) -> Shape | None:
    """The shape with as many of its layers as can be trained in ``free`` bytes; None: not even one."""
    sizes = layer_sizes(whole)
    fixed = head_bytes(1024, whole.vocabulary, 2) + activation_bytes(sizes, 0, tokens, 2, checkpointing=checkpointing)
    kept = whole.hidden * 2 if checkpointing else layer_bytes(sizes, 2)
    layers = bounds.layers_that_fit(whole, free - fixed, tokens * kept, PER_PARAMETER)
    if layers == 0:
        return None
    return whole if layers == whole.layers else whole.with_layers(layers)


def layer_sizes(shape: Shape) -> LayerSizes:
    """Widths of a layer, as memory is counted from them."""
    return LayerSizes(
        shape.hidden, shape.ffn, shape.heads, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    )


def _step(room: Room, shape: Shape, rows: list[Row], tokens: int, checkpointing: bool, name: str) -> float:
    """Seconds of an optimiser step behind a first one, which makes moments and warms up."""
    loaded = make_loaded(shape, room.device, "bfloat16", checkpointing=checkpointing)
    learner = make_learner(loaded, microbatch_tokens=tokens)

    def update(chosen: list[Row]) -> None:
        learner.learn(LearnStep([chosen], [1e-6], 0)).result()

    reset_peak(room.device)
    update(rows[: len(rows) // 2])
    took = seconds(lambda: update(rows), room.device)
    if room.left > 3 * took:
        took = min(took, seconds(lambda: update(rows), room.device))
    if room.on_card:
        room.note(f"{name}: peak memory", peak_bytes(room.device), "B")
    learner.close()
    return took
