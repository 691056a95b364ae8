"""Whether a recipe's limits and tokens fit the model: asked before weights are read, and not at the first request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dapo.config.deployment import Deployment
from dapo.config.schema import Recipe
from dapo.data.load import PreparedData
from dapo.errors import RecipeError
from dapo.models.builtin import is_builtin
from dapo.models.load import load_structure, torch_dtype
from dapo.models.positions import check_positions
from dapo.types.batch import Prompt
from dapo.types.model import ModelFacts
from dapo.words import divisors


def check_fits(recipe: Recipe, facts: ModelFacts, data: PreparedData, *, training: bool = True) -> None:
    """Refuse sequences that are longer than the model reads, and stop tokens that it cannot write.

    Adapters for layers that it does not have are refused, and more ranks for a row than can share its attention heads.

    Args:
        recipe: the recipe.
        facts: of its model.
        data: the prepared prompts, whose lengths count.
        training: whether the training prompts are asked; without it they are placeholders.

    Raises:
        RecipeError: with the longest response that fits, and the tokens that do not.
    """
    problems = [
        *_lengths(recipe, facts, data, training),
        *_stop_tokens(recipe, facts),
        *adapter_problems(recipe, facts),
        *_context_parallel(recipe, facts),
    ]
    if problems:
        raise RecipeError("\n".join(problems))


def check_engine_fits(recipe: Recipe, facts: ModelFacts, tokenizer: Any, longest: int) -> list[str]:
    """Refuse a model that the recipe's engine refuses when it starts, as far as no weight is needed to know.

    Args:
        recipe: the recipe.
        facts: of its model.
        tokenizer: of the model.
        longest: tokens of the longest sequence that the engine can be asked for.

    Returns:
        What is not known before the engine has the weights.

    Raises:
        ModelError: positions depend on the rest of a batch, as ``start_engine`` says.
        EngineError: the engine cannot decode the model, or has no routers to record.
    """
    from dapo.engines.decoders import check_structure
    from dapo.engines.embedded import routing_of
    from dapo.engines.vllm_options import check_experts
    from dapo.run.engines import missing_package

    check_positions(facts.name, facts.exact_positions, longest)
    engine = Deployment(recipe).engine
    if engine == "vllm" and missing_package(recipe) is None and not torch.cuda.is_available():
        check_experts(facts, cuda=False)  # without the package this machine would not start it anyway
    if not Deployment(recipe).engine_facts.ours or is_builtin(facts.name):
        return []
    model, dtype = recipe.model, torch_dtype(recipe.model.dtype)
    structure = load_structure(facts.name, dtype, tokenizer, trust_remote_code=model.trust_remote_code)
    unasked = check_structure(structure)
    if recipe.learner.router_replay == "sampler":
        routing_of(structure)
    return [] if unasked is None else [f"whether the embedded engine decodes this architecture ({unasked})"]


def _lengths(recipe: Recipe, facts: ModelFacts, data: PreparedData, training: bool) -> Iterator[str]:
    limit = facts.positions
    if limit is None:
        return
    rollout, validation = recipe.rollout.max_response_tokens, recipe.validation.max_response_tokens
    held_out = [prompt for prompts in data.validation.values() for prompt in prompts]
    asked: list[tuple[str, Sequence[Prompt], int]] = [("rollout", data.train, rollout)] if training else []
    asked.append(("rollout" if validation is None else "validation", held_out, validation or rollout))
    told: set[str] = set()
    for section, prompts, response in asked:
        longest = max((len(prompt.token_ids) for prompt in prompts), default=0)
        if prompts and longest + response > limit and section not in told:
            told.add(section)
            key = f"{section}.max_response_tokens"
            move = f"set {key} to at most {limit - longest}" if longest < limit else "its prompts alone are too long"
            yield (
                f"{key} = {response} does not fit {facts.name}, which reads {limit} positions: the longest prompt has "
                f"{longest} tokens. {move[0].upper()}{move[1:]}, or lower data.max_prompt_tokens (long prompts are "
                "then dropped), or take a model that reads more"
            )


def _stop_tokens(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    outside = [token for token in recipe.rollout.stop_token_ids or [] if not 0 <= token < facts.vocabulary]
    if outside:
        yield (
            f"rollout.stop_token_ids: {', '.join(map(str, outside))} is no token of {facts.name}, whose ids are 0 to "
            f"{facts.vocabulary - 1}: it would never end a response. Its own end tokens are "
            f"{', '.join(map(str, facts.stop_token_ids)) or 'not known'}; leave the key out to take those"
        )


def adapter_problems(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield what ``model.lora`` names and the model does not have, and copies of tied tables."""
    lora = recipe.model.lora
    if lora.rank is None:
        return
    layers = [name.rpartition(".")[0] for name in facts.shapes]
    linear = list(facts.linear) or layers
    named = [] if lora.target_modules == "all-linear" else lora.target_modules
    for key, names, known, what in (
        ("target_modules", named, linear, "linear layer"),
        ("modules_to_save", lora.modules_to_save, layers, "layer"),
    ):
        missing = [name for name in names if not any(f".{layer}".endswith(f".{name}") for layer in known)]
        if missing:
            ends = sorted({layer.rpartition(".")[2] for layer in known})
            yield (
                f"model.lora.{key}: {', '.join(missing)} is no {what} of {facts.name}; name some of its {what}s "
                f"({', '.join(ends[:20])})"
            )
    if facts.fingerprint.get("tied") and (tables := [name for name in lora.modules_to_save if _is_table(name, facts)]):
        yield (
            f"model.lora.modules_to_save: {', '.join(tables)} is the embedding of {facts.name}, which is its output "
            "head as well: a copy of one of them would no longer be tied; leave it out"
        )


def _context_parallel(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    learner, heads = recipe.learner, facts.fingerprint.get("num_attention_heads")
    if heads and heads % learner.context_parallel:
        yield (
            f"learner.context_parallel = {learner.context_parallel} does not divide the {heads} attention heads of "
            f"{facts.name}, which these ranks share; with learner.ranks / learner.replicas = "
            f"{learner.ranks // learner.replicas} it can be {divisors(heads, learner.ranks // learner.replicas)}"
        )


def _is_table(layer: str, facts: ModelFacts) -> bool:
    """Whether a layer's name, or its end, is the embedding's."""
    return any(
        shape == (facts.vocabulary, facts.hidden) and f".{name.rpartition('.')[0]}".endswith(f".{layer}")
        for name, shape in facts.shapes.items()
        if name.rpartition(".")[0] not in facts.linear
    )
