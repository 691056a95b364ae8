"""The recipe's sections ``data``, ``rewards`` and ``sft``: what is trained on, and how responses are scored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.section import (
    ASK,
    FIXED,
    FREE,
    Address,
    Hook,
    Many,
    Parallel,
    Positive,
    Rate,
    Seconds,
    Section,
    Tokens,
    Variable,
    Whole,
)


class DataSource(Section, resume="fixed"):
    name: str | None = None
    """Name in metrics; default: the file's (without its suffix), folder's or task's name."""
    path: Annotated[str | None, ASK] = None
    """JSONL, JSON, CSV, Parquet or Arrow file; a pattern such as ``data/*.jsonl``; a folder that ``save_to_disk`` wrote
    or that was downloaded from the hub; or ``hub:owner/name[:subset]`` (needs the extra ``data``)."""
    split: str = "train"
    """Split of a folder or hub data set; a file, or a pattern of files, is taken whole."""
    format: Literal["auto", "plain", "gsm8k", "dapo_math", "aime", "amc", "math", "svamp", "multiarith"] = "auto"
    """Named record layout of the public sets; ``plain`` uses ``fields``."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Field mapping, e.g. ``{problem: question, answer: target}``. Columns not named keep their names."""
    task: str | None = None
    """A procedural source instead of a file: ``signed_sum`` or ``reasoning_gym/NAME`` (extra ``tasks``).
    ``environment``: the data set of an environment of ``verifiers``; ``split: eval`` takes its evaluation set."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of a procedural task."""
    seed: int = 0
    """Seed of a procedural task (evaluation and training sets need different ones)."""
    size: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Problems to take; for a procedural task how many to make (of each level)."""


class TrainSource(DataSource, resume="fixed"):
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Share of the training prompts, relative to the other sources'; all of them have one, or none. null: all problems
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


class Shot(Section, resume="fixed"):
    problem: str
    """As a record has it; ``instruction`` follows it."""
    response: str
    """The whole response, in the form that the model should copy."""


class ThinkingSection(Section):
    enabled: bool = False
    """The answer is what follows the thinking: nothing within the tags counts, and thinking that is never closed has no
    answer. Off, rewards read the whole response."""
    open: str = "<think>"
    """Tag that begins the thinking, in the response or as the end of the prompt."""
    close: str = "</think>"
    """Tag that ends it."""
    budget: Tokens | None = None
    """Thinking that is not closed after so many tokens of the response (of an episode: of each turn) is ended by
    ``end``. null: it may fill the whole response."""
    end: str | None = None
    """Text that ends such a thinking, closing tag included; null: the tag between empty lines. Its tokens were not
    sampled, and carry no loss."""


class Data(Section, resume="fixed"):
    train: list[TrainSource] = Field(min_length=1)
    """Where training problems come from."""
    validation: list[DataSource] = Field(default_factory=list)
    """Held-out sets. Problems that are also in the training data are taken out of training, counted, and shown with
    both texts. Texts of 20 letters and more are compared without blanks, case and punctuation."""
    stream: Hook | None = None
    """Your own order of the training prompts, ``package.module:Class``, called with the run's context
    (docs/extending.md). ``shuffle``, ``epochs``, ``curriculum`` and the weights of sources are then not read."""
    curriculum: Curriculum = Curriculum()
    """When sources with ``levels`` change theirs."""
    prompt: Literal["auto", "chat", "template", "raw"] = "auto"
    """``chat``: the tokenizer's chat template. ``template``: ``prompt_template``. ``raw``: the problem text itself.
    ``auto``: template if given, else chat if the tokenizer has one, else raw."""
    prompt_template: str | None = None
    """Text with ``{problem}`` in it."""
    chat_template: str | None = None
    """A chat template of your own instead of the tokenizer's: its text (Jinja), or a file that holds it. ``dapo
    export`` writes it into the model's folder."""
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
    thinking: ThinkingSection = ThinkingSection()
    """Where the answer is in the responses of models that think first."""
    system_prompt: str | None = None
    """System message for ``chat``."""
    instruction: str | None = None
    """Appended to the problem, e.g. "Answer with \\\\boxed{}."."""
    max_prompt_tokens: Tokens = 1024
    """Limit of a prompt."""
    overlong_prompts: Literal["drop", "refuse"] = "drop"
    """Drop (and count) or refuse prompts over the limit. Never cut."""
    shuffle: bool = True
    """A new order each epoch, from the run's seed."""
    epochs: Annotated[Positive | None, FREE] = None
    """Passes over the data; null: endless."""


class Reward(Section):
    name: Annotated[str, FIXED] = "accuracy"
    """Name in metrics and rollouts. Exactly one reward of a response must be called ``accuracy``."""
    kind: Literal["math", "exact", "last_number", "regex", "task", "function", "code", "service", "environment"] = (
        "math"
    )
    """``math``: the last ``\\boxed{...}``, line ``Answer: ...`` or line ``#### ...``, compared as mathematics; a number
    without such a mark is no answer. ``exact``: text equality after normalising. ``last_number``: the last number of
    the response equals the gold answer's. ``regex``. ``task``: the data source's own scorer (procedural tasks).
    ``function``: yours. ``code``: the response is a Python program, which runs in a sandbox against tests.
    ``service``: a judge or reward model over HTTP. ``environment``: the environment's score of this name, or, without
    one, the sum of the rewards of its replies."""
    function: Hook | None = None
    """For ``function``: called as f(prompt, completion) and returns a number (or a dict of numbers). Reward functions
    of TRL and verl are recognised by their parameters (docs/rewards.md). ``async def`` is awaited."""
    per: Literal["response", "group"] = "response"
    """What one call sees. ``group``, for ``function`` and ``service``: all responses to a prompt, when the last one has
    ended; the call returns a score for each. A function is then f(prompt, completions)."""
    pattern: str | None = None
    """For ``regex``: 1.0 when it is found. For ``exact``: extracts the answer (group 1). For ``service`` with ``api:
    openai``: finds the score in the reply (group 1, its last match); null: ``Score: NUMBER``."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """For ``last_number``: largest difference from the gold answer, as a share of it. 0: equal."""
    reads: Literal["answer", "response", "turn", "episode"] | None = None
    """With ``data.thinking``: what follows the thinking (``answer``), or the whole response (for a pattern that looks
    at the tags). With an environment: the model's last turn (``turn``), or all that the model wrote (``episode``).
    null: answer or turn; a ``function`` gets both, ``completion.final_text`` and ``completion.text``."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Factor in the weighted sum that is the reward (``algorithm.reward_scaling`` must hold it). 0: recorded only."""
    sources: list[str] | None = None
    """Data sources it applies to; null: all."""
    timeout: Annotated[Seconds | None, FREE] = None
    """Seconds for one response, after which it is unscored; null: 10. For ``code`` seconds that a program may take for
    all its tests, after which it is wrong; null: 5. For ``service`` seconds for one request; null: 60."""
    tests: str = "tests"
    """For ``code``: column of the tests, a list of texts with asserts, or of mappings ``{stdin, stdout}``."""
    entry_point: str | None = None
    """For ``code``: column of the name of the function that the asserts call (``add``, ``Solution().add``). They then
    run in a process apart from the program, which cannot read or deceive them. null: they run in the program's."""
    partial: bool = False
    """For ``code``: the share of the tests that passed, instead of 1.0 when all did."""
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20), FREE] = 512
    """For ``code``: address space of each process of a program, in MiB."""
    url: Annotated[Address | None, FREE] = None
    """For ``service``: where questions are sent (docs/howto_judges.md)."""
    api: Literal["dapo", "openai", "classify"] = "dapo"
    """For ``service``. ``dapo``: one request with a batch of questions. ``openai``: a chat completion for each.
    ``classify``: a batch of texts for a reward model, as vLLM's ``/classify`` takes it."""
    model: str | None = None
    """For ``service`` with ``openai`` or ``classify``: the model's name at the service."""
    template: str | None = None
    """For ``service`` with ``openai`` or ``classify``: the text that is sent, with ``{problem}``, ``{response}`` and
    ``{answer}`` in it."""
    parser: Hook | None = None
    """For ``service`` with ``openai``: your function that reads a reply, f(text) -> a number or a dict of numbers."""
    options: dict[str, Any] = Field(default_factory=dict)
    """For ``service`` with ``openai`` or ``classify``: more fields of a request, such as ``{max_tokens: 64}``."""
    batch: Annotated[int, Field(gt=0, le=4096), FREE] = 16
    """For ``service``: questions of one request; ``openai`` has one each."""
    concurrency: Annotated[Parallel, FREE] = 8
    """For ``service``: requests under way at a time."""
    retries: Annotated[int, Field(ge=0, le=100), FREE] = 3
    """For ``service``: how often a request is sent again after an error or nonsense. A service that is away
    (connections, timeouts, 429, 502, 503, 504) is asked again until ``outage_limit``."""
    outage_limit: Annotated[float, Field(ge=0, le=86_400), FREE] = 600.0
    """For ``service``: seconds to wait for a service that is away; then its questions are unscored."""
    api_key_variable: Annotated[Variable | None, FREE] = None
    """For ``service``: environment variable with the key, sent as a bearer token. It is written nowhere."""

    @property
    def seconds(self) -> float:
        """Return the time limit, that of the kind where none is given."""
        return self.timeout or {"code": 5.0, "service": 60.0}.get(self.kind, 10.0)


class SandboxSection(Section):
    kind: Annotated[Literal["local", "bubblewrap", "http"], FREE] = "local"
    """What runs programs of a model. ``local``: namespaces, Landlock and seccomp of this machine's kernel, without an
    installation. ``bubblewrap``: its command. ``http``: a service, see docs/howto_code_rewards.md."""
    require: Literal["full", "files", "none"] = "full"
    """What ``local`` has to hold, tried at the start. ``full``: files, network, other processes, disk and forks.
    ``files``: files and network. ``none``: nothing; programs of the model may then do what you may do."""
    url: Annotated[Address | None, FREE] = None
    """For ``http``: where programs are sent."""
    timeout: Annotated[Seconds, FREE] = 5.0
    """For the tool ``python``: seconds that a program may take. A reward of ``kind: code`` has its own."""
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20), FREE] = 512
    """For the tool ``python``: address space of each process of a program, in MiB."""
    api_key_variable: Annotated[Variable | None, FREE] = None
    """For ``http``: environment variable with the key, sent as a bearer token. It is written nowhere."""


class SftSource(Section, resume="fixed"):
    name: str | None = None
    """Name in metrics; default: the file's (without its suffix) or folder's name."""
    path: Annotated[str, ASK]
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
    train: Annotated[list[SftSource], FIXED] = Field(default_factory=list)
    """Examples to imitate; those that answer a held-out problem of ``data.validation`` are taken out. A prompt is
    written as ``data`` says of problems (chat template, instruction, examples), so that training by reward goes on with
    the same prompts; messages are taken as they are."""
    validation: Annotated[list[SftSource], FIXED] = Field(default_factory=list)
    """Held-out records: ``validation/loss`` is measured on them."""
    epochs: Annotated[Positive, FREE] = 1
    """Passes over ``train``, each in an order of its own unless ``data.shuffle`` is false."""
    steps: Annotated[Positive | None, FREE] = None
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
    max_tokens: Annotated[Tokens, FIXED] = 4096
    """Limit of a prompt with its response."""
    overlong: Annotated[Literal["drop", "refuse"], FIXED] = "drop"
    """Drop (and count) or refuse records over the limit. Never cut: a response without its end teaches not to end."""
    loss_on: Annotated[Literal["all", "last"], FIXED] = "all"
    """Of a conversation: every turn of the assistant's carries loss, or only the last one."""
    every: Annotated[Whole, FREE] = 50
    """Steps between two measurements of the held-out loss; 0: never. The first and last steps are measured too."""
    export: Annotated[bool, FREE] = True
    """Write the model to ``RUN/export`` at the end (of the best checkpoint where ``checkpoint.best`` is set):
    ``dapo train RECIPE model.path=RUN/export`` goes on from there."""
