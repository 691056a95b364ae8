"""``dapo check --sft``: what a supervised run will do and need. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dapo.cli.check_memory import adapter_lines, estimate_memory, load_tokenizer_and_facts, size_text
from dapo.cli.check_screen import NOT_HERE_TITLE, WARNINGS, Sections, hidden
from dapo.config import LoadedRecipe, Recipe
from dapo.config.check_sft import supervised
from dapo.config.checks import long_warmup
from dapo.types.model import ModelFacts
from dapo.words import counted

if TYPE_CHECKING:
    from dapo.data.demonstrations import Demonstrations


def look_at_sft_run(loaded: LoadedRecipe, sections: Sections) -> None:
    """Load tokenizer and examples, and add the run's arithmetic, memory and files.

    Args:
        loaded: the recipe, of a supervised run.
        sections: takes the lines.

    Raises:
        ModelError: model configuration or tokenizer cannot be loaded.
        DataError: the examples cannot be read, or none is left to train on.
        RecipeError: an example is longer than the model reads.
    """
    from dapo.cli.check import difference_lines, files, here_lines
    from dapo.config.deployment import deployment_of
    from dapo.data.demonstrations import prepare_demonstrations
    from dapo.observe.run_name import with_free_name
    from dapo.run.here import trackers_of
    from dapo.run.sampling import stop_tokens
    from dapo.run.supervised import check_lengths, shown, shown_tokens

    loaded = with_free_name(loaded)
    recipe, add = loaded.recipe, sections.add
    add("different from the preset", [f"preset {recipe.preset}", *difference_lines(loaded)], shown=hidden)
    add(WARNINGS, loaded.warnings)
    trackers_of(recipe)
    tokenizer, facts = load_tokenizer_and_facts(recipe)
    examples = prepare_demonstrations(recipe.sft, recipe.data, tokenizer, stop_tokens(recipe, facts))
    check_lengths(examples, facts)
    add("examples", examples.lines)
    add("the first one, as the model gets it", shown(examples.train[0], tokenizer))
    add("its tokens: number, and how the vocabulary writes it", shown_tokens(examples.train[0], tokenizer))
    add("arithmetic", _arithmetic(recipe, examples))
    add("who runs where", deployment_of(recipe).lines())
    add("memory, estimated", _memory(supervised(recipe, 1), facts, examples))
    add("files", files(recipe, facts))
    add(NOT_HERE_TITLE, here_lines(recipe))


def _arithmetic(recipe: Recipe, examples: Demonstrations) -> Iterator[str]:
    from dapo.loop.supervised import steps_of

    sft, count = recipe.sft, len(examples.train)
    steps = steps_of(count, sft.batch_size, sft.epochs, sft.steps)
    tokens = sum(map(len, examples.train))
    yield (
        f"{counted(steps, 'step')} of {counted(sft.batch_size, 'example')}, about "
        f"{tokens * sft.batch_size // count:,} tokens each: {steps * sft.batch_size / count:.2f} passes over "
        f"{counted(count, 'example')}"
    )
    yield f"learning rate {sft.learning_rate:g}, {sft.schedule}, after {counted(sft.warmup, 'step')} of warm-up"
    if note := long_warmup("sft", sft.warmup, steps, sft.learning_rate):
        yield f"warning: {note}"
    if examples.validation and sft.every:
        held_out = sum(map(len, examples.validation.values()))
        every = "each step" if sft.every == 1 else f"every {sft.every} steps"
        yield f"held-out loss: of {counted(held_out, 'example')}, at the start, {every} and at the end"
    else:
        yield "held-out loss: none is measured (sft.validation, sft.every)"


def _memory(recipe: Recipe, facts: ModelFacts, examples: Demonstrations) -> Iterator[str]:
    memory = estimate_memory(recipe, facts, max(map(len, examples.train)))
    ranks = recipe.learner.ranks
    each = f", on each of {ranks} ranks" if ranks > 1 else ""
    yield f"{facts.parameters:,} parameters in {recipe.model.dtype}: {size_text(memory.weights)}{each}"
    yield from adapter_lines(recipe, facts)
    yield f"gradients {size_text(memory.gradients)}, AdamW {size_text(memory.optimiser)}{each}"
    if ranks > 1:
        yield f"gathered from other ranks while it computes, with gradients: at most {size_text(memory.gathered)}"
    yield (
        f"activations of {recipe.learner.microbatch_tokens:,} tokens: about {size_text(memory.activations)}; logits "
        f"and what is made of them: {size_text(memory.head)}"
    )
    parts = memory.weights + memory.optimiser + memory.gradients + memory.gathered + memory.activations + memory.head
    yield f"together about {size_text(parts)}{each}; there is no engine"
