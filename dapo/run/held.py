"""Bytes that a learner holds: the one place that counts them, for `dapo check` and for the engine that shares its
device."""

from __future__ import annotations

from dataclasses import dataclass

from dapo.config.schema import Recipe
from dapo.learner.eight_bits import moment_bytes
from dapo.models.adapter import adapter_parameters, adapter_shapes
from dapo.run.algorithm import needs_reference
from dapo.run.model import tokenizer_and_facts
from dapo.run.teachers import teacher_recipes
from dapo.types.model import ModelFacts

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a number."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of a learner in one process, whatever the model's layers keep for a backward pass aside."""

    weights: int  # of the model, an adapter's own included
    gradients: int  # while an optimiser step is made; a low-precision model's add up in float32
    optimiser: int  # AdamW's two moments, and float32 masters of a low-precision model
    reference: int  # frozen values of the trained parameters, on the device
    teachers: int = 0  # weights of the models that judge the policy's tokens, on the device

    @property
    def beside_weights(self) -> int:
        """Held on the device between two optimiser steps."""
        return self.optimiser + self.reference + self.teachers


def learner_holds(recipe: Recipe, facts: ModelFacts) -> Held:
    """Return the bytes that the recipe's learner holds of a model, in one process."""
    size, low = BYTES[recipe.model.dtype], recipe.model.dtype != "float32"
    trained, adapter = trained_parameters(recipe, facts), recipe.model.lora.rank is not None
    reference = keeps_reference(recipe) and not recipe.algorithm.reference.offload
    return Held(
        weights=(facts.parameters + trained * adapter) * size,
        gradients=trained * (size + 4 * low),
        optimiser=moments(recipe, facts) + trained * 4 * low,
        reference=trained * size * reference,
        teachers=0 if recipe.algorithm.teacher.offload else teacher_bytes(recipe),
    )


def teacher_bytes(recipe: Recipe) -> int:
    """Bytes of the weights of all teachers, whole."""
    found = (tokenizer_and_facts(theirs, lambda note: None)[1] for theirs in teacher_recipes(recipe).values())
    return BYTES[recipe.model.dtype] * sum(facts.parameters for facts in found)


def trained_parameters(recipe: Recipe, facts: ModelFacts) -> int:
    """How many numbers the optimiser moves: the model's, or the adapter's."""
    lora = recipe.model.lora
    return facts.parameters if lora.rank is None else adapter_parameters(facts.shapes, lora)


def moments(recipe: Recipe, facts: ModelFacts) -> int:
    """Bytes of AdamW's two moments of every number that it moves."""
    if recipe.learner.optimizer == "adamw":
        return 8 * trained_parameters(recipe, facts)
    lora = recipe.model.lora
    shapes = facts.shapes.values() if lora.rank is None else adapter_shapes(facts.shapes, lora)
    return 2 * sum(map(moment_bytes, shapes))


def keeps_reference(recipe: Recipe) -> bool:
    """Whether frozen weights are kept for a reference: not for a model that is one without its adapter."""
    free = recipe.model.lora.rank is not None and recipe.algorithm.reference.refresh_every is None
    return needs_reference(recipe) and not free
