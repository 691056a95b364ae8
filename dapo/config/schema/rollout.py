"""The recipe's section ``rollout``: how responses are made, and by which engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.section import ASK, FIXED, FREE, Hook, Many, Parallel, Positive, Section, Tokens, Whole


class Embedded(Section):
    cuda_graphs: bool | None = None
    """Decode steps as CUDA graphs. null: on a GPU, for models of the kinds Llama, Mistral, Qwen2 and Qwen3; what cannot
    be recorded runs as it is, with a warning. true: an error instead. false: never. A CPU has none."""
    recompute_cache: bool = True
    """With ``rollout.max_staleness``: when weights change, compute the keys and values of running responses with the
    new ones. false keeps those of the old weights: no prefill, but later log-probabilities are those of no version, and
    ``old_logprobs: auto`` is ``learner``. vLLM always computes them again."""


class Vllm(Section, resume="free"):
    dtype: Annotated[Literal["float32", "bfloat16", "float16"] | None, ASK] = None
    """Type in which vLLM computes; null: ``model.dtype``."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the GPU's memory for weights and key-value cache. The rest is the learner's. Not read on a CPU."""
    kv_cache_mib: Positive | None = None
    """Memory for keys and values in MiB; null: on a CPU enough for all slots, at most a quarter of what is free; on a
    GPU what ``gpu_memory_utilization`` leaves."""
    kv_cache_dtype: Annotated[Literal["auto", "fp8"], ASK] = "auto"
    """Type of keys and values. ``auto``: the engine's own. ``fp8``: 8 bits (e4m3) on a GPU, so twice as many responses
    fit and decoding reads half as much of them. The sampler's log-probabilities then differ from the learner's, and
    ``algorithm.correction`` has to correct that."""
    tensor_parallel_size: Parallel = 1
    """Devices that share the engine's model."""
    enforce_eager: bool | None = None
    """No CUDA graphs and no compilation; null: true on a CPU (starts in seconds), false on a GPU."""
    sleep: bool = True
    """Hand the GPU memory of weights and cache to the learner while it learns. CPUs have no sleep mode."""
    engine_args: Annotated[dict[str, Any], ASK] = Field(default_factory=dict)
    """Further arguments of ``EngineArgs`` (vLLM) by name, such as ``{max_num_batched_tokens: 8192}``."""


class Server(Section, resume="free"):
    url: str | list[str] | None = None
    """Address of a running vLLM server, such as ``http://localhost:8000``, or a list of several, each an engine of a
    pool; how to start one: docs/engines.md."""
    weights_dir: str | None = None
    """Folder that trainer and server both see, through which weights travel; null: ``weights`` in the run's folder."""
    patience: Annotated[float, Field(gt=0, le=2_592_000)] = 600.0
    """Seconds to wait for a server that is away before the run is saved and stopped. A slow one is waited for."""
    api_key_variable: str | None = None
    """Name of the environment variable that holds the server's key; null: it wants none."""


@dataclass(frozen=True)
class EngineFacts:
    """Facts of a kind of engine, which rules and estimates read."""

    ours: bool = False
    """Decodes with the decoders of dapo and the learner's tensors: log-probabilities in float32 are the learner's, keys
    and values may be kept when weights change, and a slot takes the memory of the longest response."""
    repeats: bool = False
    """Makes the same digits on a processor, whatever other requests are under way."""
    on_ray: bool = False
    """May run in a process of a Ray cluster."""
    records_experts: bool = False
    """Tells which experts a token took."""


ENGINES = {
    "embedded": EngineFacts(ours=True, repeats=True, on_ray=True, records_experts=True),
    "generate": EngineFacts(repeats=True, on_ray=True),
    "vllm": EngineFacts(on_ray=True, records_experts=True),
    "vllm_server": EngineFacts(),
    "own": EngineFacts(),  # a class of the user
}
"""Each kind that ``rollout.engine`` names."""


class Rollout(Section):
    engine: Literal["embedded", "generate", "vllm", "vllm_server"] | Hook = "embedded"
    """``embedded``: our engine in the process. ``vllm``: vLLM in the process (extra ``vllm``). ``vllm_server``: a vLLM
    server that you run, ``rollout.server.url``. ``generate``: transformers' own generate (slow, any model).
    ``package.module:Class``: an engine of yours."""
    prompts_per_step: Many = 32
    """P: groups trained on in a step."""
    group_size: Annotated[Many, FIXED] = 16
    """G: responses per prompt."""
    max_response_tokens: Tokens = 1024
    """Lmax: a response that reaches it without a stop token is truncated."""
    temperature: Annotated[float, Field(ge=0.001, le=100)] = 1.0
    """Of sampling; log-probabilities in engine and learner are those of logits / temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling. Not 1 only with ``old_logprobs: learner``."""
    top_k: Whole = 0
    """Sample from the k likeliest tokens; 0: off. Not 0 only with ``old_logprobs: learner``."""
    stop_token_ids: list[int] | None = None
    """Tokens that end a response; null: all end-of-sequence ids of the model and tokenizer."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end a response, such as ``["</answer>"]``: it ends with the token that completes one, whichever tokens
    it is spread over, and trains on all it sampled. Rewards and samples see the text before it."""
    include_stop_str_in_output: bool = False
    """Leave the stop string in the text that rewards and samples see."""
    slots: Many | list[int] | None = None
    """Responses that decode at once in an engine; null: chosen from the model's size (embedded), else 64 (generate) or
    256. A list has a number for each engine of a pool."""
    engines: Parallel = 1
    """Engines, each with weights of its own. Above 1 each is a process (docs/scaling.md). ``auto``: as many as the GPUs
    of the machine or of the job hold, counted as for ``learner.ranks``. With ``vllm_server`` the addresses in
    ``rollout.server.url`` are the engines."""
    turn_steps: Many = 64
    """Decode steps of an engine of a pool between two looks at it: fewer see ended responses sooner, more cost less."""
    lockstep: bool | None = None
    """Wait for all engines of a pool after each turn, so that a run repeats itself, even if an engine is lost. null:
    true with ``embedded`` and ``generate``, false with vLLM, which does not repeat itself anyway."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0
    """S: generation goes on while the learner works, and no trained token comes from weights more than S versions older
    than those that its step trains. 0: they take turns. ``dapo check --verbose`` computes the one that fits;
    docs/overlap.md."""
    overlap_turns: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """With ``max_staleness``: a fixed number of turns of generation while the learner works, for runs that repeat to
    the bit. Engines then pause until the learner is done. null: as many turns as its time allows."""
    weight_transfer: Annotated[Literal["auto", "folder", "broadcast", "ipc", "object_store"], FREE] = "auto"
    """How weights reach engines in other processes. ``folder`` and ``auto``: as files, in shared memory or the run's
    folder. ``broadcast``: from the learner's first process to all at once, over NCCL (on processors gloo). ``ipc``:
    memory of the device that a rank and an engine share. ``object_store``: Ray's, from machine to machine."""
    embedded: Embedded = Embedded()
    """For ``engine: embedded``."""
    vllm: Vllm = Vllm()
    """For ``engine: vllm``."""
    server: Server = Server()
    """For ``engine: vllm_server``."""
