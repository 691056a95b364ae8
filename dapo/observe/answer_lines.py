"""Every answer of an evaluation as lines of JSON: written by ``dapo evaluate --out``, compared by ``--against``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dapo.errors import DataError
from dapo.observe.jsonl import JsonlWriter, read_jsonl
from dapo.types.batch import Group, Key, Prompt, Response, Score
from dapo.types.enums import FinishReason
from dapo.types.evaluation import GREEDY, ValidationSets


def write_answers(path: Path, sets: ValidationSets, model: str, step: int | None) -> None:
    """Write a line for each response.

    Raises:
        DataError: the file exists.
    """
    if path.exists():
        raise DataError(f"{path} exists already; give another name to --out")
    with JsonlWriter(path) as file:
        file.append(*({"model": model, "step": step, **record} for record in answer_records(sets)))


def answer_records(sets: ValidationSets) -> Iterator[dict[str, Any]]:
    """Return a record of what JSON can hold for each response."""
    for name, groups in sets.items():
        for group in groups:
            for response, score in group.pairs():
                yield {
                    "set": name,
                    "problem": group.id,
                    "prompt_id": group.prompt.id,
                    "question": group.prompt.problem,
                    "answer": group.prompt.answer,
                    "sample": response.key.sample,
                    "greedy": response.key.sample == GREEDY,
                    "response": response.shown,
                    "answered": score.answer,
                    "accuracy": score.accuracy,
                    "rewards": dict(score.values),
                    "unscored": score.reason,
                    "length": response.model_tokens,
                    "truncated": response.truncated,
                }


def read_answers(path: Path) -> tuple[str, int | None, ValidationSets]:
    """Model, step and groups of a file that ``write_answers`` wrote.

    Raises:
        DataError: it is none.
    """
    try:
        records = list(read_jsonl(path))
        first = records[0]
        sets: dict[str, dict[int, Group]] = {}
        for record in records:
            _add(sets.setdefault(str(record["set"]), {}), record)
        return str(first["model"]), first["step"], {name: list(groups.values()) for name, groups in sets.items()}
    except (OSError, json.JSONDecodeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no file of answers ({type(error).__name__}: {error}); give one that `dapo evaluate --out` "
            "wrote, or a model or run folder"
        ) from None


def _add(groups: dict[int, Group], record: dict[str, Any]) -> None:
    """Add the response of a line to the group of its problem."""
    problem, question = int(record["problem"]), str(record["question"])
    none = np.zeros(int(record["length"]), np.int64)
    finish = FinishReason.LENGTH if record["truncated"] else FinishReason.STOP
    prompt = Prompt(str(record["prompt_id"]), question, none[:0], question, str(record["answer"]), "")
    group = groups.setdefault(problem, Group(problem, prompt, [], []))
    tokens = none, none.astype(np.float32), none.astype(np.int32)
    key = Key("evaluate", problem, int(record["sample"]))
    group.completions_G.append(Response(*tokens, finish, str(record["response"]), key=key))
    values = {name: float(value) for name, value in record["rewards"].items()}
    group.scores_G.append(Score(values=values, reason=record["unscored"], answer=record["answered"]))
