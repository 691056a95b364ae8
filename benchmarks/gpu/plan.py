"""What is run, in which order, and for how long. Imports nothing that could be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.gpu.core import SCHEMA, core_dependencies

TOTAL_SECONDS = 520.0  # of the whole command, the start of its processes included: under nine minutes
REHEARSAL_SECONDS = 115.0

_PATIENT = 60.0  # least limit of a part in a rehearsal

Kind = Literal["preflight", "check", "benchmark"]


@dataclass(frozen=True, slots=True)
class Part:
    """One function with its limits."""

    name: str
    kind: Kind
    seconds: float  # its own budget on a card
    shows: str  # what is known once it has passed
    target: str = ""  # package.module:function
    arguments: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()  # modules without which it is left out, by name
    card: str = ""  # why a rehearsal without a card leaves it out; "": it is rehearsed
    spoils: bool = False  # what it starts does not leave the process as it was: the next part gets another one

    @property
    def keywords(self) -> dict[str, str]:
        return dict(self.arguments)

    def limit(self, on_card: bool) -> float:
        """Seconds that it may take. Without a card only the whole is short: a CPU may be slow, or busy."""
        return self.seconds if on_card else max(self.seconds, _PATIENT)


def _part(kind: Kind, name: str, seconds: float, target: str, shows: str, **options: object) -> Part:
    arguments = tuple(options.pop("arguments", {}).items())  # type: ignore[attr-defined]
    return Part(name, kind, seconds, shows, f"benchmarks.gpu.{target}", arguments, **options)  # type: ignore[arg-type]


# Read before the first part's time begins: from a cold disk these take longer than most parts may.
WARM = (
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.mistral.modeling_mistral",
    "transformers.generation.utils",
)
_RECIPE = tuple(core_dependencies().values())  # a run from a recipe imports all of them
_VLLM = "`make test-vllm` rehearses it, in an environment of its own"

PLAN: tuple[Part, ...] = (
    _part(
        "preflight", "preflight", 30, "preflight:preflight", "versions, kernels and memory are what this program needs"
    ),
    _part(
        "benchmark",
        "card_limits",
        30,
        "limits:card_limits",
        "bandwidth and matrix peak of this card: what the rest is held against",
    ),
    _part(
        "check",
        "packed_attention",
        30,
        "check_attention:packed_attention",
        "packed rows give each sequence's own attention, values and gradients; the kernel taken",
    ),
    _part(
        "check",
        "learner_bfloat16",
        30,
        "check_learner:learner_against_reference",
        "log-probabilities, gradient, AdamW step with float32 masters, against float32",
        arguments={"dtype": "bfloat16"},
    ),
    _part(
        "check",
        "learner_float32",
        30,
        "check_learner:learner_against_reference",
        "the same in float32",
        arguments={"dtype": "float32"},
    ),
    _part(
        "check",
        "engine_logprobs",
        30,
        "check_engine:engine_logprobs",
        "the embedded engine's log-probabilities are the learner's, in bfloat16 and float32",
    ),
    _part("check", "greedy", 30, "check_engine:greedy", "greedy decoding gives the tokens of transformers' generate"),
    _part("check", "samples", 25, "check_engine:samples", "tokens are drawn with the model's probabilities"),
    _part(
        "check",
        "biased_keys",
        30,
        "check_engine:biased_keys",
        "attention scores with large offsets do not round the engine away from the model",
    ),
    _part(
        "benchmark",
        "decode_0.5b",
        40,
        "speed_decode:decode",
        "decode tokens per second at 0.5B, against generate and the memory bound",
        arguments={"size": "0.5b"},
    ),
    _part(
        "benchmark",
        "learn_7b_layers",
        60,
        "speed_learner:learn",
        "training layers of Qwen2.5-7B's shape, as many as fit, against the matrix peak",
        arguments={"size": "7b"},
    ),
    _part(
        "benchmark",
        "decode_7b",
        45,
        "speed_decode:decode",
        "decode tokens per second, Qwen2.5-7B's shape",
        arguments={"size": "7b"},
        card="the same code as for 0.5b",
    ),
    _part(
        "check",
        "prompt_gradient",
        25,
        "check_attention:prompt_gradient",
        "the gradient of a prompt shared by sixteen responses, twice",
    ),
    _part(
        "check",
        "checkpointing",
        30,
        "check_learner:checkpointing",
        "activation checkpointing changes memory and not the gradient",
    ),
    _part("check", "fp32_head", 25, "check_learner:fp32_head", "fp32_head gives float32 logits and gradients"),
    _part(
        "check",
        "large_vocabulary",
        60,  # on the processor: its model is made, read twice and saved once, some 20 s of a slow one
        "check_learner:large_vocabulary",
        "a vocabulary of 152,000: memory, the head's gradient, save and go on",
    ),
    _part("check", "resume", 25, "check_learner:resume", "a learner that was saved and loaded goes on alike"),
    _part(
        "check",
        "publish_keep",
        25,
        "check_engine:publish_keep",
        "new weights under live responses: versions, and log-probabilities afterwards",
    ),
    _part(
        "check",
        "matmul_precision",
        30,
        "check_engine:matmul_precision",
        "the engine starts with every model.matmul_precision",
    ),
    _part(
        "check",
        "cache_memory",
        30,
        "check_engine:cache_memory",
        "the key-value cache stays inside the card with responses of 1,100 tokens",
    ),
    _part(
        "check",
        "synchronisations",
        25,
        "check_engine:synchronisations",
        "how often a decode step waits for the card",
        card="a CPU has nothing to wait for",
    ),
    _part(
        "check",
        "graphs",
        30,
        "check_engine:graphs",
        "decode steps as CUDA graphs give the tokens of steps that run as they are",
    ),
    _part(
        "check",
        "truncation",
        10,
        "check_engine:truncation",
        "top-p and top-k from a few candidates draw the tokens of the order of all words, and how much faster",
    ),
    _part(
        "check",
        "cpu_offload",
        30,
        "check_learner:cpu_offload",
        "a rank whose slices live in the processor's memory makes the same step",
        needs=SCHEMA,
    ),
    _part(
        "check",
        "float32_memory",
        25,
        "check_attention:float32_memory",
        "peak memory of packed attention in float32 with grouped heads",
        card="a CPU does not count its tensors' bytes",
    ),
    _part(
        "check",
        "vllm",
        75,
        "check_vllm:publish_sleep_learn",
        "vLLM takes weights three times, sleeps, gives memory back and wakes",
        needs=("vllm", *_RECIPE),
        card=_VLLM,
        spoils=True,  # its groups, compiled code and captured graphs
    ),
    _part(
        "check",
        "two_processes",
        45,
        "check_processes:two_processes",
        "a learner that reached over 30 % of the memory leaves a second process 70 %, in turns",
    ),
    _part(
        "check",
        "ipc",
        25,
        "check_processes:ipc",
        "another process reads the learner's weights where they lie (CUDA IPC)",
    ),
    _part(
        "check",
        "runs",
        150,
        "check_runs:runs",
        "`dapo train`: float32, bfloat16, two engines, overlap with CUDA IPC, LoRA, 8 bits, a game; one resumed",
        needs=_RECIPE,
    ),
    _part(
        "check",
        "long_row",
        60,
        "check_large:long_row",
        "one row of 22,528 tokens at 32B's widths: peak memory against `dapo check`'s arithmetic",
    ),
    _part(
        "check",
        "experts",
        60,
        "check_large:experts",
        "layers of experts at Qwen3-30B-A3B's widths: engine, learner, recomputed layers, memory",
    ),
    _part(
        "benchmark",
        "learn_0.5b",
        30,
        "speed_learner:learn",
        "training tokens per second at Qwen2.5-0.5B's shape",
        arguments={"size": "0.5b"},
        card="the same code as for layers of 7b",
    ),
    _part(
        "benchmark",
        "decode_1.5b",
        40,
        "speed_decode:decode",
        "decode tokens per second, Qwen2.5-1.5B's shape",
        arguments={"size": "1.5b"},
        card="the same code as for 0.5b",
    ),
    _part(
        "benchmark",
        "learn_1.5b",
        35,
        "speed_learner:learn",
        "training tokens per second at Qwen2.5-1.5B's shape",
        arguments={"size": "1.5b"},
        card="the same code as for layers of 7b",
    ),
    _part(
        "benchmark",
        "plain_step",
        45,
        "speed_plain:plain_step",
        "DAPO steps with a length tail by engine and learner alone, which need no recipe: seconds, peak memory",
    ),
    _part(
        "benchmark",
        "dapo_step",
        90,
        "speed_step:dapo_step",
        "whole DAPO steps with a length tail; peak memory against `dapo check`'s estimate",
        needs=_RECIPE,
    ),
    _part(
        "benchmark",
        "vllm_decode_0.5b",
        75,
        "speed_vllm:decode",
        "vLLM's decode tokens per second beside the embedded engine's, 0.5B",
        arguments={"size": "0.5b"},
        needs=("vllm", *_RECIPE),
        card=_VLLM,
        spoils=True,  # its groups, compiled code and captured graphs
    ),
    _part(
        "check",
        "marked_tests",
        60,
        "marked:marked_tests",
        "tests elsewhere in tests/ that are marked gpu",
        needs=("pytest", "pytest_timeout", "beartype", "hypothesis", "jaxtyping", *_RECIPE),
        card="they need a card",
    ),
)
