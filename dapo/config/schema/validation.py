"""The recipe's section ``validation``: evaluation during training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dapo.config.section import Many, Positive, Section, Tokens, Whole


class Validation(Section):
    every: Whole = 10
    """Training steps between evaluations; 0: never. The first and last steps are evaluated too."""
    samples: Many = 4
    """k: sampled responses per problem."""
    greedy: bool = True
    """Also one greedy response per problem."""
    temperature: Annotated[float, Field(ge=0.001, le=100)] = 1.0
    """Of sampled evaluation."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of sampled evaluation (the paper's run: 0.7)."""
    max_response_tokens: Tokens | None = None
    """None: as in training."""
    limit: Positive | None = None
    """Problems per data set; None: all."""
