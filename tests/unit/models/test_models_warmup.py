"""The built-in models: made from a seed, kept in a cache, loadable as ordinary folders; and the warm-up behind them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo.errors import ModelError
from dapo.models import builtin, tiny, warmup
from dapo.models.builtin import SPECS, ensure_builtin_model, find_builtin_model, is_builtin
from dapo.models.warmup import BatchedMuon, WarmupSettings

NAME = "builtin/signed-sum-test"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> WarmupSettings:
    """The test model's settings with few examples: three optimiser steps."""
    settings = dataclasses.replace(SPECS[NAME], examples=48, batch_size=16, warmup_steps=1)
    monkeypatch.setitem(SPECS, NAME, settings)
    return settings


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_folder_loads_with_transformers_alone(quick: WarmupSettings, tmp_path: Path) -> None:
    folder = ensure_builtin_model(NAME, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == 111_936
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 1
    words = "4 +7 -8 = +7 =11 -8 =3 ? =45"
    ids = tokenizer(words)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert len(ids) == 10
    assert tokenizer.decode(ids) == words


def test_the_seed_decides_the_weights_and_the_global_generators_stay(quick: WarmupSettings, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first = ensure_builtin_model(NAME, tmp_path / "a", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)  # another state of the global generator must not matter
    again = ensure_builtin_model(NAME, tmp_path / "b", seed=1)
    other = ensure_builtin_model(NAME, tmp_path / "a", seed=2)
    assert same(weights(first), weights(again))
    assert not same(weights(first), weights(other))


def test_a_model_is_made_once(quick: WarmupSettings, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def progress(done: int, total: int, metrics: dict[str, float]) -> None:
        assert metrics["loss"] > 0
        calls.append((done, total))

    assert find_builtin_model(NAME, tmp_path) is None
    first = ensure_builtin_model(NAME, tmp_path, progress=progress)
    assert find_builtin_model(NAME, tmp_path) == first
    assert calls == [(3, 3)]
    assert ensure_builtin_model(NAME, tmp_path, progress=progress) == first
    assert calls == [(3, 3)]
    assert [entry.name for entry in tmp_path.iterdir()] == [first.name]


def test_other_settings_are_another_model(
    quick: WarmupSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_builtin_model(NAME, tmp_path)
    monkeypatch.setitem(SPECS, NAME, dataclasses.replace(quick, misread_probability=0.1))
    assert ensure_builtin_model(NAME, tmp_path) != first


def test_a_process_that_comes_second_takes_the_firsts_model(
    quick: WarmupSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = builtin._make
    first: list[Path] = []

    def overtaken(*arguments: Any) -> None:
        make(*arguments)
        monkeypatch.setattr(builtin, "_make", make)
        first.append(ensure_builtin_model(NAME, tmp_path))  # the other process, from start to end

    monkeypatch.setattr(builtin, "_make", overtaken)
    assert ensure_builtin_model(NAME, tmp_path) == first[0]
    assert [entry.name for entry in tmp_path.iterdir()] == [first[0].name]


def test_a_failed_warm_up_leaves_nothing(
    quick: WarmupSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_builtin_model(NAME, tmp_path, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    assert is_builtin("builtin/signed-sun")
    assert not is_builtin("models/builtin")
    with pytest.raises(ModelError, match="did you mean 'builtin/signed-sum'"):
        ensure_builtin_model("builtin/signed-sun", tmp_path)


def test_only_responses_carry_loss_and_targets_are_the_next_token() -> None:
    tokens, targets = warmup._collate([([5, 6, 7], [8, 1]), ([5, 7], [1])])
    assert tokens.tolist() == [[5, 6, 7, 8, 1], [5, 7, 1, 0, 0]]
    assert targets.tolist() == [[-100, -100, 8, 1, -100], [-100, 1, -100, -100, -100]]


def test_batches_hold_every_example_once_in_an_order_that_is_not_sorted() -> None:
    examples = [([2], [3] * (1 + index % 7) + [10 + index]) for index in range(64)]
    found = list(warmup._batches(examples, 4, torch.Generator().manual_seed(0)))
    last = sorted(int(row.max()) for _, targets in found for row in targets)
    assert last == list(range(10, 74))
    widths = [tokens.shape[1] for tokens, _ in found[: warmup._WINDOW]]
    assert widths != sorted(widths)
    spread = [max(lengths) - min(lengths) for lengths in ((t >= 0).sum(1).tolist() for _, t in found)]
    assert max(spread) <= 2  # of near-equal length: lengths run from 2 to 8


def test_batched_muon_is_torchs_muon() -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(16, 16), (16, 16), (48, 16), (16, 48)]
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    start = [parameter.detach().clone() for parameter in ours]
    optimizers = (
        BatchedMuon(ours, 0.02, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b, origin in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() < 0.05 * (b - origin).norm()  # theirs iterates in bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstarts_start_leaves_room_to_learn(seed: int, tmp_path: Path) -> None:
    folder = ensure_builtin_model("builtin/signed-sum", tmp_path, seed=seed)
    accuracy, truncated = sampled_accuracy(folder)
    assert 0.28 < accuracy < 0.48
    assert 0.01 < truncated < 0.12


@pytest.mark.whole
def test_the_warm_up_lowers_the_loss(tmp_path: Path) -> None:
    settings = dataclasses.replace(SPECS[NAME], examples=1600, batch_size=16)
    folder = tiny.make_tiny_model(tmp_path, seed=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).train()
    examples = warmup.demonstrations(settings, 1, tokenizer.get_vocab(), tokenizer.eos_token_id)
    losses = warmup.train(model, examples, settings, torch.Generator().manual_seed(1))
    assert len(losses) == 100
    assert sum(losses[-20:]) / 20 < 0.6 * sum(losses[:5]) / 5


def sampled_accuracy(folder: Path) -> tuple[float, float]:
    """Share of right answers and of responses cut at 32 tokens, one sample for each of 512 unseen problems."""
    from dapo.data.signed_sum import make_problem

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    problems = [make_problem(2, index) for index in range(512)]
    inputs = tokenizer([problem.prompt for problem in problems], return_tensors="pt", padding=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=32,
        )
    responses = output[:, inputs["input_ids"].shape[1] :]
    ended = (responses == tokenizer.eos_token_id).any(1)
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    right = [
        done and text.split()[-1:] == [f"={problem.answer}"]
        for done, text, problem in zip(ended.tolist(), texts, problems, strict=True)
    ]
    return sum(right) / len(right), 1.0 - float(ended.float().mean())
