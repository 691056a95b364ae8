"""Common parts of every section of a recipe: strictness, and a few types."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Rule = Literal["free", "ask", "fixed"]
"""Whether a setting may change when a run is resumed.

``free``: it changes nothing that training computes from here on, or only when training stops. ``ask``: it changes the
course of the run, so an override has to name it. ``fixed``: the state in the checkpoint has no meaning without it.
"""


@dataclass(frozen=True, slots=True)
class Resume:
    """Mark a field of a section with its rule for a resume, where it is not the rule of the section."""

    rule: Rule


FREE, ASK, FIXED = Resume("free"), Resume("ask"), Resume("fixed")

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
Address = Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/\S*)?$")]
"""Of a service; without credentials, for which ``api_key_variable`` is."""
BARE = (
    "http://HOST:PORT or https://HOST:PORT, without a path, a user or a password; a key is given by the name of an "
    "environment variable"
)
"""What is expected where ``is_bare`` says no."""
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
"""Name of an environment variable."""
Pair = Annotated[tuple[float, float], Field(strict=False)]
"""Two numbers, written as a YAML list."""


def is_bare(url: str) -> bool:
    """Whether an address is that of a server, and nothing more."""
    with suppress(ValueError):  # of a port that is none
        parts = urlsplit(url)
        return re.fullmatch(r"https?://[^/?#@\s]+/?", url) is not None and bool(parts.hostname) and parts.port != 0
    return False


class Section(BaseModel):
    """Hold a part of a recipe; ``class Launch(Section, resume="free")`` sets the rule for its fields on a resume."""

    resume_rule: ClassVar[Rule] = "ask"
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "32" is not a number and true is not 1: a recipe means what it says
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
    )

    def __init_subclass__(cls, resume: Rule = "ask", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.resume_rule = resume


OWN = "package.module:function"
"""The kind of a section whose function is the user's, in the index of settings."""


class OneOf:
    """Mark a union of sections of which the key ``kind`` chooses one; the first one is meant where it is missing.

    A section whose kind needs no option may be written as the name of the kind alone.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = kinds_of(source)
        default = next(iter(kinds))

        def choose(value: Any) -> str | None:
            kind = value.get("kind", default) if isinstance(value, dict) else getattr(value, "kind", None)
            return (OWN if ":" in kind else kind) if isinstance(kind, str) else None

        union = core_schema.tagged_union_schema(
            {kind: handler.generate_schema(section) for kind, section in kinds.items()}, discriminator=choose
        )
        return core_schema.no_info_before_validator_function(
            lambda value: {"kind": value} if isinstance(value, str) else value, union
        )


def kinds_of(union: Any) -> dict[str, type[Section]]:
    """Return the sections of a union that ``OneOf`` marks, by their kinds."""
    sections: tuple[type[Section], ...] = get_args(union)
    return {OWN if (field := s.model_fields["kind"]).is_required() else field.default: s for s in sections}
