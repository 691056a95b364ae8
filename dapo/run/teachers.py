"""The teachers that a recipe names: checked before work starts, and loaded beside the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dapo.config.check_teacher import teacher_paths
from dapo.config.schema import Lora, Model, Recipe
from dapo.errors import ModelError
from dapo.learner.teacher import Teacher
from dapo.observe.console import Console
from dapo.run.model import check_model_path, make_model, model_path, tokenizer_and_facts, with_folder
from dapo.types.batch import TEACHER, Of
from dapo.types.model import ModelFacts

Say = Callable[[str], None]


def teacher_recipes(recipe: Recipe) -> dict[Of, Recipe]:
    """Return, for each teacher that the learner loads, the recipe with it in place of the model."""
    found = {}
    for path in teacher_paths(recipe, served=False):
        frozen = {"path": path, "lora": Lora(), "activation_checkpointing": "none"}
        theirs = recipe.model.model_copy(update=frozen)
        found[f"{TEACHER}{path}"] = recipe.model_copy(update={"model": theirs})
    return found


def teacher_models(recipe: Recipe, console: Console) -> dict[Of, Model]:
    """Return what to load of each teacher: its folder, where that has to be made first. The driver does that once,
    and the learner's processes find it."""
    found = {}
    for name, theirs in teacher_recipes(recipe).items():
        model = with_folder(theirs, console.say).model
        found[name] = model.model_copy(update={"path": model_path(model.path, theirs, console)})
    return found


def load_teachers(recipe: Recipe) -> dict[Of, Teacher]:
    """Load the teachers of a learner of one process, whole.

    Raises:
        ModelError: one cannot be loaded.
    """
    offload, temperature = recipe.algorithm.teacher.offload, recipe.rollout.temperature
    with Console("quiet") as console:
        made = {
            name: make_model(recipe.model_copy(update={"model": model}), console)
            for name, model in teacher_models(recipe, console).items()
        }
    return {name: Teacher(one, recipe.learner, temperature, offload=offload) for name, one in made.items()}


def read_teachers(recipe: Recipe, tokenizer: Any, say: Say, *, weights: bool = True) -> list[tuple[Recipe, ModelFacts]]:
    """Refuse teachers that cannot judge the student's tokens, before data and weights are read.

    Args:
        recipe: of the run.
        tokenizer: the student's.
        say: hears where dequantised weights are.
        weights: False: configuration and tokenizer are enough, as for `dapo check`.

    Returns:
        The recipe of each teacher (``teacher_recipes``) and its facts.

    Raises:
        ModelError: a model is missing, or its tokens are not the student's; the message says which differ.
    """
    found = []
    for theirs in teacher_recipes(recipe).values():
        path = theirs.model.path
        try:
            check_model_path(path, weights=weights)
            own, facts = tokenizer_and_facts(theirs, say)
        except ModelError as error:
            said = str(error).replace("model.path", "algorithm.teacher.path")
            raise type(error)(said if said != str(error) else f"algorithm.teacher: {said}") from error
        if differing := list(_differences(tokenizer.get_vocab(), own.get_vocab())):
            raise other_vocabulary(recipe, path, "; ".join(differing))
        found.append((theirs, facts))
    return found


def other_vocabulary(recipe: Recipe, path: str, differing: str) -> ModelError:
    """Return the error of a teacher with other tokens; ``differing`` says which."""
    return ModelError(
        f"algorithm.teacher: {path} has another vocabulary than the student {recipe.model.path}, so it cannot "
        f"judge the student's tokens: {differing}. Take a teacher of the student's family, whose tokenizer gives every "
        "token the same id"
    )


def _differences(own: Mapping[str, int], theirs: Mapping[str, int]) -> Iterator[str]:
    """Yield what differs between two vocabularies, token -> id: sizes, and the first token with another id."""
    if own == theirs:
        return
    yield f"the student's tokenizer has {len(own):,} tokens, the teacher's {len(theirs):,}"
    if moved := sorted((at, token) for token, at in own.items() if theirs.get(token) != at):
        at, token = moved[0]
        there = f"{theirs[token]} there" if token in theirs else "unknown there"
        yield f"{len(moved):,} of the student's have another id there or none, the first {token!r}, {at} here, {there}"
    if more := sorted((at, token) for token, at in theirs.items() if token not in own):
        yield f"{len(more):,} of the teacher's are unknown to the student, the first {more[0][1]!r}, {more[0][0]}"
