"""Data of a page: the one contract between the readers of run folders, the pages and the server.

Everything is JSON. ``dapo report`` puts a ``PageData`` into the page; ``dapo view`` serves the same objects, so a page
does not know which of the two made it. A number that is not finite or was not measured is None. Text comes from models
and data and is untrusted: it is never markup. Times are seconds since 1970, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from dapo.metrics.charts import Chart
from dapo.observe.sentences import State

Tone = Literal["good", "bad", "warn", ""]


class Status(TypedDict):
    """How a run stands, or how it ended."""

    state: State
    title: str  # a few words: "finished", "could not fill its batch"
    said: str  # one to three sentences: what happened and what to do next
    step: int  # last step with a line in metrics.jsonl
    steps: int  # that the recipe wants
    started: float | None
    updated: float | None  # last update, or the end
    seconds: float | None  # in steps and evaluations, without what lies between two sessions of a resumed run
    log: list[str]  # last lines of log.txt where the run did not end well


class Tile(TypedDict):
    """One number of the outcome."""

    label: str
    value: str  # formatted: "41.4 % -> 92.6 %"
    detail: str  # small print: the interval, the step
    key: str  # of the glossary; "" for none
    tone: Tone


class Advice(TypedDict):
    """A warning found by a rule."""

    rule: str  # such as "entropy_collapse"
    severity: Literal["bad", "warn", "note"]
    title: str
    said: str  # with the numbers that made it speak
    move: str  # what to do, with the setting's name
    first_step: int
    last_step: int
    keys: list[str]  # metrics to look at


class Thinned(TypedDict):
    """Counts of data left out so that the page stays small. ``kept == of``: nothing was."""

    kept: int
    of: int
    how: str  # one sentence


class Curves(TypedDict):
    """Metrics over steps. Where thinned, a point is the mean of a stretch of steps and ``low``/``high`` its ends."""

    steps: list[int]
    values: dict[str, list[float | None]]  # by metric key; as long as steps
    low: dict[str, list[float | None]]  # {} where nothing was thinned
    high: dict[str, list[float | None]]
    thinned: Thinned


class Band(TypedDict):
    """The same metric over several seeds of one recipe."""

    steps: list[int]
    mean: list[float | None]
    low: list[float | None]  # least and greatest seed
    high: list[float | None]


class Tokens(TypedDict):
    """A response token by token. Lists are as long as the response, or None where nothing was recorded."""

    pieces: list[str]  # text of each token; together the response, special tokens included
    sampler: list[float | None]  # log-probability when it was sampled, nats
    learner: list[float | None] | None  # log-probability under the learner in its update
    ratio: list[float | None] | None  # r = exp(learner - old)
    entropy: list[float | None] | None  # nats
    clip: list[int] | None  # 0 none, 1 low, 2 high, 3 dual
    versions: list[int]  # of the weights that made each token
    given: list[int] | None  # places of tokens that the program put in, a reply for instance; they have no numbers


class TurnView(TypedDict):
    """One turn of an episode."""

    who: str  # assistant, or the role of a reply
    text: str
    reward: float | None  # of the model's turn, by the environment
    calls: list[str]  # names of tools
    facts: dict[str, float | None]  # further numbers, by the environment


class ResponseView(TypedDict):
    """One response of a group."""

    sample: int
    text: str
    length: int
    finish: str  # stop | length | failed | aborted
    accuracy: float | None
    rewards: dict[str, float | None]  # by name
    reward: float | None  # weighted sum, before scaling and penalty
    penalty: float | None
    shaped: float | None
    advantage: float | None
    voter: bool | None
    unscored: str | None  # why
    logprob: float | None  # mean over the tokens that the policy sampled, of the sampler
    turns: list[TurnView] | None  # of an episode
    ended: str | None  # of an episode: done | turns | tokens | reply | error
    tokens: Tokens | None


class Visit(TypedDict):
    """Result of one step for a prompt."""

    step: int
    group: int
    verdict: str | None
    disposition: str | None
    correct: int
    scored: int
    length_mean: float


class GroupView(Visit):
    """A group, its responses side by side. ``responses`` is [] in lists, whole where one group is asked for."""

    born: int
    prompt_id: str
    source: str
    problem: str  # as the data has it; the prompt where that is not known
    prompt: str  # as the model saw it, template and all
    answer: str
    why: str  # the reason it was dropped or kept, in words
    responses: list[ResponseView]
    size: int
    truncated: int
    has_tokens: bool


class PromptView(TypedDict):
    """A prompt's history over steps."""

    id: str
    source: str
    prompt: str
    answer: str
    visits: list[Visit]  # in order of steps


class HeldOut(TypedDict):
    """A validation problem before and after."""

    set: str
    prompt_id: str
    problem: str  # as the data has it; the prompt where that is not known
    prompt: str
    answer: str
    greedy: bool
    answers: list[tuple[int, str, float | None, int, bool]]  # step, response, accuracy, length, truncated


class RolloutsView(TypedDict):
    """Rollouts that the browser shows: in a report those that fit, in the view the newest step, with the rest on
    demand."""

    steps: list[int]  # steps whose groups can be had
    groups: list[GroupView]
    prompts: list[PromptView]
    held_out: list[HeldOut]
    thinned: Thinned


class TimeView(TypedDict):
    """Time of a run by phase."""

    phases: list[tuple[str, float, float, float]]  # busy seconds: in all, median of a step, longest step
    busy: list[tuple[str, float]]  # who works beside the driver, and the share of the run's time
    ages: list[tuple[int, float]]  # of the trained tokens, in versions of the weights: the share that has each
    note: str  # on what was not recorded


class RecipeView(TypedDict):
    """The recipe, and how it differs from its preset."""

    preset: str
    made_of: list[tuple[str, str]]  # path and value: model and data, for which no preset has a value
    resolved: str  # YAML
    difference: list[tuple[str, str, str]]  # path, preset's value, the run's


class MachineView(TypedDict):
    """On what a run was computed, from one start or resume on."""

    step: int  # after which it went on; 0 at the start
    time: float | None
    facts: list[tuple[str, str]]  # what, and its value: ("processor", "AMD EPYC, 2 cores")


class ProcessView(TypedDict):
    """A process of a run that has several, as it was at the last step."""

    name: str
    role: str  # driver | learner | engine
    machine: str
    process: int | None
    alive: bool
    restarts: int
    last_turn: float | None  # its end
    turn_seconds: float | None
    memory_mib: float | None


class RunView(TypedDict):
    """One run."""

    name: str  # of its folder
    label: str  # unique within the bundle
    folder: str  # as the reader named it
    supervised: bool  # it imitates: it has losses, and neither responses nor rewards
    family: str  # runs whose recipes differ in seeds and name alone share one
    seed: int | None
    status: Status
    sentences: list[str]  # the outcome in words
    tiles: list[Tile]
    advice: list[Advice]
    curves: Curves
    recipe: RecipeView | None
    machines: list[MachineView]  # a run that was resumed elsewhere has several; [] without machine.jsonl
    processes: list[ProcessView]  # [] of a run with one
    time: TimeView
    rollouts: RolloutsView
    notes: list[str]  # what could not be read, and why


class FamilyView(TypedDict):
    """The seeds of one recipe, among several that are compared."""

    family: str  # as in RunView, or the label of a run that stands alone
    name: str  # what its runs' names begin with, and the settings that tell it from the others; "" for the only one
    runs: list[str]  # labels
    said: str  # its result, and its difference from the first family; "" where nothing can be compared
    tone: Tone  # good and bad: better or worse than the first, as is shown; of single runs by more than chance


class Definition(TypedDict):
    """A line of the glossary."""

    unit: str
    meaning: str
    better: Literal["higher", "lower", ""]


class PageData(TypedDict):
    """Everything a page shows at first."""

    version: str  # of dapo
    made: float
    live: bool  # the server made it: more can be asked for, and it changes
    runs: list[RunView]
    families: list[FamilyView]  # [] for one run
    bands: dict[str, dict[str, Band]]  # family with two runs and more -> metric key -> band
    charts: list[Chart]  # of the metrics that a run has, in the order of the page
    glossary: dict[str, Definition]  # of every key in curves and tiles


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in the list of ``dapo view``."""

    name: str  # path below the served folder; names the run in addresses
    state: State
    title: str
    step: int = 0
    steps: int = 0
    updated: float | None = None
    started: float | None = None
    accuracy: Sequence[float | None] = ()  # held-out accuracy, for a small curve
    reward: Sequence[float | None] = ()  # training accuracy, thinned to some fifty points
    preset: str = ""
    model: str = ""
    advice: int = 0  # warnings of severity "bad" and "warn"
    bad: int = 0  # of them "bad"
    accuracy_steps: Sequence[int] = ()  # of the points of ``accuracy``
    reward_steps: Sequence[int] = ()  # of the points of ``reward``
