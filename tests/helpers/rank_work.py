"""What tests let a rank do, and the same in one process: one minibatch or two, and what became of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from learner_here import LearnerHere
from learner_rows import make_algorithm, make_groups, rows_of
from torch.distributed.tensor import DTensor

from dapo.algorithms.objective import clip_objective, with_terms
from dapo.config import schema
from dapo.learner.plan import plan_step
from dapo.learner.sharding import Shape
from dapo.learner.worker import RankPlace, make_worker
from dapo.metrics.stats import values
from dapo.models import context
from dapo.models.load import load_model
from dapo.models.packing import pack
from dapo.models.policy import Policy
from dapo.models.slices import own_part, own_slice
from dapo.types.batch import LearnStep, TokenRow

LIMIT = 40  # input tokens of a micro-batch: ranks have unequal numbers of them
CASES = {
    "uneven": {"groups": 4, "size": 4},
    "a rank without rows": {"groups": 1, "size": 1},
    "one group larger than a share": {"groups": 1, "size": 7},
    "long prompts": {"groups": 3, "size": 4, "prompt": 40},
}
OBJECTIVES = {
    "token": clip_objective(low=0.2, high=0.28),
    "sequence": clip_objective(low=3e-4, high=4e-4, ratio="sequence"),
    "entropy": with_terms(clip_objective(low=0.2, high=0.28), entropy=True),
}


def step_of(case: str, minibatches: int = 1, epochs: int = 1) -> LearnStep:
    """Rows of uneven lengths; of every minibatch one group has no advantage, and only reports.

    Each of several epochs takes its minibatches from other groups, and ratios run against the learner's own values.
    """
    parts = []
    for number in range(minibatches):
        groups = make_groups(number, **CASES[case], length=lambda random: int(random.integers(1, 16)))
        rows = rows_of(groups, make_algorithm())
        if len(groups) > 1:
            rows = [replace(row, advantage=0.0) if row.group == 1 else row for row in rows]
        parts.append([replace(row, group=row.group + 10 * number) for row in rows])
    if epochs == 1:
        return LearnStep(parts, [1e-2] * minibatches, 0, entropy_coefficient=0.01)
    rows = [row for part in parts for row in part]
    for epoch in range(1, epochs):
        parts += [[r for r in rows if (r.group + r.group // 10 * epoch) % minibatches == n] for n in range(minibatches)]
    return LearnStep(parts, [1e-2] * len(parts), 0, "learner", epochs=epochs)


@contextmanager
def norms_as_wide_as_the_model() -> Iterator[None]:
    """transformers' norms compute in float32 whatever the model's type, which would hide everything below 1e-7.

    The fast kernel of experts refuses float64, so experts are computed one by one. Only for as long as a case runs: one
    rank may live in the process of the tests, and others follow there.
    """
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm

    def forward(self, hidden):
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden.dtype)

    usual = [(kind, kind.forward) for kind in (LlamaRMSNorm, Qwen3RMSNorm, Qwen3MoeRMSNorm)]
    experts = PreTrainedModel.get_correct_experts_implementation
    PreTrainedModel.get_correct_experts_implementation = lambda model, requested: "eager"
    for kind, _ in usual:
        kind.forward = forward
    try:
        yield
    finally:
        for kind, own in usual:
            kind.forward = own
        PreTrainedModel.get_correct_experts_implementation = experts


def model(folder, dtype: str, **options) -> schema.Model:
    """Also of a type that recipes do not have."""
    plain = dict(schema.Model(path=str(folder), device="cpu", attention="packed"))
    return schema.Model.model_construct(**plain | {"dtype": dtype} | options)


def trained_a_little(model) -> None:
    """An adapter as after some training: B is not zero any more, and A has a gradient."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # numbers of bfloat16, which every type has
                values = (torch.randn(parameter.shape, generator=generator) * 0.05).bfloat16().float()
                own_part(parameter).copy_(own_slice(values, parameter))


def settings() -> schema.LearnerSection:
    # eps: AdamW divides a gradient that is nothing but rounding by its own size, unless eps is larger.
    return schema.LearnerSection(microbatch_tokens=LIMIT, weight_decay=0.01, max_grad_norm=0.5, eps=1e-2)


@norms_as_wide_as_the_model()
def sharded(
    stage,
    folder,
    dtype,
    shape: Shape,
    case: str,
    *,
    minibatches=2,
    epochs=1,
    before=None,
    start=None,
    objective="token",
    **options,
):
    """In a rank's process: statistics, and rank 0's view of gradients of the first minibatch and final weights."""
    place = RankPlace(stage.rank, shape, "", 120.0)
    rank = make_worker(
        place,
        model(folder, dtype, **options),
        settings(),
        0.9,
        OBJECTIVES[objective],
        device=torch.device("cpu"),
    )
    if before is not None:
        before(rank)
    if start is not None:
        start(rank.loaded.model)
    gradients = {}
    update = rank.step.optimizer.step

    def watched(rate):
        if not gradients:
            for name, parameter in rank.loaded.model.named_parameters():
                if parameter.grad is not None:
                    gradients[name] = whole(parameter.grad)
        return update(rate)

    rank.step.optimizer.step = watched
    units = shape.ranks // shape.context_parallel
    free = OBJECTIVES[objective].zero_advantage_is_free
    plans = plan_step(step_of(case, minibatches, epochs), LIMIT, ranks=units, zero_advantage_is_free=free)
    plan = plans[stage.rank // shape.context_parallel]
    stats, _ = rank.learn(plan)
    weights = {name: whole(parameter) for name, parameter in rank.loaded.model.named_parameters()}
    return stats, gradients, weights


@norms_as_wide_as_the_model()
def alone(folder, dtype, case: str, *, minibatches=2, epochs=1, frozen=(), start=None, objective="token", **options):
    """The same in this process."""
    loaded = load_model(folder, dtype=getattr(torch, dtype), device="cpu", attention_mode="packed", **options)
    for name, parameter in loaded.model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and not any(part in name for part in frozen))
    if start is not None:
        start(loaded.model)
    learner = LearnerHere(loaded, OBJECTIVES[objective], settings(), 0.9)
    gradients = {}
    optimizer = learner.step.optimizer
    update = optimizer.step

    def watched(rate):
        if not gradients:
            gradients.update({n: m.grad.detach().clone() for n, m in optimizer.masters.items() if m.grad is not None})
        return update(rate)

    optimizer.step = watched
    stats = learner.learn(step_of(case, minibatches, epochs)).result().stats
    weights = {name: parameter.detach().clone() for name, parameter in loaded.model.named_parameters()} | {
        name: master.detach().clone() for name, master in optimizer.masters.items()
    }
    return stats, gradients, weights


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def assert_equal(found, expected, tolerance: float) -> None:
    """Gradients and weights relative to their largest number; statistics but those that count passes."""
    (parts, gradients, weights), (stats, own_gradients, own_weights) = found, expected
    assert gradients.keys() == own_gradients.keys()
    for got, wanted in ((gradients, own_gradients), (weights, own_weights)):
        for name, tensor in wanted.items():
            scale = float(tensor.abs().max())
            assert scale > 0, name
            assert float((got[name] - tensor).abs().max()) <= tolerance * scale, name
    together, one = values(parts), values(stats)
    for key in one.keys() - {"train/micro_batches", "train/packed_tokens"}:
        np.testing.assert_allclose(together[key], one[key], rtol=max(tolerance, 1e-9), atol=1e-7, err_msg=key)


def kept_bytes(stage, folder, ranks, checkpointing):
    """Bytes that a pass keeps for its backward pass in this process: of whole rows, and of its stretch of them."""
    loaded = load_model(
        folder, dtype="float32", device="cpu", attention_mode="packed", activation_checkpointing=checkpointing
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in loaded.model.parameters()}
    random = np.random.default_rng(0)
    rows = [TokenRow(0, random.integers(3, 78, 200), random.integers(3, 78, 900)) for _ in range(2)]
    found = []
    for unit in (None, context.join_unit(ranks, 60.0)):
        loaded.unit, kept = unit, {}

        def keep(tensor, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage  # held, so that no address comes twice
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs, _ = Policy(loaded)(pack(rows, loaded.device), 1.0, "none")
        found.append(sum(storage.nbytes() for storage in kept.values()))
        logprobs.sum().backward()
    return found
