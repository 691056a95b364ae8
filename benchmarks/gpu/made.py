"""Small models, rows and a naive reference that the checks share."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.room import Room
from benchmarks.gpu.settings import learner_settings
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import WorkerHere
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import Key, Response, Row, SampleRequest, SamplingParams

CLIP = (0.2, 0.28)


def load_small(room: Room, dtype: str, architecture: str = "qwen2", *, seed: int = 0, **options: Any) -> LoadedModel:
    """A small random model through the program's own loading, probes included. Heads of 64 on a card, as real ones.

    Args:
        room: Where.
        dtype: ``bfloat16`` or ``float32``.
        architecture: A transformers model type.
        seed: Of the weights.
        options: Of ``make_tiny_model`` (sizes) and ``load_model`` (attention, head, checkpointing).
    """
    loading = {
        key: options.pop(key) for key in ("attention_mode", "fp32_head", "activation_checkpointing") if key in options
    }
    sizes = {
        "hidden": room.sized(512, 64), "layers": room.sized(4, 2), "heads": room.sized(8, 4), "kv_heads": 2,
        "ffn": room.sized(1536, 192), "vocabulary": room.sized(4096, 256),
    } | options  # fmt: skip
    scale = {"initializer_range": room.sized(0.05, 0.08)} if "initializer_range" not in options else {}
    folder = room.folder / f"{architecture}-{abs(hash((seed, *sorted(map(str, sizes.items())))))}"
    if not folder.exists():
        make_tiny_model(folder, architecture, seed=seed, **sizes, **scale)
    return load_model(folder, dtype=dtype, device=room.device, **{"attention_mode": "packed", **loading})


def make_rows(
    vocabulary: int, groups: int, size: int, prompt: int, response: int, *, seed: int = 0, equal: bool = False
) -> list[Row]:
    """One minibatch: ``groups`` of ``size`` responses of up to ``response`` tokens (``equal``: exactly), advantages of
    both signs, the token-mean weight."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        prompt_ids = random.integers(3, vocabulary, prompt)
        for sample in range(size):
            count = response if equal else int(random.integers(1, response + 1))
            rows.append(
                Row(
                    group=group,
                    sample=sample,
                    prompt_ids=prompt_ids,
                    token_ids=random.integers(3, vocabulary, count),
                    loss_mask=np.ones(count, np.bool_),
                    sampler_logprobs=np.full(count, -np.log(vocabulary), np.float32),
                    versions=np.zeros(count, np.int32),
                    loss_weight=0.0,
                    advantage=float(random.choice([-1.0, 1.0]) * random.uniform(0.5, 1.5)),
                )
            )
    total = sum(len(row.token_ids) for row in rows)
    return [replace(row, loss_weight=1 / total) for row in rows]


_NEAR, _FAR = 0.1, 0.5  # nats; the clip is at log(1 - 0.2) = -0.22 and log(1 + 0.28) = 0.25


def sampled_as(rows: Sequence[Row], logprobs: Sequence[Any], far: float = 0.1) -> list[Row]:
    """The rows, had a sampler found about these log-probabilities: a tenth of the ratios lies beyond the clip.

    None lies near it. There a token has its whole gradient on one side and none on the other, so the rounding of a
    right learner would decide: bfloat16 is off by up to 0.1 nats.
    """
    random = np.random.default_rng(1)

    def offsets(count: int) -> Any:
        near, beyond = random.uniform(-_NEAR, _NEAR, count), random.choice([-_FAR, _FAR], count)
        return np.where(random.random(count) < far, beyond, near)

    return [
        replace(row, sampler_logprobs=(np.asarray(own) + offsets(len(own))).astype(np.float32))
        for row, own in zip(rows, logprobs, strict=True)
    ]


def make_learner(loaded: LoadedModel, **settings: Any) -> LearnerDriver:
    """DAPO's clipped loss, no clipping of gradients unless asked for."""
    from dapo.algorithms.objective import clip_objective

    objective = clip_objective(low=CLIP[0], high=CLIP[1])
    worker = Worker(PolicyStep(loaded, objective, learner_settings(**{"max_grad_norm": None, **settings}), 1.0))
    return LearnerDriver(WorkerHere(worker))


class Reference:
    """The model in float32 with transformers' plainest attention, one row at a time, written as one writes it first."""

    def __init__(self, loaded: LoadedModel, dtype: torch.dtype = torch.float32) -> None:
        self.model = copy.deepcopy(loaded.model).to(dtype)
        self.model.set_attn_implementation("eager")
        self.model.eval()
        self.device = loaded.device

    def logits(self, row: Any) -> Tensor:
        """[response tokens, vocabulary]: what predicts each response token."""
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]).astype(np.int64)).to(self.device)
        found: Tensor = self.model(input_ids=ids[None], use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]
        return found

    def logprobs(self, row: Any) -> Tensor:
        """[response tokens]"""
        ids = torch.from_numpy(np.asarray(row.token_ids, dtype=np.int64)).to(self.device)
        return self.logits(row).log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)

    def gradient(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Of DAPO's loss: -sum of weight x min(r A, clip(r) A)."""
        self.model.zero_grad()
        for row in rows:
            logprobs = self.logprobs(row)
            old, advantage, weight = (
                torch.from_numpy(np.array(x)).to(logprobs)
                for x in (row.sampler_logprobs, row.advantage, row.loss_weights())
            )
            ratio = (logprobs - old).exp()
            clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
            (-(weight * torch.minimum(ratio * advantage, clipped * advantage)).sum()).backward()
        return {name: p.grad.detach().clone() for name, p in self.model.named_parameters() if p.grad is not None}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|, in float64 on the CPU."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-300))


def together(tensors: dict[str, Tensor], names: Sequence[str]) -> Tensor:
    """All of them as one vector."""
    return torch.cat([tensors[name].detach().double().cpu().flatten() for name in names])


def whole_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The relative error of all tensors as one vector, where they are, one after the other: a copy of a large model in
    float64 takes the processor many seconds."""
    off, size = (
        sum(float(part.detach().norm() ** 2) for part in parts)
        for parts in (
            (found[name].detach().double() - right.detach().double() for name, right in wanted.items()),
            (right.detach().double() for right in wanted.values()),
        )
    )
    return math.sqrt(off / max(size, 1e-300))


def requests(
    prompts: Sequence[Any], count: int, tokens: int, *, temperature: float = 1.0, stop: tuple[int, ...] = ()
) -> list[SampleRequest]:
    """``count`` responses to each prompt."""
    sampling = SamplingParams(max_tokens=tokens, temperature=temperature, stop_token_ids=stop)
    return [
        SampleRequest(Key("train", group, sample), np.asarray(prompt, np.int64), sampling, 1000 * group + sample)
        for group, prompt in enumerate(prompts)
        for sample in range(count)
    ]


def finish(engine: Any) -> list[Response]:
    """Whatever the engine has under way, to its end."""
    events: list[Response] = []
    while got := engine.poll():
        events += got
    return sorted(events, key=lambda event: event.key)


def row_of(request: SampleRequest, event: Response) -> Row:
    """A response as the learner gets it."""
    count = len(event.token_ids)
    return Row(
        group=request.key.group, sample=request.key.sample, prompt_ids=request.prompt_ids, token_ids=event.token_ids,
        loss_mask=np.ones(count, np.bool_), sampler_logprobs=event.logprobs, versions=event.versions,
        loss_weight=1.0, advantage=1.0,
    )  # fmt: skip


@contextmanager
def rounded_steps() -> Iterator[None]:
    """Engines made inside compute the rows that graphs need, at their addresses, and record nothing."""
    from unittest.mock import patch

    from dapo.engines.cache import most_rows
    from dapo.engines.graphs import StepGraphs

    def rounded(wanted: Any, decoder: Any, rows: int, like: Tensor) -> StepGraphs:
        return StepGraphs(None, most_rows(rows), like)

    with patch("dapo.engines.embedded.make_graphs", rounded):
        yield


@contextmanager
def operators() -> Iterator[set[str]]:
    """The names of torch's operators that are called inside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: set[str] = set()

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(str(function))
            return function(*args, **(kwargs or {}))

    with Listen():
        yield seen
