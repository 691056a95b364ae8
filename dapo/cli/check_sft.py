"""``dapo check --sft``: what a supervised run will do and need. Trains nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from dapo.cli.check_memory import adapter_lines, estimate_memory, load_tokenizer_and_facts, size_text
from dapo.config import LoadedRecipe, Recipe
from dapo.config.check_sft import supervised, unreached
from dapo.config.shipped import short_name
from dapo.contracts.model import ModelFacts
from dapo.contracts.words import counted

if TYPE_CHECKING:
    from dapo.data.demonstrations import Demonstrations


def check_sft_run(loaded: LoadedRecipe, show: Callable[[str, Iterable[str]], None]) -> int:
    """Load tokenizer and examples, and print the run's arithmetic, memory and files.

    Returns the exit code: 0, or ``NOT_HERE`` of ``dapo.cli.check``.

    Args:
        loaded: the recipe, of a supervised run.
        show: takes each section's title and lines.

    Raises:
        ModelError: model configuration or tokenizer cannot be loaded.
        DataError: the examples cannot be read, or none is left to train on.
        RecipeError: an example is longer than the model reads.
    """
    from dapo.cli.check import NOT_HERE, NOT_HERE_TITLE, difference_lines, files, here_lines, verdict
    from dapo.data.demonstrations import prepare_demonstrations
    from dapo.observe.run_name import with_free_name
    from dapo.run.sampling import stop_tokens
    from dapo.run.sft import check_lengths, shown, shown_tokens

    loaded = with_free_name(loaded)
    recipe = loaded.recipe
    called = short_name(loaded.path) if loaded.path else "RECIPE"
    print(f"{called}: supervised")
    show("different from the preset", difference_lines(loaded))
    show("warnings", loaded.warnings)
    tokenizer, facts = load_tokenizer_and_facts(recipe)
    examples = prepare_demonstrations(recipe.sft, recipe.data, tokenizer, stop_tokens(recipe, facts))
    check_lengths(examples, facts)
    show("examples", examples.lines)
    show("the first one, as the model gets it", shown(examples.train[0], tokenizer))
    show("its tokens: number, and how the vocabulary writes it", shown_tokens(examples.train[0], tokenizer))
    show("arithmetic", _arithmetic(recipe, examples))
    show("memory, estimated", _memory(supervised(recipe, 1), facts, examples))
    show("files", files(recipe, facts))
    overrides = [override for override in loaded.overrides if not override.startswith("run.stage")]
    here = here_lines(recipe)
    show(NOT_HERE_TITLE, here)
    print(f"\n{verdict(f'dapo sft {shlex.join([called, *overrides])}', here)}")
    return NOT_HERE if here else 0


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
    if note := unreached(sft, steps):
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
