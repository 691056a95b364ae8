"""What every section of a recipe shares: strictness, and a few types."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Parallel = Annotated[int, Field(gt=0, le=1024)]
"""Threads, processes or devices: more than any machine has."""
Tokens = Annotated[int, Field(gt=0, le=10_000_000)]
"""Of one sequence: longer than any model reads."""
MOST_MANY = 65_536
Many = Annotated[int, Field(gt=0, le=MOST_MANY)]
"""Prompts, responses or slots of one step: memory is taken for each."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""At most a day: what waits longer, waits for ever."""
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
