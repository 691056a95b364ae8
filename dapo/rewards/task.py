"""The scorers that come with procedural tasks."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from dapo.rewards.marks import extract_answer
from dapo.types.batch import Prompt, Response

SIGNED_SUM = "signed_sum"
REASONING_GYM = "reasoning_gym/"


def read_answer(prompt: Prompt, text: str) -> str | None:
    """Return the answer of a response; None if it has none."""
    if prompt.extra.get("task") == SIGNED_SUM:
        word = _last_word(text)
        return word.removeprefix("=") if word.startswith("=") else None
    return extract_task_answer(text) or None


def _last_word(text: str) -> str:
    words = text.rsplit(None, 1)
    return words[-1] if words else ""


def signed_sum(prompt: Prompt, completion: Response) -> float:
    """1.0 when the last word is ``=T`` with T the gold answer, else 0.0."""
    return float(_last_word(completion.text) == f"={prompt.answer}")


def reasoning_gym(prompt: Prompt, completion: Response) -> float:
    """Return the score in [0, 1] that the generator's own ``score_answer`` gives the response's answer.

    Some generators evaluate the answer as Python code: a reason to run this in a worker process.

    Raises:
        KeyError: the prompt was not made by a ``reasoning_gym/NAME`` source.
    """
    entry = prompt.extra["entry"]
    name = str(prompt.extra["task"]).removeprefix(REASONING_GYM)
    options: Mapping[str, Any] = prompt.extra.get("options", {})
    if name == "composite":  # each entry says which of the mixture it is from
        name = entry["metadata"]["source_dataset"]
        options = next((spec.get("config", {}) for spec in options["datasets"] if spec["name"] == name), {})
    generator = _generator(name, json.dumps(dict(options), sort_keys=True))
    return float(generator.score_answer(extract_task_answer(completion.text), entry))


def warm_up() -> None:
    """Import reasoning_gym where it is installed, so that the first response is not charged for its seconds."""
    with suppress(ImportError):
        importlib.import_module("reasoning_gym")


@lru_cache(maxsize=64)
def _generator(name: str, options: str) -> Any:
    import reasoning_gym as library

    return library.create_dataset(name, seed=0, size=1, **json.loads(options))


_OPEN, _CLOSE = "<answer>", "</answer>"


def extract_task_answer(text: str) -> str:
    r"""Return a response's answer to a procedural task. Time grows in proportion to the text.

    The content of its last ``<answer>...</answer>``; else its last ``\boxed{}`` or ``Answer:`` line; else all of it
    (tasks whose answers are grids or sentences ask for nothing but the answer).
    """
    tagged, start = None, text.find(_OPEN)
    while start >= 0:
        end = text.find(_CLOSE, start)
        if end < 0:
            break
        tagged = text[start + len(_OPEN) : end]
        start = text.find(_OPEN, end)
    if tagged is not None:
        return tagged.strip()
    marked = extract_answer(text)
    return text.strip() if marked is None else marked


def task(prompt: Prompt, completion: Response) -> float:
    """Return the score of whichever task made the prompt.

    Raises:
        ValueError: the prompt is from a file, which has no scorer of its own.
    """
    name = prompt.extra.get("task")
    if name == SIGNED_SUM:
        return signed_sum(prompt, completion)
    if isinstance(name, str) and name.startswith(REASONING_GYM):
        return reasoning_gym(prompt, completion)
    raise ValueError(f"reward kind `task` needs a procedural source, and {prompt.source!r} is none")
