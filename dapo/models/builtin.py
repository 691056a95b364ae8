"""Models that are made on the spot: the quickstart's tiny base model, and a quicker one for tests.

A plain Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load, kept in a cache.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

import torch

from dapo.data import signed_sum
from dapo.errors import ModelError
from dapo.models import tiny, warmup
from dapo.models.cached import make_once
from dapo.models.quiet import quiet_transformers
from dapo.models.warmup import Progress, WarmupSettings

PREFIX = "builtin/"

SPECS = {
    "builtin/signed-sum": WarmupSettings(examples=36_000),
    "builtin/signed-sum-rambler": WarmupSettings(
        examples=36_000, rambler_share=0.15, restart_probability=0.93, max_words=240
    ),
    "builtin/signed-sum-test": WarmupSettings(examples=8_000, max_terms=4),
}
"""By name. ``signed-sum-test`` knows problems of 3 and 4 terms only, and is made in a sixth of the time: for tests
whose data set ``options: {max_terms: 4}``. ``signed-sum-rambler`` has a long tail of lengths, for benchmarks."""


def is_builtin(name: str) -> bool:
    """Whether a recipe's ``model.path`` names a built-in model."""
    return name.startswith(PREFIX)


def find_builtin_model(name: str, cache_dir: Path, *, seed: int = 1) -> Path | None:
    """Return the folder of a built-in model if the cache holds it; see ``ensure_builtin_model``."""
    folder = _folder(name, cache_dir, seed)
    return folder if folder.is_dir() else None


def check_builtin_name(name: str) -> None:
    """Raise ModelError unless there is a built-in model of that name; the message has the nearest one."""
    if name not in SPECS:
        near = get_close_matches(name, SPECS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ModelError(f"unknown built-in model {name!r}, expected one of {', '.join(SPECS)}{hint}")


def _folder(name: str, cache_dir: Path, seed: int) -> Path:
    check_builtin_name(name)
    return cache_dir / f"{name.removeprefix(PREFIX)}-seed{seed}-{_fingerprint(SPECS[name])}"


def ensure_builtin_model(name: str, cache_dir: Path, *, seed: int = 1, progress: Progress | None = None) -> Path:
    """Return the folder of a built-in model, made first if the cache does not hold it.

    The folder's name carries the seed and a hash of the settings, the source code that makes the model, torch's version
    and the processor's architecture. The same inputs give the same weights on one machine and thread count; the global
    random state is untouched.

    Args:
        name: One of ``SPECS``.
        cache_dir: Holds the folders of all built-in models; made if missing.
        seed: Of the initial weights, the demonstrations and their order.
        progress: See ``dapo.models.warmup.Progress``; not called when the model is there already.

    Raises:
        ModelError: No built-in model has that name.
    """
    return make_once(_folder(name, cache_dir, seed), lambda unfinished: _make(SPECS[name], seed, unfinished, progress))


def _fingerprint(settings: WarmupSettings) -> str:
    made_by = [torch.__version__, platform.machine()]  # another of these makes other weights
    digest = hashlib.sha256(json.dumps([asdict(settings), *made_by], sort_keys=True).encode())
    for path in (__file__, tiny.__file__, warmup.__file__, signed_sum.__file__):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:12]


def _make(settings: WarmupSettings, seed: int, folder: Path, progress: Progress | None) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Llama, not Qwen2: beside a Qwen2 configuration AutoTokenizer would replace the saved tokenizer's rules.
    tiny.make_tiny_model(folder, "llama", heads=2, seed=seed)  # heads of 32: vLLM's CPU kernels know no smaller ones
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    examples = warmup.demonstrations(settings, seed, tokenizer.get_vocab(), tokenizer.eos_token_id)
    warmup.train(model, examples, settings, torch.Generator().manual_seed(seed), progress)
    with quiet_transformers():
        model.save_pretrained(folder)
    (folder / "warmup.json").write_text(json.dumps({"seed": seed, **asdict(settings)}, indent=2) + "\n")
