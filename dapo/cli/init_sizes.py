"""Sizes of a run that ``dapo init`` chooses: what this machine's memory holds, and about an hour of its processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dapo.cli.check_machine import LONG, Needs, Prompts, needs_here
from dapo.cli.check_memory import size_text
from dapo.cli.init_form import SMALL
from dapo.config import Recipe
from dapo.errors import RecipeError
from dapo.types.model import ModelFacts

LOOKED_AT = 2_000  # problems of a source whose prompts are counted
_TINY = 50_000_000  # parameters of models that were made for a test
_PATIENCE = 3600.0  # seconds of a run on a processor
_FASTER = 1.2  # of bfloat16 products over float32's, from which it is worth its rounding


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of a recipe."""

    prompts: int  # P
    group: int  # G
    steps: int
    microbatch: int  # tokens
    rate: float
    dtype: str
    adapter: bool = False  # and activations are computed again, where memory is short
    high: float | None = None  # the clip's upper bound; None: the preset's
    limit: int = 256  # held-out problems of one evaluation


def rate_of(parameters: int | None, builtin: bool) -> float:
    """Return a learning rate for a model of so many parameters (docs/settings_by_size.md)."""
    if builtin:
        return 5e-4
    if parameters is None or parameters >= SMALL:
        return 1e-6
    return 1e-4 if parameters < _TINY else 6e-6


def dtype_of(facts: ModelFacts | None) -> str:
    """Return the precision in which this processor trains a model faster: bfloat16 where it multiplies it fast."""
    if facts is None or facts.parameters < _TINY:
        return "float32"
    from dapo.models.precision import product_rate

    bfloat16, float32 = (product_rate(name, facts.hidden, facts.ffn) for name in ("bfloat16", "float32"))
    return "bfloat16" if bfloat16 > _FASTER * float32 else "float32"


def candidates(facts: ModelFacts | None, *, cuda: bool, builtin: bool, steps: int | None) -> Iterator[Sizes]:
    """Yield sizes, the best first. An adapter comes last, which takes a fraction of the memory.

    Args:
        facts: of the model; None: it is not here.
        cuda: the run computes on a GPU.
        builtin: the model is a built-in one.
        steps: of training; None: as many as fit.
    """
    parameters = None if facts is None else facts.parameters
    rate, dtype = rate_of(parameters, builtin), "bfloat16" if cuda else dtype_of(facts)
    high = 0.4 if parameters is not None and _TINY <= parameters < SMALL else None
    first = Sizes(8, 16, steps or 30, 4096, rate, dtype, high=high, limit=100)
    if cuda:
        first = replace(first, prompts=32, group=8, steps=steps or 100, microbatch=16384, limit=256)
        whole = [first, replace(first, microbatch=4096)]
    elif builtin or (parameters is not None and parameters < _TINY):
        whole = [replace(first, group=8, steps=steps or 100, limit=256)]
    else:
        fewer = [(8, 16, 30), (8, 16, 20), (8, 8, 30), (8, 8, 20), (4, 8, 20), (2, 8, 20)]
        whole = [replace(first, prompts=p, group=g, steps=steps or most) for p, g, most in fewer]
        whole.append(replace(whole[-1], microbatch=1024, limit=50))
    yield from whole
    yield from (replace(sizes, adapter=True, dtype="bfloat16", rate=10 * rate) for sizes in whole)


def choose_sizes(
    tried: Iterator[Sizes], draft: Callable[[Sizes], Recipe], facts: ModelFacts, prompts: Prompts
) -> tuple[Sizes, Needs]:
    """Return the first sizes that the machine's memory holds and that end within an hour, and what they take.

    Where none end so soon, those of all weights that end first.

    Args:
        tried: sizes, the best first.
        draft: makes the recipe of sizes.
        facts: of the model.
        prompts: of the data.

    Raises:
        RecipeError: none fit into the memory, or the run would take days.
    """
    slow: list[tuple[float, Sizes, Needs]] = []
    least: Needs | None = None
    for sizes in tried:
        if sizes.adapter and any(not one.adapter for _, one, _ in slow):
            break
        recipe = draft(sizes)
        needs = needs_here(recipe, facts, replace(prompts, held_out=min(prompts.held_out, sizes.limit)))
        seconds = needs.seconds(recipe) or 0.0
        if needs.fits and seconds <= _PATIENCE:
            return sizes, needs
        if needs.fits:
            slow.append((seconds, sizes, needs))
        least = needs if least is None or needs.memory < least.memory else least
    if slow:
        seconds, sizes, needs = min(slow, key=lambda one: one[0])
        if seconds <= LONG:
            return sizes, needs
        raise RecipeError(
            f"a model of {facts.parameters / 1e6:,.0f} million parameters is too large for this machine's processor: "
            f"{sizes.steps} steps of the smallest batch would take about {seconds / 3600:.0f} h. Take a smaller model, "
            "a shorter --max-tokens, or a GPU (--device cuda writes a recipe for one)"
        )
    assert least is not None
    raise RecipeError(
        f"a model of {facts.parameters / 1e6:,.0f} million parameters does not fit: training takes "
        f"{size_text(least.memory)} at the least, with an adapter and the smallest batch, and this machine has "
        f"{size_text(least.has or 0)}. Take a smaller model, a shorter --max-tokens, or a machine with more memory"
    )


def prompts_of(recipe: Recipe, tokenizer: Any) -> Prompts:
    """Return the sizes of a recipe's prompts, by the first of each source.

    Raises:
        DataError: the data cannot be read, or no prompt is left.
    """
    from dapo.data import prepare
    from dapo.data.answers import answers_read

    train, held_out = (
        [source.model_copy(update={"size": LOOKED_AT}) for source in part]
        for part in (recipe.data.train, recipe.data.validation)
    )
    data = recipe.data.model_copy(update={"train": train, "validation": held_out})
    prepared = prepare(data, tokenizer, answers=answers_read(recipe))
    lengths = [len(prompt.token_ids) for prompt in prepared.train]
    every = [len(prompt.token_ids) for prompts in prepared.validation.values() for prompt in prompts]
    return Prompts(sum(lengths) / len(lengths), max(lengths + every), len(every))
