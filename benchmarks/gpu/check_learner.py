"""The learner against a naive reference, against itself, and through a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.gpu.child import tidy
from benchmarks.gpu.made import (
    CLIP,
    Reference,
    load_small,
    make_learner,
    make_rows,
    relative_error,
    sampled_as,
    together,
    whole_error,
)
from benchmarks.gpu.room import Room
from benchmarks.gpu.timing import peak_bytes, reset_peak
from dapo.learner.driver import LearnerDriver
from dapo.models.loaded import LoadedModel
from dapo.types.batch import LearnStep, Row

RATE, BETAS, DECAY, EPS = 1e-3, (0.9, 0.95), 0.1, 1e-8


def learn(learner: LearnerDriver, rows: list[Row], rate: float = RATE) -> None:
    """One optimiser step."""
    learner.learn(LearnStep([rows], [rate], 0)).result()


def state_of(learner: LearnerDriver, folder: Path) -> dict[str, Tensor]:
    """Weights by name, and the optimiser's tensors as ``exp_avg/NAME``, ``master/NAME``: what a checkpoint holds."""
    learner.save(folder)
    found = load_file(folder / "rank-00000-of-00001.safetensors")
    return {name.removeprefix("model/").removeprefix("optimizer/"): tensor for name, tensor in found.items()}


def gradient_of(state: dict[str, Tensor], beta: float = BETAS[0]) -> dict[str, Tensor]:
    """The gradient of the first step: AdamW's first moment is (1 - beta) of it."""
    found = {name.partition("/")[2]: value for name, value in state.items() if name.startswith("exp_avg/")}
    return {name: value.double() / (1 - beta) for name, value in found.items()}


def learner_against_reference(room: Room, dtype: str) -> None:
    """Log-probabilities, gradient, and the update of one AdamW step."""
    low = dtype == "bfloat16"
    loaded = load_small(room, dtype)
    reference = Reference(loaded)
    before = {name: p.detach().double().cpu() for name, p in loaded.model.named_parameters()}
    learner = make_learner(loaded, betas=BETAS, weight_decay=DECAY, eps=EPS, microbatch_tokens=room.sized(2048, 128))
    rows = make_rows(room.sized(4096, 256), 4, room.sized(8, 3), room.sized(40, 6), room.sized(96, 12))
    with torch.no_grad():
        wanted = [reference.logprobs(row).float().cpu().numpy() for row in rows]
    found = learner.logprobs(rows).result()
    gaps = torch.cat([torch.from_numpy(abs(a - b)) for a, b in zip(found, wanted, strict=True)])
    room.expect("log-probabilities, mean difference", float(gaps.mean()), at_most=0.05 if low else 2e-5, unit="nats")
    room.expect("log-probabilities, largest difference", float(gaps.max()), at_most=0.5 if low else 1e-3, unit="nats")
    rows = sampled_as(rows, wanted)
    right = reference.gradient(rows)
    learn(learner, rows)
    state = state_of(learner, room.folder / "saved")
    gradient = gradient_of(state)
    names = sorted(right)
    room.expect_true("every parameter has a gradient", sorted(gradient) == names, f"{len(gradient)} of {len(names)}")
    error = relative_error(together(gradient, names), together(right, names))
    room.expect("gradient, relative error", error, at_most=0.1 if low else 1e-3)  # 0.04 at a card's sizes on a CPU
    worst = max((relative_error(gradient[n], right[n]), n) for n in names if float(right[n].norm()) > 1e-8)
    room.expect(f"gradient, worst tensor ({worst[1]})", worst[0], at_most=0.2 if low else 5e-3)
    _check_update(room, before, gradient, state, low)


def _check_update(
    room: Room, before: dict[str, Tensor], gradient: dict[str, Tensor], state: dict[str, Tensor], low: bool
) -> None:
    """AdamW's first step by hand in float64, from the learner's own gradient: its size is the rate, so 1e-6 of it."""
    errors, cast = [], True
    for name, own in gradient.items():
        moment = own * (1 - BETAS[0]) / (1 - BETAS[0])
        size = ((own**2) * (1 - BETAS[1]) / (1 - BETAS[1])).sqrt()
        right = before[name] * (1 - RATE * DECAY) - RATE * moment / (size + EPS)
        found = state[f"master/{name}" if low else name]
        room_for = 4e-7 * right.abs().clamp_min(1e-3) + 1e-5 * RATE
        errors.append(float(((found.double() - right).abs() / room_for).max()))
        if low:
            cast &= torch.equal(state[name], found.to(torch.bfloat16))
    room.expect("AdamW's step, largest error in float32 roundings", max(errors), at_most=3.0)
    if low:
        masters = all(state[f"master/{name}"].dtype == torch.float32 for name in gradient)
        room.expect_true("masters and moments are float32", masters and gradient.keys() == before.keys())
        room.expect_true("the model holds the masters, rounded", cast)


def checkpointing(room: Room) -> None:
    """The same gradient with activations computed again; on a card also the memory that saves."""
    found: dict[bool, tuple[dict[str, Tensor], int]] = {}
    rows = make_rows(room.sized(4096, 256), 4, room.sized(8, 3), room.sized(64, 6), room.sized(256, 12), equal=True)
    for flag in (False, True):
        loaded = load_small(
            room, "bfloat16", layers=room.sized(8, 2), activation_checkpointing="full" if flag else "none"
        )
        learner = make_learner(loaded, betas=BETAS, microbatch_tokens=1 << 20)
        rows = sampled_as(rows, learner.logprobs(rows).result()) if not flag else rows
        tidy(room.device)  # nothing of the first learner may go while the second is measured
        held = torch.cuda.memory_allocated() if room.on_card else 0
        learn(learner, rows)
        peak = peak_bytes(room.device) - held if room.on_card else 0
        found[flag] = gradient_of(state_of(learner, room.folder / f"saved-{flag}")), peak
        del loaded, learner
    (plain, plain_peak), (again, again_peak) = found[False], found[True]
    names = sorted(plain)
    error = relative_error(together(again, names), together(plain, names))
    room.expect("gradient with checkpointing against without, relative error", error, at_most=0.02)
    if room.on_card:
        room.note("peak above weights without checkpointing", plain_peak, "B")
        room.expect("peak with it over that", again_peak / plain_peak, at_most=0.7, at_least=0.01)


def cpu_offload(room: Room) -> None:
    """A rank of one with its slices on the device and in the processor's memory: the same statistics, the same step."""
    import torch.distributed as dist

    from dapo.algorithms.objective import clip_objective
    from dapo.config.schema import LearnerSection, Model
    from dapo.learner.plan import plan_step
    from dapo.learner.sharding import Shape
    from dapo.learner.worker import RankPlace, make_worker

    words = room.sized(4096, 256)
    small = load_small(room, "float32", layers=room.sized(8, 2))
    rows = make_rows(words, 4, room.sized(8, 3), room.sized(64, 6), room.sized(128, 12))
    rows = sampled_as(rows, make_learner(small).logprobs(rows).result())
    before = {name: p.detach().double().cpu() for name, p in small.model.named_parameters()}
    plain = make_learner(small, betas=BETAS, microbatch_tokens=4096)
    learn(plain, rows)
    wanted = {name: p.detach().double().cpu() for name, p in small.model.named_parameters()}
    model = Model(path=small.name, dtype="float32", device=room.device, attention="packed")
    for offload in (False, True):
        place = RankPlace(0, Shape(cpu_offload=offload), f"file://{room.folder / f'meet-{offload}'}", 60.0)
        held = torch.cuda.memory_allocated() if room.on_card else 0
        rank = None
        try:
            rank = make_worker(
                place, model, LearnerSection(max_grad_norm=None, betas=BETAS, microbatch_tokens=4096), 1.0,
                clip_objective(low=CLIP[0], high=CLIP[1]), device=place.join(torch.device(room.device)),
            )  # fmt: skip
            (step,) = plan_step(LearnStep([rows], [RATE], 0), 4096)
            rank.learn(step)
            where = "in the processor's memory" if offload else "on the device"
            found = {name: _whole(p) for name, p in rank.loaded.model.named_parameters()}
            names = sorted(wanted)
            error = relative_error(together(found, names), together(wanted, names))
            moved = relative_error(together(found, names), together(before, names))
            room.expect(f"slices {where}: what the step changed, relative", moved, at_least=1e-4, at_most=1.0)
            room.expect(f"slices {where}: weights after a step, relative difference", error, at_most=1e-4)
            if room.on_card:
                room.note(f"slices {where}: bytes on the card", torch.cuda.memory_allocated() - held, "B")
        finally:
            rank = None
            if dist.is_initialized():  # whatever failed: the parts behind this one are alone in their process
                dist.destroy_process_group()


def _whole(parameter: Any) -> Tensor:
    """Of a rank of one its slice is the tensor."""
    local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local.detach().double().cpu()


def fp32_head(room: Room) -> None:
    """A bfloat16 model with a float32 head: logits and the head's gradient as float32 arithmetic gives them."""
    loaded = load_small(room, "bfloat16", fp32_head=True, tied=False)
    generator = torch.Generator(room.device).manual_seed(0)
    weight = loaded.model.get_output_embeddings().weight
    hidden = (
        torch.randn(64, weight.shape[1], device=room.device, generator=generator).to(torch.bfloat16).requires_grad_()
    )
    logits = loaded.head(hidden)
    room.expect_true("logits are float32", logits.dtype == torch.float32, str(logits.dtype))
    exact = hidden.detach().double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_()
    wanted = exact @ exact_weight.t()
    # tensor cores cut off where they add: some 1e-6; logits that were rounded to bfloat16 are off by 2e-3
    room.expect("logits, relative error", relative_error(logits, wanted), at_most=2e-5)
    upstream = torch.randn(logits.shape, device=room.device, generator=generator)
    (logits * upstream).sum().backward()
    (wanted * upstream.double()).sum().backward()
    room.expect("gradient of hidden states, relative error", relative_error(hidden.grad, exact.grad), at_most=5e-3)
    room.expect("gradient of the head, relative error", relative_error(weight.grad, exact_weight.grad), at_most=5e-3)


def large_vocabulary(room: Room) -> None:
    """A vocabulary of 152,000, chunk by chunk: memory, the head's gradient, two steps, save and go on."""
    words = room.sized(152064, 40000)
    sizes = {"hidden": room.sized(896, 16), "layers": 2, "heads": room.sized(14, 2), "kv_heads": 2,
             "ffn": room.sized(1024, 32), "vocabulary": words, "initializer_range": 0.02}  # fmt: skip
    loaded = load_small(room, "bfloat16", **sizes)
    rows = make_rows(words, 2, room.sized(8, 2), 16, room.sized(256, 120), equal=True)
    reference = Reference(loaded)
    learner = make_learner(loaded, betas=BETAS)
    rows = sampled_as(rows, learner.logprobs(rows).result())
    right = reference.gradient(rows)
    held = torch.cuda.memory_allocated() if room.on_card else 0
    reset_peak(room.device)
    learn(learner, rows)
    if room.on_card:
        tokens = sum(len(row.token_ids) for row in rows)
        room.note("peak above weights", peak_bytes(room.device) - held, "B")
        whole = tokens * words * 4
        bound = whole + 20 * sum(p.numel() for p in loaded.model.parameters())
        room.expect(
            "peak over one float32 copy of all logits and the optimiser",
            (peak_bytes(room.device) - held) / bound,
            at_most=1.0,
        )
    del reference
    name = "model.embed_tokens.weight"
    moment = state_of(learner, room.folder / "saved")[f"exp_avg/{name}"].to(room.device)
    error = whole_error(gradient_of({f"exp_avg/{name}": moment}), {name: right[name]})
    room.expect("gradient of the head, relative error", error, at_most=0.05)
    del moment, right
    _goes_on(room, loaded, learner, rows, room.folder / "saved", lambda: load_small(room, "bfloat16", **sizes))


def resume(room: Room) -> None:
    """Two steps, saved, two more; and the same two more by another learner that loads what was saved."""
    loaded = load_small(room, "bfloat16")
    learner = make_learner(loaded, betas=BETAS)
    rows = make_rows(room.sized(4096, 256), 4, room.sized(8, 3), room.sized(40, 6), room.sized(96, 12))
    rows = sampled_as(rows, learner.logprobs(rows).result())
    learn(learner, rows)
    learner.save(room.folder / "saved")
    _goes_on(room, loaded, learner, rows, room.folder / "saved", lambda: load_small(room, "bfloat16"))


def _goes_on(
    room: Room, loaded: LoadedModel, learner: LearnerDriver, rows: list[Row], saved: Path, again: Callable[[], Any]
) -> None:
    """One more step by ``learner``, and by one that was loaded from its checkpoint ``saved`` into a fresh model."""
    learn(learner, rows)
    other = again()
    second = make_learner(other, betas=BETAS)
    second.load(saved)
    learn(second, rows)
    mine, theirs = (dict(x.model.named_parameters()) for x in (loaded, other))
    names = sorted(mine)
    equal = all(torch.equal(mine[n], theirs[n]) for n in names)
    error = whole_error(theirs, mine)
    room.note("weights equal to the bit after a resume", equal)
    if room.on_card:  # kernels add in an order of their own there
        room.expect("weights after a resume, relative difference", error, at_most=2e-3)
    else:
        room.expect("weights after a resume, relative difference", error, at_most=0.0)
