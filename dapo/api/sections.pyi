"""Sections of a recipe as typed dictionaries: made by tests/helpers/typed_settings.py, not by hand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from dapo.algorithms.objective import Objective

Function: TypeAlias = str | Callable[..., Any] | Objective
Text: TypeAlias = str | PathLike[str]

class LoadedModel(Protocol):
    def parameters(self, recurse: bool = True) -> Iterator[Any]: ...

class RunSettings(TypedDict, total=False):
    dir: Text
    name: str
    stage: Literal["train", "sft"]
    seed: int
    threads: int
    reward_workers: int | None
    reward_memory_mib: int | None
    if_exists: Literal["refuse", "backup"]

class LoraSettings(TypedDict, total=False):
    rank: int | None
    lora_alpha: float | None
    target_modules: Literal["all-linear"] | Sequence[str]
    use_rslora: bool
    modules_to_save: Sequence[str]
    merge: bool | None

class ModelSettings(TypedDict, total=False):
    path: Text
    builtin_seed: int
    dtype: Literal["float32", "bfloat16"]
    device: str
    trust_remote_code: bool
    attention: Literal["auto", "packed", "padded"]
    fp32_head: bool
    activation_checkpointing: Literal["none", "full", "selective"]
    lora: LoraSettings
    matmul_precision: Literal["highest", "high", "medium"]

class TrainSourceSettings(TypedDict, total=False):
    name: str | None
    path: Text | None
    split: str
    format: Literal["auto", "plain", "gsm8k", "dapo_math", "aime", "amc", "math", "svamp", "multiarith"]
    fields: Mapping[str, str]
    task: str | None
    options: Mapping[str, Any]
    seed: int
    size: int | None
    weight: float | None
    levels: Sequence[Mapping[str, Any]]

class DataSourceSettings(TypedDict, total=False):
    name: str | None
    path: Text | None
    split: str
    format: Literal["auto", "plain", "gsm8k", "dapo_math", "aime", "amc", "math", "svamp", "multiarith"]
    fields: Mapping[str, str]
    task: str | None
    options: Mapping[str, Any]
    seed: int
    size: int | None

class CurriculumSettings(TypedDict, total=False):
    raise_at: float
    lower_at: float
    window: int

class ShotSettings(TypedDict, total=False):
    problem: str
    response: str

class ThinkingSettings(TypedDict, total=False):
    enabled: bool
    open: str
    close: str
    budget: int | None
    end: str | None

class DataSettings(TypedDict, total=False):
    train: Sequence[TrainSourceSettings]
    validation: Sequence[DataSourceSettings]
    stream: Function | None
    curriculum: CurriculumSettings
    prompt: Literal["auto", "chat", "template", "raw"]
    prompt_template: str | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tools_field: str | None
    few_shot: Sequence[ShotSettings]
    response_prefix: str | None
    thinking: ThinkingSettings
    system_prompt: str | None
    instruction: str | None
    max_prompt_tokens: int
    overlong_prompts: Literal["drop", "refuse"]
    shuffle: bool
    epochs: int | None

class RewardSettings(TypedDict, total=False):
    name: str
    kind: Literal["math", "exact", "last_number", "regex", "task", "function", "code", "service", "environment"]
    function: Function | None
    per: Literal["response", "group"]
    pattern: str | None
    tolerance: float
    reads: Literal["answer", "response", "turn", "episode"] | None
    weight: float
    sources: Sequence[str] | None
    timeout: float | None
    tests: str
    entry_point: str | None
    partial: bool
    memory_mib: int
    url: str | None
    api: Literal["dapo", "openai", "classify"]
    model: str | None
    template: str | None
    parser: Function | None
    options: Mapping[str, Any]
    batch: int
    concurrency: int
    retries: int
    outage_limit: float
    api_key_variable: str | None

class SandboxSettings(TypedDict, total=False):
    kind: Literal["local", "bubblewrap", "http"]
    require: Literal["full", "files", "none"]
    url: str | None
    timeout: float
    memory_mib: int
    api_key_variable: str | None

class EmbeddedSettings(TypedDict, total=False):
    cuda_graphs: bool | None
    recompute_cache: bool

class VllmSettings(TypedDict, total=False):
    dtype: Literal["float32", "bfloat16", "float16"] | None
    gpu_memory_utilization: float
    kv_cache_mib: int | None
    kv_cache_dtype: Literal["auto", "fp8"]
    tensor_parallel_size: int
    enforce_eager: bool | None
    sleep: bool
    engine_args: Mapping[str, Any]

class ServerSettings(TypedDict, total=False):
    url: str | Sequence[str] | None
    weights_dir: str | None
    patience: float
    api_key_variable: str | None

class RolloutSettings(TypedDict, total=False):
    engine: Literal["embedded", "generate", "vllm", "vllm_server"] | Function
    prompts_per_step: int
    group_size: int
    max_response_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: Sequence[int] | None
    stop: Sequence[str]
    include_stop_str_in_output: bool
    slots: int | Sequence[int] | None
    engines: int | Literal["auto"]
    turn_steps: int
    lockstep: bool | None
    max_staleness: int
    overlap_turns: int | None
    weight_transfer: Literal["auto", "folder", "broadcast", "ipc", "object_store"]
    embedded: EmbeddedSettings
    vllm: VllmSettings
    server: ServerSettings

class EnvironmentSettings(TypedDict, total=False):
    kind: Literal["tools", "agent", "verifiers", "openenv"] | Function | None
    id: str | None
    args: Mapping[str, Any]
    run: Function | Sequence[str] | None
    other_sampling: Literal["refuse", "ignore"]
    tools: Sequence[Literal["python"] | Function]
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "python", "none"] | Function
    max_turns: int
    turn_limit: Literal["scored", "truncated"]
    max_turn_tokens: int | None
    long_turn: Literal["replied", "truncated"]
    max_reply_tokens: int
    long_reply: Literal["cut", "error"]
    on_error: Literal["unscored", "end", "tell"]
    timeout: float
    workers: int | None
    memory_mib: int | None
    rows: Literal["append", "turns"]
    lag: int

class ClipSettings(TypedDict, total=False):
    low: float
    high: float
    dual: float | None

class TokenMeanSettings(TypedDict, total=False):
    kind: Literal["token_mean"]

class PromptMeanSettings(TypedDict, total=False):
    kind: Literal["prompt_mean"]

class SequenceMeanSettings(TypedDict, total=False):
    kind: Literal["sequence_mean"]

class SequenceSumSettings(TypedDict, total=False):
    kind: Literal["sequence_sum"]

class ConstantSettings(TypedDict, total=False):
    kind: Literal["constant"]
    length: int | None

class MicroBatchMeanSettings(TypedDict, total=False):
    kind: Literal["micro_batch_mean"]
    sequences: int
    weighted: bool

class ClippedLossSettings(TypedDict, total=False):
    kind: Literal["clip"]
    reduction: (
        TokenMeanSettings
        | PromptMeanSettings
        | SequenceMeanSettings
        | SequenceSumSettings
        | ConstantSettings
        | MicroBatchMeanSettings
        | Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]
    )
    ratio: Literal["token", "sequence"]

class CispoSettings(TypedDict, total=False):
    kind: Literal["cispo"]
    reduction: (
        TokenMeanSettings
        | PromptMeanSettings
        | SequenceMeanSettings
        | SequenceSumSettings
        | ConstantSettings
        | MicroBatchMeanSettings
        | Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]
    )
    cap: float
    floor: float | None

class SapoSettings(TypedDict, total=False):
    kind: Literal["sapo"]
    reduction: (
        TokenMeanSettings
        | PromptMeanSettings
        | SequenceMeanSettings
        | SequenceSumSettings
        | ConstantSettings
        | MicroBatchMeanSettings
        | Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]
    )
    positive: float
    negative: float

class ClipCovSettings(TypedDict, total=False):
    kind: Literal["clip_cov"]
    reduction: (
        TokenMeanSettings
        | PromptMeanSettings
        | SequenceMeanSettings
        | SequenceSumSettings
        | ConstantSettings
        | MicroBatchMeanSettings
        | Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]
    )
    share: float
    above: float
    below: float

class KlCovSettings(TypedDict, total=False):
    kind: Literal["kl_cov"]
    reduction: (
        TokenMeanSettings
        | PromptMeanSettings
        | SequenceMeanSettings
        | SequenceSumSettings
        | ConstantSettings
        | MicroBatchMeanSettings
        | Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]
    )
    share: float
    coefficient: float

class OwnLossSettings(TypedDict, total=False):
    kind: Function
    reduction: (
        TokenMeanSettings
        | PromptMeanSettings
        | SequenceMeanSettings
        | SequenceSumSettings
        | ConstantSettings
        | MicroBatchMeanSettings
        | Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]
    )
    options: Mapping[str, Any]

class GroupAdvantageSettings(TypedDict, total=False):
    kind: Literal["group"]
    ddof: Literal[0, 1]
    eps: float
    baseline: Literal["mean", "leave_one_out", "batch_mean", "batch_leave_one_out", "none"]
    scale: Literal["group_std", "batch_std", "none"]

class GdpoSettings(TypedDict, total=False):
    kind: Literal["gdpo"]
    ddof: Literal[0, 1]
    eps: float

class OwnAdvantageSettings(TypedDict, total=False):
    kind: Function
    options: Mapping[str, Any]

class AdvantageNormSettings(TypedDict, total=False):
    mean: Literal["batch", "group", "none"]
    std: Literal["batch", "group", "none"]
    leave_one_out: bool
    ddof: Literal[0, 1]
    eps: float

class AdvantageClipSettings(TypedDict, total=False):
    low: float | None
    high: float | None

class ReplaceSettings(TypedDict, total=False):
    min_ratio: float

class CapSettings(TypedDict, total=False):
    groups: float | None
    tokens: int | None
    then: Literal["stop", "train_partial", "fill"]

class RetireSettings(TypedDict, total=False):
    at: float
    review: float

class GresoSettings(TypedDict, total=False):
    target: float

class EasySettings(TypedDict, total=False):
    at: float
    share: float

class HardSettings(TypedDict, total=False):
    at: float
    share: float

class SelectionSettings(TypedDict, total=False):
    retire: RetireSettings | None
    greso: GresoSettings | None
    easy: EasySettings | None
    hard: HardSettings | None

class DynamicSamplingSettings(TypedDict, total=False):
    mode: Literal["off", "filter", "mask", "replace"]
    metric: str
    mixed: Literal["auto", "correct", "spread"]
    keep: Function | None
    correct_at: float
    tolerance: float
    band: Sequence[float] | None
    oversample: float | None
    lookahead: float
    surplus: Literal["carry", "discard"]
    unfinished: Literal["carry", "drain", "discard"]
    max_age: int
    on_max_age: Literal["wait", "drop"]
    verdict_lag: int | None
    replace: ReplaceSettings
    cap: CapSettings
    selection: SelectionSettings

class OverlongPunishmentSettings(TypedDict, total=False):
    enabled: bool
    max_length: int | None
    cache_length: int | None
    factor: float

class RewardScalingSettings(TypedDict, total=False):
    enabled: bool
    source_min: float
    source_max: float
    target_min: float
    target_max: float

class AutoSettings(TypedDict, total=False):
    kind: Literal["auto"]
    cap: float

class NoCorrectionSettings(TypedDict, total=False):
    kind: Literal["none"]

class ReportOnlySettings(TypedDict, total=False):
    kind: Literal["report"]

class UntruncatedSettings(TypedDict, total=False):
    kind: Literal["untruncated"]

class TruncateSettings(TypedDict, total=False):
    kind: Literal["truncate"]
    cap: float

class TruncateSequenceSettings(TypedDict, total=False):
    kind: Literal["truncate_sequence"]
    sequence_cap: float

class MaskTokenSettings(TypedDict, total=False):
    kind: Literal["mask_token"]
    cap: float
    floor: float

class MaskSequenceSettings(TypedDict, total=False):
    kind: Literal["mask_sequence"]
    cap: float
    floor: float
    token_cap: float | None

class MaskOffPolicySettings(TypedDict, total=False):
    kind: Literal["mask_off_policy"]
    threshold: float

class ReferenceSettings(TypedDict, total=False):
    refresh_every: int | None
    offload: bool

class TeacherSettings(TypedDict, total=False):
    path: Text | None
    by_source: Mapping[str, str]
    term: Literal["advantage", "loss"]
    coefficient: float
    estimator: Literal["k1", "k2", "k3"]
    offload: bool
    patience: float
    api_key_variable: str | None

class EntropyControlSettings(TypedDict, total=False):
    target: float | None
    delta: float
    min: float
    max: float

class AlgorithmSettings(TypedDict, total=False):
    clip: ClipSettings
    loss: (
        ClippedLossSettings
        | CispoSettings
        | SapoSettings
        | ClipCovSettings
        | KlCovSettings
        | OwnLossSettings
        | Literal["clip", "cispo", "sapo", "clip_cov", "kl_cov"]
        | Function
    )
    advantage: GroupAdvantageSettings | GdpoSettings | OwnAdvantageSettings | Literal["group", "gdpo"] | Function
    advantage_norm: AdvantageNormSettings | None
    advantage_clip: AdvantageClipSettings
    dynamic_sampling: DynamicSamplingSettings
    overlong_punishment: OverlongPunishmentSettings
    overlong_filtering: bool
    truncated_vote: bool | None
    truncated_factor: float
    reward_scaling: RewardScalingSettings
    shaping: Function | None
    old_logprobs: Literal["auto", "sampler", "learner", "interpolated"]
    correction: (
        AutoSettings
        | NoCorrectionSettings
        | ReportOnlySettings
        | UntruncatedSettings
        | TruncateSettings
        | TruncateSequenceSettings
        | MaskTokenSettings
        | MaskSequenceSettings
        | MaskOffPolicySettings
        | Literal[
            "auto",
            "none",
            "report",
            "untruncated",
            "truncate",
            "truncate_sequence",
            "mask_token",
            "mask_sequence",
            "mask_off_policy",
        ]
    )
    kl_coefficient: float
    kl_estimator: Literal["k1", "k2", "k3"]
    kl_in_reward: bool
    reference: ReferenceSettings
    teacher: TeacherSettings
    entropy_coefficient: float
    entropy_control: EntropyControlSettings

class LearnerSettings(TypedDict, total=False):
    optimizer: Literal["adamw", "adamw_8bit"]
    learning_rate: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    schedule: Literal["constant", "linear", "cosine"]
    schedule_unit: Literal["rollout", "optimizer"]
    warmup: int
    final_ratio: float
    minibatch_prompts: int | None
    epochs_per_rollout: int
    microbatch_tokens: int
    max_grad_norm: float | None
    deterministic: bool
    max_skipped_steps: int
    ranks: int | Literal["auto"]
    replicas: int
    context_parallel: int
    reshard_after_forward: Literal["auto", "true", "false"]
    router_replay: Literal["off", "learner", "sampler"]
    cpu_offload: bool
    timeout: float

class ValidationSettings(TypedDict, total=False):
    every: int
    samples: int
    greedy: bool
    temperature: float
    top_p: float
    max_response_tokens: int | None
    limit: int | None

class EarlyStopSettings(TypedDict, total=False):
    metric: str | None
    best_is: Literal["auto", "highest", "lowest"]
    patience: int
    min_change: float

class TrainerSettings(TypedDict, total=False):
    steps: int
    max_hours: float | None
    early_stop: EarlyStopSettings
    sync_check_tolerance: float | None

class SftSourceSettings(TypedDict, total=False):
    name: str | None
    path: Text
    split: str
    fields: Mapping[str, str]
    size: int | None

class SftSettings(TypedDict, total=False):
    train: Sequence[SftSourceSettings]
    validation: Sequence[SftSourceSettings]
    epochs: int
    steps: int | None
    batch_size: int
    learning_rate: float
    schedule: Literal["constant", "linear", "cosine"]
    warmup: int
    final_ratio: float
    max_tokens: int
    overlong: Literal["drop", "refuse"]
    loss_on: Literal["all", "last"]
    every: int
    export: bool

class CheckpointSettings(TypedDict, total=False):
    every: int
    keep: int
    seconds: float | None
    best: str | None
    best_is: Literal["auto", "highest", "lowest"]
    dir: Text | None
    asynchronous: bool

class TrackerSettings(TypedDict, total=False):
    kind: Literal["tensorboard", "wandb", "mlflow", "trackio"] | Function
    project: str | None

class LoggingSettings(TypedDict, total=False):
    rollouts: Literal["all", "kept", "none"] | int
    tokens: int
    spans: bool
    console: Literal["auto", "live", "plain", "quiet"]
    samples_every: int
    trackers: Sequence[TrackerSettings | Function]
    also: Literal["nemo-rl"] | None

class LaunchSettings(TypedDict, total=False):
    backend: Literal["local", "ray"]

class ClusterSettings(TypedDict, total=False):
    address: str | None
    nodes: int | None
    gpus_per_node: int | None
    colocate: bool | None
    cpus_per_host: float | None
    start_timeout: float
    engine_timeout: float
    max_engine_restarts: int
    max_learner_restarts: int

class SlurmSettings(TypedDict, total=False):
    nodes: int
    options: Mapping[str, str | int | bool]
    setup: Sequence[str]
    container: str | None
    signal_seconds: int
    requeue: bool

class CommonSettings(TypedDict, total=False):
    preset: Literal[
        "dapo",
        "dapo-paper",
        "dapo-verl",
        "grpo",
        "grpo-paper",
        "grpo-trl",
        "grpo-verl",
        "dr-grpo",
        "gspo",
        "cispo",
        "sapo",
        "clip-cov",
        "kl-cov",
        "gdpo",
        "scalerl-loss",
        "distillation",
    ]
    model: ModelSettings | Text | LoadedModel
    data: DataSettings
    sandbox: SandboxSettings
    rollout: RolloutSettings
    algorithm: AlgorithmSettings
    learner: LearnerSettings
    trainer: TrainerSettings
    sft: SftSettings
    checkpoint: CheckpointSettings
    logging: LoggingSettings
    launch: LaunchSettings
    cluster: ClusterSettings
    slurm: SlurmSettings

class Settings(CommonSettings, total=False):
    run: RunSettings

class ResumeSettings(CommonSettings, total=False):
    validation: ValidationSettings
