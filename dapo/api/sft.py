"""``dapo.sft``: a supervised run from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from dapo.api.notebook import console_for
from dapo.api.recipe import RecipeLike, ask
from dapo.api.run import Run
from dapo.observe.callbacks import as_callback
from dapo.run.given import Given
from dapo.run.train import Opened, begin

if TYPE_CHECKING:
    from dapo.api.sections import Settings


def sft(
    recipe: RecipeLike | None = None,
    *,
    train: Any = None,
    validation: Any = None,
    callbacks: Sequence[Any] = (),
    tokenizer: Any = None,
    **settings: Unpack[Settings],
) -> Run:
    """Imitate examples to the end, as ``dapo sft`` does, and return the run; ``run.path / "export"`` is its model.

    Args:
        recipe: as in ``dapo.train``; None: settings alone.
        train: what is imitated: a path, records with a prompt and a response or with messages, a ``datasets.Dataset``,
            a data frame; None: the recipe's ``sft.train``.
        validation: held-out examples, likewise, or a dict of them by name.
        callbacks: as in ``dapo.train``.
        tokenizer: of a loaded model, as in ``dapo.train``.
        settings: sections (``sft={"epochs": 2}``) and dotted keys (``**{"sft.learning_rate": 1e-4}``).

    Raises:
        DapoError: what ``dapo sft`` would have told.
    """
    asked = ask(recipe, train=train, validation=validation, tokenizer=tokenizer, settings=settings, sft=True)
    del settings  # a loaded model is saved by now, and only the caller may keep it
    given = Given(callbacks=tuple(map(as_callback, callbacks)), objects=asked.objects)
    console, more = console_for(asked.loaded.recipe.logging.console)
    run = None
    for done in begin(asked.loaded, given.with_callbacks(more), console):
        if isinstance(done, Opened):
            run = Run(done.folder.path)
    assert run is not None  # it is opened before its first step
    return run
