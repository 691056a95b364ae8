"""The recipe: every setting of a run, with its meaning where it stands. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.schema_rollout import Rollout
from dapo.config.section import Hook, Many, Pair, Parallel, Positive, Seconds, Section, Tokens


class Run(Section):
    dir: str = "runs"
    """Folder that holds run folders."""
    name: str = "run"
    """The run's folder is ``dir/name``."""
    seed: int = 1
    """Every random number of the run derives from it."""
    threads: Parallel = 1
    """Threads for computing. More than one only on an otherwise idle machine."""
    reward_workers: Parallel | None = None
    """Processes for rewards; ``exact`` without a pattern needs none. None: one less than there are cores, at most 8."""
    reward_memory_mib: Annotated[int, Field(ge=256, le=1 << 30)] | None = 4096
    """Memory limit of each such process in MiB (RLIMIT_DATA: what it can write to); None: none."""
    if_exists: Literal["refuse", "backup"] = "refuse"
    """An existing run folder of that name: refuse to start, or move it aside to ``name.1`` (``name.2``...)."""


class Model(Section):
    path: str
    """Local folder or hub name of a Hugging Face causal language model, or ``builtin/signed-sum``: the quickstart's
    tiny model, made on the spot by a short supervised warm-up."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameter type while training."""
    device: str = "auto"
    """``auto`` (CUDA when present), ``cpu`` or ``cuda``."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author."""
    attention: Literal["auto", "packed", "padded"] = "auto"
    """``packed``: rows without padding and shared prompts. ``padded``: the model's own attention. ``auto``: packed
    when the probe at loading shows equal log-probabilities, padded otherwise."""
    fp32_head: bool = False
    """Compute logits in float32 when the model is bfloat16."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """``torch.set_float32_matmul_precision``. On AMD CPUs ``medium`` is twice as fast at the same accuracy."""


class DataSource(Section):
    name: str | None = None
    """Name in metrics; default: the file's (without its suffix), folder's or task's name."""
    path: str | None = None
    """JSONL, JSON, CSV, Parquet or Arrow file; a pattern such as ``data/*.jsonl``; a folder that ``save_to_disk`` wrote
    or that was downloaded from the hub; or ``hub:owner/name[:subset]`` (needs the extra ``data``)."""
    split: str = "train"
    """Split of a folder or hub data set."""
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
    """Problems to take; for a procedural task how many to make."""


class Data(Section):
    train: list[DataSource] = Field(min_length=1)
    """Where training problems come from."""
    validation: list[DataSource] = Field(default_factory=list)
    """Held-out sets. Problems that also stand in the training data are taken out of training, and counted."""
    prompt: Literal["auto", "chat", "template", "raw"] = "auto"
    """``chat``: the tokenizer's chat template. ``template``: ``prompt_template``. ``raw``: the problem text itself.
    ``auto``: template if given, else chat if the tokenizer has one, else raw."""
    prompt_template: str | None = None
    """Text with ``{problem}`` in it."""
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
    """``math``: math-verify; ``exact``: text equality after normalising; ``regex``; ``task``: the data source's own
    scorer (procedural tasks); ``function``: yours."""
    function: Hook | None = None
    """For ``function``: called as f(prompt, completion) and returns a number (or a dict of numbers)."""
    pattern: str | None = None
    """For ``regex``: 1.0 when it is found. For ``exact``: extracts the answer (group 1)."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Factor in the weighted sum that is the reward (``algorithm.reward_scaling`` must hold it). 0: recorded only."""
    sources: list[str] | None = None
    """Data sources it applies to; None: all."""
    timeout: Seconds = 10.0
    """Seconds for one response, after which it is unscored."""


class Clip(Section):
    low: Annotated[float, Field(gt=0)] = 0.2
    """eps_low."""
    high: Annotated[float, Field(gt=0)] = 0.28
    """eps_high: clip-higher when above ``low``."""
    dual: Annotated[float, Field(gt=1)] | None = None
    """Dual clip c: with a negative advantage the loss is at most -A c. Not in the paper; 10 in its scripts."""


class Loss(Section):
    kind: Literal["clip", "cispo"] | Hook = "clip"
    """``clip`` (DAPO, GRPO, GSPO), ``cispo``, or ``package.module:function``."""
    ratio: Literal["token", "sequence"] = "token"
    """``sequence``: GSPO's ratio, with clip bounds near 3e-4 / 4e-4 and reduction sequence_mean (preset ``gspo``)."""
    reduction: Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"] = (
        "token_mean"
    )
    """How token losses become one number; see docs/algorithm.md."""
    constant_length: Positive | None = None
    """For ``constant``: the fixed length; None: ``rollout.max_response_tokens``."""
    micro_batch_sequences: Positive | None = None
    """For ``micro_batch_mean``: sequences per micro-batch."""
    micro_batch_weighted: bool = True
    """For ``micro_batch_mean``: weight micro-batches by their number of sequences (verl <= 0.6) or not (bnpo)."""
    cispo_cap: Annotated[float, Field(gt=0)] = 5.0
    """For ``cispo``: absolute upper bound of the ratio."""
    cispo_floor: Annotated[float, Field(ge=0)] | None = None
    """For ``cispo``: lower bound of the ratio."""


class Advantage(Section):
    kind: Literal["group"] | Hook = "group"
    """``group`` (eq. 9 and its variants), or ``package.module:function``."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What is subtracted."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What is divided by; ``none`` is Dr. GRPO."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom of the standard deviation."""
    eps: Annotated[float, Field(ge=0)] = 1e-6
    """Added to the standard deviation."""


class DynamicSampling(Section):
    mode: Literal["off", "filter", "mask", "replace"] = "filter"
    """``filter``: rejected groups are replaced by new ones until P are kept. ``mask``: zero-variance groups are dropped
    without refill (OLMo, ScaleRL). ``replace``: rejected groups are replaced by copies of kept ones (SkyRL). ``off``:
    every group with two voters trains."""
    min_replace_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """For ``replace``: copies are made once more than this share of P is kept; until then prompts are added."""
    metric: str = "accuracy"
    """Score the keep decision reads. Accuracy: 0 < correct < G. Any other: max - min > tolerance."""
    keep: Hook | None = None
    """Your own keep rule, ``package.module:function``."""
    correct_at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Accuracy from which a response is correct."""
    tolerance: Annotated[float, Field(ge=0)] = 1e-6
    """For metrics other than accuracy."""
    band: Pair | None = None
    """Keep only groups whose mean metric lies in [low, high]."""
    oversample: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Groups dispatched per missing group, in rounds: at the start of a step, and then only when nothing is under way.
    None: 1 / measured acceptance rate, and each rejected group is replaced at once."""
    lookahead: Annotated[float, Field(ge=0, le=100)] = 0.5
    """Work for the next step that is started early, in multiples of what a step needs, so that slots do not idle while
    the last responses end. Only with ``surplus`` and ``unfinished`` at ``carry``. Fewer decode steps, older tokens."""
    max_groups: Annotated[float, Field(ge=1, le=1e6)] | None = 20.0
    """Cap per step: groups dispatched, in multiples of P. None: no cap (a warning says so)."""
    max_tokens: Positive | None = None
    """Cap per step: from so many generated tokens on nothing more is dispatched; what is under way is finished."""
    on_cap: Literal["stop", "train_partial", "fill"] = "stop"
    """At a cap or the end of the data: ``stop`` (state saved, the error names the cause), ``train_partial`` (smaller
    batch), ``fill`` (top up with rejected groups; their tokens count in N)."""
    surplus: Literal["carry", "discard"] = "carry"
    """Kept groups beyond P."""
    unfinished: Literal["carry", "drain", "discard"] = "carry"
    """Responses still decoding when P groups are kept: ``carry`` (continued next step under the new weights, each token
    with its own version), ``drain`` (waited for) or ``discard``."""
    max_age: Annotated[int, Field(ge=0)] = 4
    """Oldest a trained group may be: training step minus the step that dispatched it. 0: nothing is carried over."""
    on_max_age: Literal["wait", "drop"] = "wait"
    """At the age limit: ``wait`` for what is held (drops nothing; at most P x (max_age + 1) groups are held at once),
    or ``drop`` it."""
    retire_at: Annotated[float, Field(gt=0, le=1)] | None = None
    """Retire a prompt when the pass rate of its last visit reaches this; None: never."""
    review_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Probability that a retired prompt is taken all the same when its turn comes."""
    greso: bool = False
    """Skip prompts whose groups had no variance, more likely the longer they had none (GRESO, arXiv 2506.02177)."""
    greso_target: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """For ``greso``: share of zero-variance groups aimed at, one third of it all correct, two thirds all wrong."""
    verdict_lag: Annotated[int, Field(ge=0)] | None = None
    """Engine steps after a response ended at which its score takes effect; None: 0 for verifiers that run inline, 16
    for those in worker processes."""


class OverlongPunishment(Section):
    enabled: bool = True
    """Soft overlong punishment (eq. 13), added after the keep decision."""
    max_length: Positive | None = None
    """Lmax; None: ``rollout.max_response_tokens``."""
    cache_length: Positive | None = None
    """Lcache: the penalty grows from Lmax - Lcache; None: Lmax / 5."""
    factor: Annotated[float, Field(ge=0)] = 1.0
    """Multiplies the penalty."""


class RewardScaling(Section):
    enabled: bool = True
    """Clamp the weighted sum of the rewards to source, then map it linearly to target."""
    source_min: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """Smallest weighted sum; what lies below is clamped to it (``reward/clamped``)."""
    source_max: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Largest weighted sum, such as 1.2 for weights 1 and 0.2; what lies above is clamped to it."""
    target_min: Annotated[float, Field(ge=-1e6, le=1e6)] = -1.0
    """Lower end of the scaled reward."""
    target_max: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Upper end of the scaled reward."""


class Correction(Section):
    kind: Literal[
        "auto", "none", "report", "untruncated", "truncate", "truncate_sequence", "mask_token", "mask_sequence"
    ] = "auto"
    """For ``old_logprobs: learner``; docs/algorithm.md has the formulas. ``truncate`` is TIS, ``mask_token`` IcePop.
    ``auto``: none where the ratio runs against the sampler's numbers, truncate where it runs against the learner's."""
    cap: Annotated[float, Field(gt=0)] = 2.0
    """C of TIS, and upper bound of both masks: of a token's ratio, or of a sequence's geometric mean."""
    floor: Annotated[float, Field(ge=0)] = 0.5
    """Lower bound of both masks."""
    token_cap: Annotated[float, Field(gt=0)] | None = 2.0
    """For ``mask_sequence``: upper bound of a token's ratio in a sequence that passes; None: untruncated."""
    sequence_cap: Annotated[float, Field(gt=0)] = 5.0
    """For ``truncate_sequence``: upper bound of the product of a sequence's ratios."""


class Algorithm(Section):
    clip: Clip = Clip()
    """Bounds of the probability ratio."""
    loss: Loss = Loss()
    """The surrogate and its reduction."""
    advantage: Advantage = Advantage()
    """Group-relative advantage."""
    dynamic_sampling: DynamicSampling = DynamicSampling()
    """Which groups train, and what happens until enough do."""
    overlong_punishment: OverlongPunishment = OverlongPunishment()
    """Length penalty."""
    overlong_filtering: bool = True
    """Truncated responses carry no loss and do not vote."""
    truncated_vote: bool | None = None
    """Truncated responses count in mean, std and keep decision; None: unless ``overlong_filtering``."""
    reward_scaling: RewardScaling = RewardScaling()
    """DAPO rewards are +1 / -1."""
    shaping: Hook | None = None
    """Your own reward shaping instead of scaling and length penalty, ``package.module:function``."""
    old_logprobs: Literal["auto", "sampler", "learner"] = "auto"
    """What the ratio runs against. ``auto``: sampler for the embedded engine in float32, learner for any other engine
    and in bfloat16, where engine and learner round differently."""
    correction: Correction = Correction()
    """Sampler-learner importance correction."""
    kl_coefficient: Literal[0] = 0
    """KL against a reference model: not available yet (DAPO has none)."""


class Learner(Section):
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate."""
    betas: Pair = (0.9, 0.999)
    """AdamW."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; linear and cosine fall to ``final_ratio`` at ``trainer.steps``."""
    schedule_unit: Literal["rollout", "optimizer"] = "rollout"
    """What the schedule counts."""
    warmup: Annotated[int, Field(ge=0)] = 10
    """Steps (of ``schedule_unit``) of linear warm-up."""
    final_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak at the end of linear and cosine."""
    minibatch_prompts: Positive | None = None
    """Groups per optimiser step; None: all P (one optimiser step)."""
    microbatch_tokens: Positive = 16384
    """Tokens (prompts and responses) in one forward pass. Memory only: it cannot change the gradient."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradient clipping."""
    max_skipped_steps: Annotated[int, Field(ge=0)] = 5
    """Optimiser steps in a row that may be skipped for non-finite gradients before the run stops."""


class Validation(Section):
    every: Annotated[int, Field(ge=0)] = 10
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


class Trainer(Section):
    steps: Annotated[int, Field(ge=0)] = 100
    """Training steps (one rollout batch each)."""
    sync_check_tolerance: Annotated[float, Field(gt=0)] | None = None
    """Largest mean |sampler - learner| log-probability, nats, accepted right after a publish (engines with own
    weights). None: three times the healthy gap of this engine and precision, between 1e-5 and 0.05."""


class Checkpoint(Section):
    every: Annotated[int, Field(ge=0)] = 10
    """Training steps between checkpoints; 0: only at the end."""
    keep: Positive = 2
    """Newest checkpoints to keep."""


class Logging(Section):
    rollouts: Literal["all", "kept", "sample", "none"] = "all"
    """Which groups go to ``rollouts/*.parquet``."""
    rollouts_sample: Positive = 8
    """For ``sample``: groups per step."""
    tokens: Annotated[int, Field(ge=0)] = 3
    """Trained groups per step that are recorded token by token in ``tokens/*.parquet``, beside one that did not train,
    all from those that ``rollouts`` records; 0: none."""
    spans: bool = True
    """Write ``spans.jsonl``: when each phase of a step began and ended."""
    console: Literal["auto", "live", "plain", "quiet"] = "auto"
    """``auto``: live in a terminal, plain lines elsewhere."""
    samples_every: Annotated[int, Field(ge=0)] = 10
    """Steps between samples shown on the console; 0: never."""
    tensorboard: bool = False
    """Write TensorBoard events into the run folder (extra ``track``)."""
    wandb: str | None = None
    """Weights & Biases project (extra ``track``)."""


class Recipe(Section):
    preset: Literal["dapo", "dapo-paper", "dapo-verl", "grpo", "dr-grpo", "gspo", "scalerl-loss"] = "dapo"
    """Named starting point; what the file sets lies on top."""
    run: Run = Run()
    """Where the run lives."""
    model: Model
    """What is trained."""
    data: Data
    """What it is trained on."""
    rewards: list[Reward] = Field(default_factory=lambda: [Reward()], min_length=1)
    """How responses are scored."""
    rollout: Rollout = Rollout()
    """How responses are made."""
    algorithm: Algorithm = Algorithm()
    """DAPO and its relatives."""
    learner: Learner = Learner()
    """The optimiser."""
    validation: Validation = Validation()
    """Evaluation during training."""
    trainer: Trainer = Trainer()
    """The loop."""
    checkpoint: Checkpoint = Checkpoint()
    """Saving."""
    logging: Logging = Logging()
    """What is recorded."""
