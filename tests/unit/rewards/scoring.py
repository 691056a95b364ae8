"""What the tests of rewards share: a prompt, a response, and the scores of several."""

from __future__ import annotations

from typing import Any

import numpy as np

from dapo.rewards.compose import CompositeScorer
from dapo.types.batch import Prompt, Response, Score
from dapo.types.enums import FinishReason


def prompt(answer: str = "42", source: str = "set", **extra: Any) -> Prompt:
    return Prompt("id", "question", np.arange(3), "question", answer, source, extra)


def completion(text: str) -> Response:
    n = 4
    return Response(np.ones(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.int32), FinishReason.STOP, text=text)


def score_all(scorer: CompositeScorer, texts: list[Any], of: Prompt | None = None) -> list[Score]:
    """Scores of all texts, or responses, in their order; every key must come back exactly once."""
    for index, text in enumerate(texts):
        made = text if isinstance(text, Response) else completion(text)
        scorer.submit((5, index), of or prompt(), made)
    scores: dict[tuple[int, int], Score] = {}
    while len(scores) < len(texts):
        found = scorer.poll(timeout=120)
        assert found, f"nothing came back within two minutes; have {sorted(scores)}"
        for key, score in found:
            assert key not in scores
            scores[key] = score
    assert scorer.poll(timeout=0) == []
    assert scorer.poll(timeout=None) == []
    return [scores[5, index] for index in range(len(texts))]
