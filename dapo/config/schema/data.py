"""The recipe's section ``data``: where problems come from, and how they become prompts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.section import Positive, Section, Tokens


class DataSource(Section):
    name: str | None = None
    """Name in metrics; default: the file's (without its suffix), folder's or task's name."""
    path: str | None = None
    """JSONL, JSON, CSV, Parquet or Arrow file; a pattern such as ``data/*.jsonl``; a folder that ``save_to_disk`` wrote
    or that was downloaded from the hub; or ``hub:owner/name[:subset]`` (needs the extra ``data``)."""
    split: str = "train"
    """Split of a folder or hub data set; a file, or a pattern of files, is taken whole."""
    format: Literal["auto", "plain", "gsm8k", "dapo_math", "aime", "amc", "math", "svamp", "multiarith"] = "auto"
    """Named record layout of the public sets; ``plain`` uses ``fields``."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Field mapping, e.g. ``{problem: question, answer: target}``. Columns not named keep their names."""
    task: str | None = None
    """A procedural source instead of a file: ``signed_sum`` or ``reasoning_gym/NAME`` (extra ``tasks``)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of a procedural task."""
    seed: int = 0
    """Seed of a procedural task (evaluation and training sets need different ones)."""
    size: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Problems to take; for a procedural task how many to make (of each level)."""
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Share of the training prompts, relative to the other sources'; all of them have one, or none. None: all problems
    are one pool, so that each source has the share of its size."""
    levels: list[dict[str, Any]] = Field(default_factory=list)
    """Of a procedural training task: options of each level on top of ``options``, the easiest first. The level follows
    the accuracy, see ``data.curriculum``."""


class Curriculum(Section):
    raise_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Mean accuracy at which a task goes on to its next level."""
    lower_at: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Mean accuracy at which it goes back to the level before."""
    window: Annotated[int, Field(gt=0, le=65_536)] = 32
    """Groups of the present level over which the accuracy is taken; a new level begins with none."""


class Shot(Section):
    problem: str
    """As a record has it; ``instruction`` follows it as it follows every problem."""
    response: str
    """The whole response, as the model is to write its own."""


class Thinking(Section):
    enabled: bool = False
    """The answer is what follows the thinking: nothing within the tags counts, and thinking that is never closed has no
    answer. Off, rewards read the whole response."""
    open: str = "<think>"
    """Tag that begins the thinking, in the response or as the end of the prompt."""
    close: str = "</think>"
    """Tag that ends it."""


class Data(Section):
    train: list[DataSource] = Field(min_length=1)
    """Where training problems come from."""
    validation: list[DataSource] = Field(default_factory=list)
    """Held-out sets. Problems that also stand in the training data are taken out of training, and counted."""
    curriculum: Curriculum = Curriculum()
    """When sources with ``levels`` change theirs."""
    prompt: Literal["auto", "chat", "template", "raw"] = "auto"
    """``chat``: the tokenizer's chat template. ``template``: ``prompt_template``. ``raw``: the problem text itself.
    ``auto``: template if given, else chat if the tokenizer has one, else raw."""
    prompt_template: str | None = None
    """Text with ``{problem}`` in it."""
    chat_template: str | None = None
    """A chat template of your own instead of the tokenizer's: its text (Jinja), or a file that holds it, which is read
    once, when the recipe is. ``dapo export`` writes it beside the model."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """What else the chat template reads, by name, such as ``{enable_thinking: false}``."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of tools for the chat template, the same for every problem."""
    tools_field: str | None = None
    """Column that holds a record's own tools (a list of schemas, or that list as JSON text)."""
    few_shot: list[Shot] = Field(default_factory=list)
    """Solved examples before every problem. Problems that are among them are taken out of all data, and counted."""
    response_prefix: str | None = None
    """Text that every response begins with. For the learner it is the prompt's end: it carries no loss and counts in no
    length. Rewards, samples and rollouts see it as the beginning of the response."""
    thinking: Thinking = Thinking()
    """Where the answer stands in the responses of models that think first."""
    system_prompt: str | None = None
    """System message for ``chat``."""
    instruction: str | None = None
    """Appended to the problem, e.g. "Answer with \\\\boxed{}."."""
    max_prompt_tokens: Tokens = 1024
    """Limit of a prompt."""
    overlong_prompts: Literal["drop", "refuse"] = "drop"
    """Prompts over the limit are dropped (counted and said) or refused. Never cut."""
    shuffle: bool = True
    """A new order each epoch, from the run's seed."""
    epochs: Positive | None = None
    """Passes over the data; None: endless."""
