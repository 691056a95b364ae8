"""What every section of a recipe shares: strictness, and a few types."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST = 1_000_000_000_000
"""Of any count: what is larger is a slip of the hand, and beyond 2^53 a float no longer holds it."""
LARGE = 1e6
"""Of any coefficient: beyond it losses and gradients leave float32."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Factor = Annotated[float, Field(ge=0, le=LARGE)]
"""A coefficient that may be 0."""
Above = Annotated[float, Field(gt=0, le=LARGE)]
"""A coefficient that may not."""
Signed = Annotated[float, Field(ge=-LARGE, le=LARGE)]
Rate = Annotated[float, Field(ge=1e-15, le=10)]
"""A learning rate: below it no weight in float32 changes, above it every weight does."""
Parallel = Annotated[int, Field(gt=0, le=1024)]
"""Threads, processes or devices: more than any machine has."""
Tokens = Annotated[int, Field(gt=0, le=10_000_000)]
"""Of one sequence: longer than any model reads."""
MOST_MANY = 65_536
Many = Annotated[int, Field(gt=0, le=MOST_MANY)]
"""Prompts, responses or slots of one step: memory is taken for each."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""At most a day: what waits longer, waits for ever."""
Patience = Annotated[float, Field(ge=1, le=86_400)]
"""Seconds that processes wait for each other: below one second a busy machine looks like a lost process."""
Hook = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""``package.module:function`` of the user's, with the signature of the built-in one."""
Pair = Annotated[tuple[float, float], Field(strict=False)]
"""Two numbers, written as a YAML list."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "32" is not a number and true is not 1: a recipe means what it says
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
    )
