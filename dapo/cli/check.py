"""``dapo check``: what a run will do, need and write, and what is odd about its data. Trains nothing."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.config import LoadedRecipe, Recipe
from dapo.config.checks import penalty_interval, uses_sampler_logprobs
from dapo.config.problems import brief
from dapo.errors import ModelError
from dapo.loop.refill import least_kept

if TYPE_CHECKING:
    from dapo.data import PreparedData

_GIB = 1024**3
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that its memory depends on."""

    parameters: int
    layers: int
    hidden: int
    ffn: int
    key_values: int  # numbers in the key-value cache per token and layer
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimated bytes on the training device. Activations are a rule of thumb, the rest is arithmetic."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    engine: int  # weights of the engine's own, where it does not share the learner's
    cache: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.activations + self.engine + self.cache


def check_run(loaded: LoadedRecipe) -> None:
    """Load tokenizer and data and print the run's arithmetic, memory, files and everything odd.

    Raises:
        RecipeError: a hook cannot be imported.
        ModelError: model configuration or tokenizer cannot be loaded.
        DataError: the data cannot be read, or nothing is left to train on.
    """
    from dapo.build.engines import missing_package
    from dapo.data import prepare

    recipe = loaded.recipe
    print(f"{loaded.path or 'recipe'}: preset {recipe.preset}")
    _section("different from the preset", _difference(loaded))
    missing = missing_package(recipe)
    _section("warnings", [*loaded.warnings, *([missing] if missing else [])])
    check_hooks(recipe)
    tokenizer, shape = load_tokenizer_and_shape(recipe)
    data = prepare(recipe.data, tokenizer)
    _section("data", data.report.lines())
    _section("first prompt", [repr(data.train[0].text[:400])])
    _section("arithmetic", arithmetic(recipe, data))
    _section("memory, estimated", _memory_lines(recipe, shape, _longest_prompt(data)))
    _section("engine", _engine_lines(recipe))
    _section("files", files(recipe, shape))
    print(
        "\nThe recipe is good. Start it with: dapo train " + " ".join([str(loaded.path or "RECIPE"), *loaded.overrides])
    )


def _section(title: str, lines: Any) -> None:
    lines = list(lines)
    if lines:
        print(f"\n{title}")
        for line in lines:
            print(f"  {line}")


def _difference(loaded: LoadedRecipe) -> Iterator[str]:
    width = max(map(len, loaded.difference), default=0)
    for path, (before, after) in loaded.difference.items():
        yield f"{path:<{width}}  {brief(before)} -> {brief(after)}"


def _engine_lines(recipe: Recipe) -> Iterator[str]:
    from dapo.build.engines import describe_engine

    yield describe_engine(recipe).removeprefix("engine: ")
    if recipe.rollout.engine == "vllm_server":
        yield "the server was not asked anything; a run asks it first of all"


def check_hooks(recipe: Recipe) -> None:
    """Import every ``package.module:function`` that the recipe names.

    Raises:
        RecipeError: a module or function that is not there, with the key that names it.
        RewardError: a reward function that cannot be loaded.
    """
    from dapo.build.parts import load_hook
    from dapo.rewards.compose import build_scorer

    algorithm = recipe.algorithm
    named = {
        "algorithm.shaping": algorithm.shaping,
        "algorithm.dynamic_sampling.keep": algorithm.dynamic_sampling.keep,
        "algorithm.loss.kind": algorithm.loss.kind,
        "algorithm.advantage.kind": algorithm.advantage.kind,
    }
    build_scorer(recipe.rewards).close()  # loads reward functions in a worker, as training does
    for key, hook in named.items():
        if hook is not None and ":" in hook:  # a loss or advantage without a colon is a built-in one
            load_hook(hook, key)


def load_tokenizer_and_shape(recipe: Recipe) -> tuple[Any, Shape]:
    """The model's tokenizer and sizes, without its weights.

    Raises:
        ModelError: neither a folder nor a hub name that can be reached.
    """
    from dapo.models.builtin import SPECS, is_builtin

    path = recipe.model.path
    if is_builtin(path) and path not in SPECS:
        raise ModelError(f"model.path: there is no built-in model {path}; there are {', '.join(SPECS)}")
    if is_builtin(path):
        from transformers.utils.logging import disable_progress_bar

        from dapo.models.tiny import make_tiny_model

        with tempfile.TemporaryDirectory() as folder:
            disable_progress_bar()
            make_tiny_model(folder, heads=2)
            return _load(folder, recipe)
    return _load(path, recipe)


def _load(path: str, recipe: Recipe) -> tuple[Any, Shape]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dapo.models.load import load_tokenizer

    remote = recipe.model.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=remote)
        tokenizer = load_tokenizer(path, remote, notes=[])
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=remote)
    except ModelError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and others for a bad folder
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"model.path: {path} cannot be loaded: {reason}; give the folder of a Hugging Face causal language model, "
            "or a hub name that can be reached from here"
        ) from error
    text = config.get_text_config()
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return tokenizer, Shape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        ffn=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        key_values=2 * (getattr(text, "num_key_value_heads", None) or heads) * width,
        vocabulary=text.vocab_size,
    )


def arithmetic(recipe: Recipe, data: PreparedData) -> list[str]:
    """Prompts, responses, optimiser steps, passes over the data and largest token counts, in sentences."""
    rollout, steps = recipe.rollout, recipe.trainer.steps
    prompts, group, limit = rollout.prompts_per_step, rollout.group_size, rollout.max_response_tokens
    mini = recipe.learner.minibatch_prompts or prompts
    updates = prompts // mini
    longest = _longest_prompt(data)
    lines = [
        f"a training step: {prompts} prompts x {group} responses = {prompts * group} responses, at most "
        f"{prompts * group * limit:,} response tokens",
        f"optimiser steps: {updates} per training step, each on {mini} prompts = {mini * group} responses; "
        f"{updates * steps:,} in {steps:,} training steps",
        f"longest sequence: {longest} prompt + {limit} response = {longest + limit} tokens; micro-batches hold "
        f"{recipe.learner.microbatch_tokens:,}",
        f"the data: {len(data.train):,} prompts, so {steps} steps of {prompts} pass over it "
        f"{steps * prompts / len(data.train):.2f} times, rejected groups not counted",
    ]
    sampling = recipe.algorithm.dynamic_sampling
    if sampling.mode == "filter":
        cap = f"{math.ceil(sampling.max_groups * prompts):,} groups" if sampling.max_groups else "no cap"
        lines.append(
            f"dynamic sampling: refilled until {prompts} groups are kept, at most {cap} a step, then {sampling.on_cap}"
        )
    elif sampling.mode == "replace":
        enough = least_kept(sampling, prompts)
        lines.append(f"dynamic sampling: with {enough} of {prompts} groups kept, copies of them stand in for the rest")
    elif sampling.mode == "mask":
        lines.append(f"dynamic sampling: {prompts} groups are dispatched, those without variance are dropped")
    if sampling.retire_at is not None:
        lines.append(
            f"prompts retire at a pass rate of {sampling.retire_at:g} and are reviewed {sampling.review_share:.0%} of "
            "the times that their turn comes"
        )
    if sampling.greso:
        lines.append(f"GRESO skips prompts without variance, towards {sampling.greso_target:.0%} of such groups")
    if recipe.algorithm.overlong_punishment.enabled and recipe.algorithm.shaping is None:
        end, cache = penalty_interval(recipe)
        lines.append(
            f"length penalty: from {end - cache} tokens (0) to {end} (-{recipe.algorithm.overlong_punishment.factor:g})"
        )
    old = "the sampler's log-probabilities" if uses_sampler_logprobs(recipe) else "the learner's, computed once more"
    lines.append(f"the ratio runs against {old}")
    lines.append(_evaluations(recipe, data))
    return lines


def _evaluations(recipe: Recipe, data: PreparedData) -> str:
    validation = recipe.validation
    if not data.validation or not validation.every:
        return "evaluations: none"
    problems = sum(min(len(p), validation.limit or len(p)) for p in data.validation.values())
    each = problems * (validation.samples + validation.greedy)
    times = recipe.trainer.steps // validation.every + 1 + bool(recipe.trainer.steps % validation.every)
    return f"evaluations: {times}, each of {problems} problems = {each:,} responses"


def estimate_memory(recipe: Recipe, shape: Shape, longest_prompt: int) -> Memory:
    """Bytes of weights, gradients, AdamW state, activations of one micro-batch, and the key-value cache.

    Low-precision models keep float32 masters, gradients and both moments (12 bytes more per parameter each step).
    """
    size = _BYTES[recipe.model.dtype]
    n, low = shape.parameters, recipe.model.dtype != "float32"
    tokens = max(recipe.learner.microbatch_tokens, 1)
    # Kept per token and layer: norms, attention inputs and output, feed-forward inputs; with checkpointing the
    # layer's input, plus one layer in full. The chunked logits stay small beside them.
    layer = 8 * shape.hidden + 3 * shape.ffn
    per_token = shape.layers * shape.hidden + layer if recipe.model.gradient_checkpointing else shape.layers * layer
    sequences = recipe.rollout.slots or recipe.rollout.prompts_per_step * recipe.rollout.group_size
    length = longest_prompt + recipe.rollout.max_response_tokens
    own, elsewhere = recipe.rollout.engine == "vllm", recipe.rollout.engine == "vllm_server"
    engine_size = _BYTES[recipe.rollout.vllm.dtype or recipe.model.dtype] if own else size
    return Memory(
        weights=n * size,
        gradients=n * (size + 4 * low),
        optimiser=n * (8 + 4 * low),
        activations=tokens * per_token * size,
        engine=n * engine_size if own else 0,
        cache=0 if elsewhere else sequences * length * shape.layers * shape.key_values * engine_size,
    )


def _memory_lines(recipe: Recipe, shape: Shape, longest_prompt: int) -> Iterator[str]:
    memory = estimate_memory(recipe, shape, longest_prompt)
    yield f"{shape.parameters:,} parameters in {recipe.model.dtype}: {_size(memory.weights)}"
    yield f"gradients {_size(memory.gradients)}, AdamW {_size(memory.optimiser)}"
    yield f"activations of {recipe.learner.microbatch_tokens:,} tokens: about {_size(memory.activations)}"
    if recipe.rollout.engine == "vllm_server":
        yield f"sampling weights and key-value cache: on the server {recipe.rollout.server.url}"
        yield f"together about {_size(memory.total)}"
        return
    if memory.engine:
        yield f"vLLM's own copy of the weights: {_size(memory.engine)}"
    slots = "" if recipe.rollout.slots else " if all responses of a step decode at once; rollout.slots bounds it"
    yield f"key-value cache: at most {_size(memory.cache)}{slots}"
    yield f"together about {_size(memory.total)}"


def files(recipe: Recipe, shape: Shape) -> list[str]:
    """What the run folder will hold, and whether it exists already."""
    folder = Path(recipe.run.dir) / recipe.run.name
    state = 4 if recipe.model.dtype == "float32" else 2
    one = shape.parameters * (state + 8 + 4 * (recipe.model.dtype != "float32"))
    kept = recipe.checkpoint.keep
    every = f"every {recipe.checkpoint.every} steps" if recipe.checkpoint.every else "at the end"
    lines = [
        f"{folder}/: recipe.yaml, recipe.resolved.yaml, metrics.jsonl, log.txt, curve.png",
        f"{folder}/checkpoints/: {every}, the newest {kept} of about {_size(one)} each",
    ]
    if recipe.logging.rollouts != "none":
        lines.append(f"{folder}/rollouts/: one Parquet file a step, {recipe.logging.rollouts} groups")
    if folder.exists():
        what = "training will refuse to start" if recipe.run.if_exists == "refuse" else "it will be moved aside"
        lines.append(f"{folder} exists already: {what} (run.if_exists: {recipe.run.if_exists})")
    return lines


def _longest_prompt(data: PreparedData) -> int:
    return max((len(p.token_ids) for p in data.train), default=0)


def _size(count: int) -> str:
    for unit, scale in (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
