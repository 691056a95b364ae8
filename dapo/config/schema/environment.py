"""The recipe's section ``environment``: what answers the model between its turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.section import FIXED, FREE, Hook, Many, Parallel, Seconds, Section, Tokens, Whole


class EnvironmentSection(Section):
    kind: Annotated[Literal["tools", "agent", "verifiers", "openenv"] | Hook | None, FIXED] = None
    """``tools``: an episode goes on while the model calls ``tools``. ``agent``: a program that asks the model over an
    endpoint (docs/agents.md). ``package.module:name``: a generator function or class of yours, SkyRL-Gym's or TRL's.
    ``verifiers``: the environment ``id`` of that library. ``openenv`` is refused, with the way to such a server. null:
    a response has one turn. docs/environments.md and docs/howto_environments.md show all of them."""
    id: Annotated[str | None, FIXED] = None
    """With ``verifiers``: a module or an installed package that has ``load_environment(**args)``."""
    args: Annotated[dict[str, Any], FIXED] = Field(default_factory=dict)
    """Keyword arguments of your function or class, ``env_config`` of SkyRL-Gym's, arguments of ``load_environment``; a
    command finds them in its input."""
    run: Annotated[Hook | list[str] | None, FIXED] = None
    """With ``kind: agent``: a function ``package.module:name`` of (prompt, base_url, api_key, ``args``), or a command
    as a list of its words."""
    other_sampling: Literal["refuse", "ignore"] = "refuse"
    """With ``kind: agent``: a request that asks for another temperature, ``top_p``, seed, ``stop`` or the like than the
    recipe's. ``refuse``: error 400. ``ignore``: the recipe's are taken, and the agents' output says so once."""
    tools: Annotated[list[Literal["python"] | Hook], FIXED] = Field(default_factory=list)
    """What the model may call: typed functions, ``package.module:function``, and ``python``, which runs a program in
    the ``sandbox`` and returns what it prints. Their schemas go to the chat template."""
    tool_format: Annotated[Literal["auto", "hermes", "llama3", "mistral", "python", "none"] | Hook, FIXED] = "auto"
    """How the model writes a call. ``auto``: as its chat template shows one. ``package.module:function``: f(text)
    returns a list of (name, arguments)."""
    max_turns: Many = 8
    """Turns of the model in an episode."""
    turn_limit: Literal["scored", "truncated"] = "scored"
    """An episode at ``max_turns``: scored as it is, or truncated, as a response that is too long."""
    max_turn_tokens: Tokens | None = None
    """Tokens of one turn of the model. null: what is left of the episode (``rollout.max_response_tokens``)."""
    long_turn: Literal["replied", "truncated"] = "replied"
    """At ``max_turn_tokens``: the environment replies to what there is, or the episode is truncated."""
    max_reply_tokens: Tokens = 512
    """Tokens of a reply's contents."""
    long_reply: Literal["cut", "error"] = "cut"
    """A longer reply: its middle is cut out, and a note in its place says so if the tokenizer has words for it; or it
    is an error of the environment."""
    on_error: Literal["unscored", "end", "tell"] = "unscored"
    """An environment that raises, takes too long or returns nonsense. ``unscored``: its response trains nothing.
    ``end``: the episode ends with the rewards that it has. ``tell``: the model reads one line about an exception and
    goes on; anything else is unscored. What a tool raises is always told to the model."""
    timeout: Annotated[Seconds, FREE] = 30.0
    """Seconds for one call of the environment."""
    workers: Annotated[Parallel | None, FREE] = None
    """Processes for environments. null: as ``run.reward_workers``. On a Ray cluster each is an actor, and None without
    ``run.reward_workers`` is one for each engine."""
    memory_mib: Annotated[Annotated[int, Field(ge=256, le=1 << 30)] | None, FREE] = 4096
    """Memory limit of each such process in MiB (Linux only); null: none."""
    rows: Annotated[Literal["append", "turns"], FIXED] = "append"
    """``append``: an episode is one row; the chat template must keep earlier turns. ``turns``: a row for each turn of
    the model, after the conversation as the template writes it then. Their tokens grow with the square of the turns."""
    lag: Whole = 8
    """Engine steps after which a reply takes effect. The engine does not wait for a tool that is faster. Without effect
    where ``rollout.max_staleness`` is above 0 and ``rollout.overlap_turns`` null: a reply takes effect when it is
    there."""
