"""Supervised warm-up of the quickstart's tiny model on demonstrations of a sloppy student.

The student copies every term but reads a minus as a plus six times in ten, so the model's likeliest answer is wrong
and sampling sometimes finds the right one: something for reinforcement learning to sharpen, which greedy decoding
cannot. Now and then it starts over again and again: a tail of responses that are too long.

The warm-up must be short. What bought time: batches of near-equal length (no packing needed), Muon on the matrices
(half the steps of AdamW), a large step for the tied embedding, and short problems first.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dapo.data.signed_sum import make_problem, sloppy_solution

Progress = Callable[[int, int, dict[str, float]], None]
"""Called as f(steps done, steps in all, metrics); metrics hold ``loss`` (nats per response token)."""

Example = tuple[list[int], list[int]]
"""Token ids of a prompt and of the response with its end token."""

_IGNORED = -100  # cross_entropy's own marker for positions without a target
_FEWEST_TERMS = 3  # of the task's problems
_FIRST_SEED = 1_000_000  # of the problem sets for warm-up: apart from those that recipes train and evaluate on
_WINDOW = 8  # batches sorted by length together: sorting all of them would put one style of response into one batch


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """Behaviour of the student, and how the model learns from it."""

    examples: int
    max_terms: int = 8  # of the task's problems, which have at least 3
    short_share: float = (
        0.25  # share of the examples over which the longest problems grow from 3 terms to ``max_terms``
    )
    batch_size: int = 32
    matrix_learning_rate: float = 0.02  # Muon, for the matrices inside the layers
    learning_rate: float = 6e-3  # AdamW, for the tied embedding and the norms
    weight_decay: float = 0.01
    warmup_steps: int = 50
    final_ratio: float = 0.05  # the learning rate falls linearly to this share of its peak
    misread_probability: float = 0.58
    rambler_share: float = 0.18
    restart_probability: float = 0.8
    max_words: int = 70


def demonstrations(settings: WarmupSettings, seed: int, token_ids: Mapping[str, int], eos: int) -> list[Example]:
    """Return the student's responses to ``settings.examples`` problems; small seeds of recipes never meet their set."""
    examples: list[Example] = []
    for index in range(settings.examples):
        problem = make_problem(_FIRST_SEED + seed, index, max_terms=_max_terms(index, settings))
        response = sloppy_solution(
            problem,
            random.Random(f"warmup/{seed}/{index}"),
            misread_probability=settings.misread_probability,
            rambler_share=settings.rambler_share,
            restart_probability=settings.restart_probability,
            max_words=settings.max_words,
        )
        prompt_ids = [token_ids[word] for word in problem.prompt.split()]
        examples.append((prompt_ids, [*(token_ids[word] for word in response.split()), eos]))
    return examples


def _max_terms(index: int, settings: WarmupSettings) -> int:
    """Short problems first: 3 terms at the start, all lengths after ``settings.short_share`` of the examples."""
    stages = settings.max_terms - _FEWEST_TERMS + 1
    grown = _FEWEST_TERMS + int(stages * index / (settings.short_share * settings.examples))
    return min(settings.max_terms, grown)


def train(
    model: Any,
    examples: Sequence[Example],
    settings: WarmupSettings,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> list[float]:
    """Next-token training on the responses; the prompts carry no loss.

    Args:
        model: A transformers ``*ForCausalLM``; updated in place.
        examples: See ``demonstrations``.
        settings: Batch size and optimiser.
        generator: Orders the batches.
        progress: Called every ten steps and at the end.

    Returns:
        The loss of every step, nats per response token.
    """
    optimizers = _optimizers(model, settings)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    total = len(examples) // settings.batch_size
    mean_length = sum(len(response) for _, response in examples) / len(examples)
    losses: list[float] = []
    for step, (tokens, targets) in enumerate(_batches(examples, settings.batch_size, generator)):
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
        total_loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="sum"
        )
        # A mean over the batch's own tokens would make long responses count less: batches are sorted by length.
        loss = total_loss / (settings.batch_size * mean_length)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = _schedule(step, total, settings)
        for optimizer, rates in zip(optimizers, peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if progress is not None and ((step + 1) % 10 == 0 or step + 1 == total):
            progress(step + 1, total, {"loss": losses[-1]})
    return losses


class BatchedMuon(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon) with one batched product for all matrices of a shape.

    The update of ``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"``, in float32. For matrices as small as
    these the time goes into calls, not arithmetic, and fewer calls make it several times faster.
    """

    def __init__(self, matrices: Sequence[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; every matrix needs a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                gradients = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
                state = self.state[parameters[0]]
                buffer = state.setdefault("momentum", torch.zeros_like(gradients))
                buffer.lerp_(gradients, 1.0 - group["momentum"])
                updates = _orthogonalize(gradients.lerp_(buffer, group["momentum"]))
                rate = group["lr"] * 0.2 * max(shape) ** 0.5  # makes the update's RMS that of AdamW
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)


def _orthogonalize(matrices: Tensor) -> Tensor:
    """Nearly U V^T of each matrix' singular value decomposition, by five Newton-Schulz steps; [n, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if tall else x


def _optimizers(model: Any, settings: WarmupSettings) -> list[torch.optim.Optimizer]:
    embedding = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embedding]
    decay = settings.weight_decay
    return [
        BatchedMuon(matrices, settings.matrix_learning_rate, weight_decay=decay),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=decay, fused=True),
    ]


def _schedule(step: int, total: int, settings: WarmupSettings) -> float:
    """Share of the peak learning rate: a linear rise, under a line that falls to ``final_ratio``."""
    rise = min(1.0, (step + 1) / settings.warmup_steps)
    return rise * (1.0 - (1.0 - settings.final_ratio) * step / total)


def _batches(
    examples: Sequence[Example], batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Full batches of near-equal lengths, in random order within each window."""
    for start in range(0, len(examples), batch_size * _WINDOW):
        window = sorted(examples[start : start + batch_size * _WINDOW], key=lambda e: len(e[0]) + len(e[1]))
        count = len(window) // batch_size
        for position in torch.randperm(count, generator=generator).tolist():
            yield _collate(window[position * batch_size : (position + 1) * batch_size])


def _collate(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Tokens and next-token targets, int64 [batch, longest], padded on the right.

    No attention mask is needed: attention is causal, so no real token sees the padding after it.
    """
    longest = max(len(prompt) + len(response) for prompt, response in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.int64)
    targets = torch.full_like(tokens, _IGNORED)
    for row, (prompt, response) in enumerate(examples):
        ids = torch.tensor(prompt + response)
        tokens[row, : len(ids)] = ids
        targets[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
    return tokens, targets
