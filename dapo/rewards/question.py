"""Parts of a response that travel to a worker: no more than its judge reads.

``math``, ``exact``, ``last_number`` and ``regex`` read the response and the gold answer; ``task`` and ``code`` the
prompt's record as well; a user's function may look at anything.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from dapo.types.batch import Prompt, Response
from dapo.types.enums import FinishReason

Kind = Literal[
    "math", "exact", "last_number", "regex", "task", "function", "code"
]  # services and environments have no verifier
Question = tuple[str, str] | tuple[bytes, str] | tuple[bytes, bytes]
_KEPT = 512  # prompts whose pickle is remembered: the responses of a group have one

_NO_IDS = np.empty(0, np.int64)


class Questions:
    """Makes questions of responses. A prompt is pickled once, and travels once in a message that names it often."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[Prompt, bytes]] = {}  # by identity; the prompt is kept, so that it stays one

    def make(self, kind: Kind, prompt: Prompt, completion: Response | list[Response]) -> Question:
        """Return the parts from which ``read_question`` makes a prompt and a response, or those of a group."""
        if kind == "function" or not isinstance(completion, Response):
            return self._prompt(prompt), _pickled(completion)
        if kind in ("task", "code"):
            return self._prompt(prompt), completion.text
        return prompt.answer, completion.text

    def _prompt(self, prompt: Prompt) -> bytes:
        known = self._prompts.get(id(prompt))
        if known is None:
            if len(self._prompts) >= _KEPT:
                self._prompts.clear()
            known = self._prompts[id(prompt)] = prompt, _pickled(prompt)
        return known[1]


def read_question(question: Any) -> tuple[Prompt, Any]:
    """Return a fresh prompt and response, or list of responses: what a verifier changes is not seen by the next."""
    about, response = question
    prompt = pickle.loads(about) if isinstance(about, bytes) else Prompt("", "", _NO_IDS, "", about, "")
    if isinstance(response, bytes):
        return prompt, as_given(pickle.loads(response))
    return prompt, Response.empty(finish=FinishReason.STOP, text=response)


def as_given(completion: Response | list[Response]) -> Response | list[Response]:
    """Return a response, or those of a group, as a user's function gets it: ids are int64, wherever its engine runs."""
    if isinstance(completion, Response):
        return replace(completion, token_ids=completion.token_ids.astype(np.int64, copy=False))
    return [replace(each, token_ids=each.token_ids.astype(np.int64, copy=False)) for each in completion]


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
