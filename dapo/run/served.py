"""The teachers that a recipe has on servers: checked before work starts, and asked by the driver."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dapo.config.check_teacher import teacher_paths
from dapo.config.schema import Recipe
from dapo.engines.vllm_teacher import ServedTeacher
from dapo.errors import RecipeError
from dapo.http import read_key
from dapo.run.teachers import Say, other_vocabulary
from dapo.types.batch import TEACHER, Of


@contextmanager
def served_teachers(
    recipe: Recipe, tokenizer: Any, longest: int, say: Say, *, most: float = math.inf
) -> Iterator[dict[Of, ServedTeacher]]:
    """Connect to the teachers on servers, once each can judge the student's tokens.

    Args:
        recipe: of the run.
        tokenizer: the student's.
        longest: tokens of prompt and response together that the run may train on.
        say: hears which models the servers have.
        most: seconds to wait for a server, where the recipe has more.

    Raises:
        RecipeError: the variable that shall hold the servers' key does not.
        EngineError: a server takes shorter rows, or gives no log-probabilities of given tokens (``TeacherAway``: none
            answers).
        ModelError: its tokens are not the student's.
    """
    with ExitStack() as closing:
        found = dict[Of, ServedTeacher]()
        for path in teacher_paths(recipe, served=True):
            patience = min(most, recipe.algorithm.teacher.patience)
            one = ServedTeacher(path, patience=patience, api_key=_key(recipe))
            closing.callback(one.close)
            if differing := one.check(tokenizer, longest):
                raise other_vocabulary(recipe, path, differing)
            room = "" if one.context is None else f", {one.context:,} tokens a row"
            say(f"teacher at {path}: {one.model}{room}; its tokens are the student's")
            found[f"{TEACHER}{path}"] = one
        yield found


def _key(recipe: Recipe) -> str | None:
    variable = recipe.algorithm.teacher.api_key_variable
    try:
        return variable and read_key(variable, "algorithm.teacher.api_key_variable", "the teacher's server")
    except ValueError as error:
        raise RecipeError(str(error)) from error
