"""Every answer of an evaluation as lines of JSON: written by ``dapo evaluate --out``, compared by ``--against``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dapo.errors import DataError
from dapo.observe.jsonl import JsonlWriter, read_jsonl
from dapo.types.batch import Prompt, Response, Score
from dapo.types.enums import FinishReason
from dapo.types.evaluation import Evaluated


def write_answers(path: Path, responses: Sequence[Evaluated], model: str, step: int | None) -> None:
    """Write a line for each response.

    Raises:
        DataError: the file exists.
    """
    if path.exists():
        raise DataError(f"{path} exists already; give another name to --out")
    with JsonlWriter(path) as file:
        file.append(*({"model": model, "step": step, **_record(response)} for response in responses))


def _record(response: Evaluated) -> dict[str, Any]:
    score, completion = response.score, response.completion
    return {
        "set": response.dataset,
        "problem": response.problem,
        "prompt_id": response.prompt.id,
        "question": response.prompt.problem,
        "answer": response.prompt.answer,
        "sample": response.sample,
        "greedy": response.sample < 0,
        "response": completion.shown,
        "answered": score.answer,
        "accuracy": score.accuracy,
        "rewards": dict(score.values),
        "unscored": score.reason,
        "length": completion.model_tokens,
        "truncated": completion.truncated,
    }


def read_answers(path: Path) -> tuple[str, int | None, list[Evaluated]]:
    """Model, step and responses of a file that ``write_answers`` wrote.

    Raises:
        DataError: it is none.
    """
    try:
        records = list(read_jsonl(path))
        first = records[0]
        return str(first["model"]), first["step"], [_response(record) for record in records]
    except (OSError, json.JSONDecodeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no file of answers ({type(error).__name__}: {error}); give one that `dapo evaluate --out` "
            "wrote, or a model or run folder"
        ) from None


def _response(record: dict[str, Any]) -> Evaluated:
    none = np.zeros(int(record["length"]), np.int64)
    finish = FinishReason.LENGTH if record["truncated"] else FinishReason.STOP
    values = {name: float(value) for name, value in record["rewards"].items()}
    question = str(record["question"])
    return Evaluated(
        dataset=str(record["set"]),
        problem=int(record["problem"]),
        sample=int(record["sample"]),
        prompt=Prompt(str(record["prompt_id"]), question, none[:0], question, str(record["answer"]), ""),
        completion=Response(none, none.astype(np.float32), none.astype(np.int32), finish, str(record["response"])),
        score=Score(values=values, reason=record["unscored"], answer=record["answered"]),
    )
