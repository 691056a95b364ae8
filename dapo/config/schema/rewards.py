"""The recipe's section ``rewards``: how responses are scored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Hook, Seconds, Section


class Reward(Section):
    name: str = "accuracy"
    """Name in metrics and rollouts. Exactly one reward of a response must be called ``accuracy``."""
    kind: Literal["math", "exact", "regex", "task", "function"] = "math"
    """``math``: the last ``\\boxed{...}``, line ``Answer: ...`` or line ``#### ...``, compared as mathematics; a number
    without such a mark is no answer. ``exact``: text equality after normalising. ``regex``. ``task``: the data
    source's own scorer (procedural tasks). ``function``: yours."""
    function: Hook | None = None
    """For ``function``: called as f(prompt, completion) and returns a number (or a dict of numbers)."""
    pattern: str | None = None
    """For ``regex``: 1.0 when it is found. For ``exact``: extracts the answer (group 1)."""
    reads: Literal["answer", "response"] | None = None
    """With ``data.thinking``: what follows the thinking, or the whole response (for a pattern that looks at the tags).
    None: the answer; a ``function`` gets both, ``completion.final_text`` and ``completion.text``."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Factor in the weighted sum that is the reward (``algorithm.reward_scaling`` must hold it). 0: recorded only."""
    sources: list[str] | None = None
    """Data sources it applies to; None: all."""
    timeout: Seconds = 10.0
    """Seconds for one response, after which it is unscored."""
