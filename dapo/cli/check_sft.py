"""``dapo check --sft``: what a supervised run will do and need. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dapo.cli.check_machine import Fit, Looked, Prompts, judge, needs_here, no_gpu
from dapo.cli.check_memory import load_tokenizer_and_facts, memory_lines
from dapo.cli.check_screen import Sections
from dapo.config import Recipe
from dapo.config.check_sft import supervised
from dapo.config.checks import long_warmup
from dapo.config.deployment import deployment_of
from dapo.words import counted

if TYPE_CHECKING:
    from dapo.data.demonstrations import Demonstrations


def look_at_examples(recipe: Recipe, sections: Sections) -> Looked:
    """Load tokenizer and examples, and add the run's arithmetic and memory. Return what it found.

    Args:
        recipe: of a supervised run.
        sections: takes the lines.

    Raises:
        ModelError: model configuration or tokenizer cannot be loaded.
        DataError: the examples cannot be read, or none is left to train on.
        RecipeError: an example is longer than the model reads, or an adapter does not fit it.
    """
    from dapo.data.demonstrations import prepare_demonstrations
    from dapo.loop.supervised import steps_of
    from dapo.run.here import trackers_of
    from dapo.run.sampling import stop_tokens
    from dapo.run.supervised import check_examples, shown, shown_tokens

    add = sections.add
    trackers_of(recipe)
    tokenizer, facts = load_tokenizer_and_facts(recipe)
    examples = prepare_demonstrations(recipe.sft, recipe.data, tokenizer, stop_tokens(recipe, facts))
    check_examples(recipe, examples, facts)
    add("examples", examples.lines)
    add("the first one, as the model gets it", shown(examples.train[0], tokenizer))
    add("its tokens: number, and how the vocabulary writes it", shown_tokens(examples.train[0], tokenizer))
    steps = steps_of(len(examples.train), recipe.sft.batch_size, recipe.sft.epochs, recipe.sft.steps)
    add("arithmetic", _arithmetic(recipe, examples, steps))
    add("who runs where", deployment_of(recipe).lines())
    lengths = list(map(len, examples.train))
    add("memory, estimated", memory_lines(supervised(recipe, 1), facts, max(lengths)))
    if no_gpu(recipe):
        return Looked(facts, Fit())
    needs = needs_here(recipe, facts, Prompts(sum(lengths) / len(lengths), max(lengths)), steps)
    return Looked(facts, judge(recipe, needs))


def _arithmetic(recipe: Recipe, examples: Demonstrations, steps: int) -> Iterator[str]:
    sft, count = recipe.sft, len(examples.train)
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
