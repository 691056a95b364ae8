"""Make the parts of a supervised run, from its recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.config.check_sft import supervised
from dapo.config.checks import long_warmup
from dapo.config.deployment import Deployment, deployment_of
from dapo.config.schema import Recipe
from dapo.config.secrets import redact
from dapo.data.demonstrations import Demonstration, Demonstrations, prepare_demonstrations
from dapo.data.stream import content
from dapo.errors import RecipeError
from dapo.loop.supervised import Supervised, steps_of
from dapo.metrics.phases import Phases
from dapo.models.builtin import is_builtin
from dapo.models.facts import facts_of
from dapo.observe.console import Console
from dapo.run.fits import adapter_problems
from dapo.run.model import check_model, facts_without_weights, make_facts, make_model, make_tokenizer, with_folder
from dapo.run.publishing import make_exchange
from dapo.run.sampling import stop_tokens
from dapo.run.session import Session
from dapo.types.batch import Prompt
from dapo.types.model import ModelFacts
from dapo.types.protocols import Learner, Recorder
from dapo.words import counted

SHOWN = 600  # characters of the first example that are shown
SHOWN_TOKENS = 24  # tokens at each end of a stretch that are shown


@dataclass(slots=True)
class ExampleParts:
    """Parts of supervised training besides a model and a learner. Keeps ``dapo.run.session.Parts``."""

    given: Recipe
    used: Recipe  # with the learner's settings of ``sft``
    examples: Demonstrations
    deployment: Deployment

    @property
    def engine(self) -> None:
        return None

    @property
    def prompts(self) -> list[Prompt]:
        return [one.prompt for one in self.examples.train]

    def saved_facts(self) -> dict[str, Any]:
        held_out = self.examples.validation
        return {
            "recipe": redact(self.given.model_dump(mode="json")),
            "validation": {name: content([one.prompt for one in ones]) for name, ones in held_out.items()},
        }

    def method(self, learner: Learner, recorder: Recorder, phases: Phases) -> Supervised:
        """Return the supervised step over ``learner``."""
        return Supervised(
            examples=self.examples.train,
            held_out=self.examples.validation,
            learner=learner,
            recipe=self.used,
            recorder=recorder,
            phases=phases,
        )


def supervised_session(recipe: Recipe, console: Console, folder: Path | None = None) -> Session[ExampleParts]:
    """Make a supervised run whose files live in ``folder``.

    Raises:
        ModelError: a device, name or folder that cannot be; before the data is read. Weights come last.
        DataError: the data cannot be read.
        RecipeError: an example is longer than the model reads, or an adapter does not fit it.
    """
    check_model(recipe.model)
    model = with_folder(recipe, console.say).model  # the recipe keeps what was given: a resume compares it
    tokenizer = make_tokenizer(model, recipe.data.chat_template)
    built_in = is_builtin(recipe.model.path)
    facts = make_facts(recipe, console) if built_in else facts_without_weights(model, tokenizer)
    examples = prepare_demonstrations(recipe.sft, recipe.data, tokenizer, stop_tokens(recipe, facts))
    for line in [*examples.lines, *shown(examples.train[0], tokenizer)]:
        console.say(line)
    check_examples(recipe, examples, facts)
    sft = recipe.sft
    steps = steps_of(len(examples.train), sft.batch_size, sft.epochs, sft.steps)
    if note := long_warmup("sft", sft.warmup, steps, sft.learning_rate):
        console.warn(note)
    used = supervised(recipe, steps)
    deployment = deployment_of(used)
    loaded = make_model(used, console, facts) if deployment.learner == "here" else None
    facts = facts if loaded is None else facts_of(loaded)
    exchange = make_exchange(used, deployment, facts, folder)
    closing = ExitStack()
    closing.callback(exchange.close)
    return Session(
        recipe=used,
        parts=ExampleParts(recipe, used, examples, deployment),
        loaded=loaded,
        facts=facts,
        tokenizer=tokenizer if loaded is None else loaded.tokenizer,
        exchange=exchange,
        folder=folder,
        say=console.say,
        closing=closing,
    )


def shown(one: Demonstration, tokenizer: Any) -> list[str]:
    """Return the text of an example as the model gets it: its prompt, what it is shown later, and what it learns."""
    text = [f"{what}  {tokenizer.decode(ids)!r}" for what, ids in _parts(one)]
    return [f"first example: {line if len(line) <= SHOWN else line[:SHOWN] + '...'}" for line in text]


def shown_tokens(one: Demonstration, tokenizer: Any) -> list[str]:
    """Return the tokens of an example, each with its number and as the vocabulary writes it.

    A blank that the tokenizer put in front is seen there, and in no text.
    """
    lines = []
    for what, ids in _parts(one):
        pieces = [
            f"{number} {token!r}" for number, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
        ]
        if len(pieces) > 2 * SHOWN_TOKENS:
            left = len(pieces) - 2 * SHOWN_TOKENS
            pieces = [*pieces[:SHOWN_TOKENS], f"... {left:,} more ...", *pieces[-SHOWN_TOKENS:]]
        lines.append(f"{what}  {counted(len(ids), 'token')}: {', '.join(pieces)}")
    return lines


def _parts(one: Demonstration) -> Iterator[tuple[str, list[int]]]:
    """Yield the stretches of an example: ``prompt``, ``shown`` (no loss) or ``learnt``, and token ids."""
    yield "prompt", one.prompt.token_ids.tolist()
    start = 0
    for n in range(1, len(one.token_ids) + 1):
        if n == len(one.token_ids) or one.loss_mask[n] != one.loss_mask[start]:
            yield "learnt" if one.loss_mask[start] else "shown ", one.token_ids[start:n].tolist()
            start = n


def check_examples(recipe: Recipe, examples: Demonstrations, facts: ModelFacts) -> None:
    """Raise RecipeError for an example that is longer than the model reads, or an adapter of layers that it lacks."""
    if problems := list(adapter_problems(recipe, facts)):
        raise RecipeError("\n".join(problems))
    longest = max(
        map(len, [*examples.train, *(one for ones in examples.validation.values() for one in ones)]), default=0
    )
    if facts.positions is not None and longest > facts.positions:
        raise RecipeError(
            f"the longest example has {longest} tokens, and {facts.name} reads {facts.positions} positions: set "
            f"sft.max_tokens to at most {facts.positions}"
        )
