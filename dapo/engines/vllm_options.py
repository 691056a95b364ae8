"""Settings of vLLM, and messages for its errors. Imports no vLLM."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dapo.config.schema import Vllm
from dapo.errors import EngineError
from dapo.system import available_memory
from dapo.types.model import ModelFacts

WEIGHT_WORKER = "dapo.engines.vllm.WeightWorker"
_BLOCK = 32  # tokens of a cache block: a prompt is shared in whole blocks; CPU kernels want multiples of 32
_PREFILL_TOKENS = 4096  # of one step on a CPU
_MIB = 2**20
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's ``MaxLoRARanks``
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop runs in this process, one step at a time
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # at ERROR a failing step prints all that is scheduled, 100 kB and more
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # without the package flashinfer a start ends in an ImportError; dapo's
    # requests ask for processed log-probabilities, which that sampler does not compute anyway
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it takes all cores but one for itself, and the learner's too
}


def engine_args(
    facts: ModelFacts,
    longest: int,
    slots: int,
    settings: Vllm,
    *,
    cuda: bool,
    sleeps: bool,
    fp32_head: bool = False,
    adapter_rank: int | None = None,
) -> dict[str, Any]:
    """Return arguments for ``EngineArgs``: what exactness needs, the recipe's, and what a CPU needs.

    ``adapter_rank``: of an adapter that comes by itself; the frozen weights are then read from the model's folder.
    ``fp32_head``: the learner leaves its logits in float32, and so must vLLM: in bfloat16 those between 16 and 32 are
    off by up to 0.06.
    """
    positions = facts.positions
    args: dict[str, Any] = {
        "model": facts.name,
        "dtype": settings.dtype or facts.dtype,
        "load_format": "dummy" if adapter_rank is None else "auto",
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",  # of what was sampled from: temperature, top-p and top-k applied
        "generation_config": "vllm",  # no sampling defaults of the model's own
        "max_model_len": longest if positions is None else min(longest, positions),
        "max_num_seqs": slots,
        "scheduling_policy": "priority",
        "enable_prefix_caching": True,
        "async_scheduling": False,  # a step ahead of itself, vLLM would stamp tokens with the wrong version
        "enforce_eager": not cuda if settings.enforce_eager is None else settings.enforce_eager,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enable_sleep_mode": sleeps,
        "gpu_memory_utilization": settings.gpu_memory_utilization if cuda else 0.1,
        "worker_extension_cls": WEIGHT_WORKER,
        "disable_log_stats": True,
    }
    if not cuda:
        args["block_size"] = _BLOCK
        # In chunks, vLLM 0.32 turns a seeded request's generator back by an offset, which CPU generators do not have.
        args |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(_PREFILL_TOKENS, longest)}
    if settings.kv_cache_mib is not None:
        args["kv_cache_memory_bytes"] = settings.kv_cache_mib * _MIB
    elif not cuda:
        args["kv_cache_memory_bytes"] = _cpu_cache_bytes(facts, longest, slots)
    if settings.kv_cache_dtype != "auto":
        args["kv_cache_dtype"] = settings.kv_cache_dtype
    if adapter_rank is not None:
        args |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _room_for(adapter_rank)}
    args |= settings.engine_args
    if fp32_head:
        args["hf_overrides"] = {"head_dtype": "float32"} | args.get("hf_overrides", {})
    return args


def _room_for(rank: int) -> int:
    """Return the smallest rank that vLLM allocates for and that holds an adapter of ``rank``.

    Raises:
        EngineError: there is none.
    """
    for known in _RANKS:
        if known >= rank:
            return known
    raise EngineError(
        f"model.lora.rank is {rank}, and vLLM applies adapters up to rank {_RANKS[-1]}: set model.lora.merge to true"
    )


def check_experts(facts: ModelFacts, *, cuda: bool) -> None:
    """Refuse a mixture of experts on a CPU.

    Raises:
        EngineError: with the engine that computes it.
    """
    if facts.has_experts and not cuda:
        raise EngineError(
            f"{facts.name} is a mixture of experts, and vLLM's CPU build computes something else once it took new "
            "weights (vLLM 0.32: log-probabilities of the very same weights were off by 1 to 9 nats); set "
            "rollout.engine: embedded"
        )


def _cpu_cache_bytes(facts: ModelFacts, longest: int, slots: int) -> int:
    """Enough for every slot at full length, at most a quarter of the free memory."""
    per_token = facts.layers * facts.key_values * 4
    wanted, free = (slots * -(-longest // _BLOCK) + 1) * _BLOCK * per_token, available_memory()
    return int(min(wanted, wanted if free is None else free // 4))


@contextmanager
def speaking_of(doing: str) -> Iterator[None]:
    """Raise vLLM's errors as dapo's, with what vLLM was doing and the next move."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"vLLM failed while {doing}: {_words(error)}. Settings are in rollout.vllm "
            "(engine_args takes every vLLM argument); VLLM_LOGGING_LEVEL=INFO shows what it does; rollout.engine: "
            "embedded works without it"
        ) from error


def _words(error: Exception) -> str:
    """Return an error in one line. The first line of pydantic's errors and of asserts says nothing."""
    details = getattr(error, "errors", None)
    if callable(details) and (found := details()):
        said = "; ".join(str(one.get("msg", one)) for one in found[:3])
    else:
        said = str(error).strip().partition("\n")[0]
    if not said:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"without a message, in {last.name} ({Path(last.filename).name}:{last.lineno}: {last.line})"
    return f"{type(error).__name__}: {said}"
