"""The recipe's sections ``data``, ``rewards`` and ``sft``: what is trained on, and how responses are scored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.section import Hook, Many, Positive, Rate, Seconds, Section, Tokens, Whole


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


class SftSource(Section):
    name: str | None = None
    """Name in metrics; default: the file's (without its suffix) or folder's name."""
    path: str
    """A file, pattern, folder or ``hub:owner/name``, as ``data.train.N.path``. Its records hold a prompt and a
    response, or messages."""
    split: str = "train"
    """Split of a folder or hub data set."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Field mapping: ``{prompt: question, response: solution}`` or ``{messages: conversations}``. Left out: found by
    their usual names."""
    size: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Records to take; null: all."""


class Sft(Section):
    train: list[SftSource] = Field(default_factory=list)
    """What is imitated; what answers a held-out problem of ``data.validation`` is taken out. A prompt becomes what
    ``data`` says of problems (chat template, instruction, examples), so that training by reward goes on with the same
    prompts; messages are taken as they stand."""
    validation: list[SftSource] = Field(default_factory=list)
    """Held-out records: ``validation/loss`` is measured on them."""
    epochs: Positive = 1
    """Passes over ``train``, each in an order of its own unless ``data.shuffle`` is false."""
    steps: Positive | None = None
    """End after so many steps; null: after ``epochs``."""
    batch_size: Many = 32
    """Records of one optimiser step; the last step of the last epoch has the rest."""
    learning_rate: Rate = 1e-5
    """Peak learning rate. The optimiser's other settings are those of ``learner``."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """After the warm-up; linear and cosine fall to ``final_ratio`` at the last step."""
    warmup: Whole = 10
    """Steps of linear warm-up."""
    final_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak at the end of linear and cosine."""
    max_tokens: Tokens = 4096
    """Limit of a prompt with its response."""
    overlong: Literal["drop", "refuse"] = "drop"
    """Records over the limit are dropped (counted and said) or refused. Never cut: a response without its end teaches
    not to end."""
    loss_on: Literal["all", "last"] = "all"
    """Of a conversation: every turn of the assistant's carries loss, or only the last one."""
    every: Whole = 50
    """Steps between two measurements of the held-out loss; 0: never. The first and last steps are measured too."""
    export: bool = True
    """Write the model to ``RUN/export`` at the end (of the best checkpoint where ``checkpoint.best`` is set):
    ``dapo train RECIPE model.path=RUN/export`` goes on from there."""
