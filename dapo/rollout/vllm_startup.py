"""Requirements on a vLLM server before it is used."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo.errors import EngineError
from dapo.rollout.vllm_http import GENERATE, LATER, ServerResponse, Unreachable, Wire, not_vllm, refusal, words
from dapo.rollout.vllm_lease import ServerLease
from dapo.rollout.vllm_waiting import Waiting

_EXACT = 1e-6
_CERTAIN = 4  # tokens of which only one is possible
_SILENT_SECONDS = 2.0  # a server that is away for longer is told to whoever waits
_FIRST_TOKENS_SECONDS = 180.0  # a fresh server still compiles at its first request
_SHAPING = frozenset(
    re.findall(
        r"\w+",
        """
        model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
        num_key_value_heads head_dim n_embd n_layer n_head n_inner hidden_act hidden_activation
        activation_function rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps rope_theta rope_type
        factor partial_rotary_factor rotary_pct low_freq_factor high_freq_factor
        original_max_position_embeddings short_factor long_factor beta_fast beta_slow mscale mscale_all_dim
        no_rope_layers attention_bias mlp_bias tie_word_embeddings query_pre_attn_scalar
        final_logit_softcapping attn_logit_softcapping logit_scale logits_scaling residual_multiplier
        embedding_multiplier attention_multiplier num_experts num_local_experts num_experts_per_tok
        moe_intermediate_size norm_topk_prob
        """,
    )
)
"""Settings of a configuration that change a model's tensors or its numbers; the rest differs by version and use."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Findings of the start-up checks."""

    context: int | None  # tokens that a prompt and its response may have together
    vocabulary: int  # token ids that the run's model has, which the server's has, too
    priority: bool  # a request may name one (a server that does not order by it takes no notice)


async def inspect(
    wire: Wire,
    lease: ServerLease,
    *,
    longest: int,
    vocabulary: int,
    patience: float,
    config: Mapping[str, Any] | None = None,
) -> ServerFacts:
    """Refuse a server that cannot serve this run, before any work is spent.

    Args:
        wire: To the server.
        lease: Of this trainer; taken here.
        longest: Tokens of prompt and response together that the run may ask for.
        vocabulary: Token ids of the run's model.
        patience: Seconds that the server may be away.
        config: The run's model configuration; None: not compared.

    Raises:
        EngineError: It cannot be reached for ``patience`` seconds, runs without development mode, serves another
            trainer, its context is shorter than ``longest``, its model another one or its vocabulary smaller, or its
            log-probabilities are not the sampler's.
    """
    await _wait_until_healthy(wire, patience)
    patience = max(patience, _FIRST_TOKENS_SECONDS)
    try:
        label = await wire.weight_label(patience)  # first: without it nothing below can be trusted either
        context = _context(wire, await wire.must("GET", "/v1/models", timeout=patience))
        if context is not None and context < longest:
            raise EngineError(
                f"the vLLM server at {wire.address} takes {context} tokens of prompt and response together; this run "
                f"needs {longest}: start it with --max-model-len {longest}, or lower rollout.max_response_tokens"
            )
        await lease.take(patience, label)
        await _compare_models(wire, config, vocabulary, patience)
        if await wire.is_paused(patience):  # left behind by a trainer that died within a publish
            await wire.must("POST", "/resume", timeout=patience)
        priority = await _probe_logprobs(wire, vocabulary, patience)
    except Unreachable as error:
        raise EngineError(
            f"the vLLM server at {wire.address} stopped answering during the start-up checks ({error}); look at its log"
        ) from error
    return ServerFacts(context, vocabulary, priority)


def _context(wire: Wire, models: Any) -> int | None:
    """Tokens of prompt and response together that the server takes; None: it does not say.

    Raises:
        EngineError: This is no list of models as vLLM gives it.
    """
    try:
        found = models["data"][0].get("max_model_len")
    except (KeyError, IndexError, TypeError, AttributeError):
        found = False
    if found is None or (isinstance(found, int) and not isinstance(found, bool) and found > 0):
        return found
    expected = "{'data': [{'id': ..., 'max_model_len': a number}]}"
    raise EngineError(not_vllm(wire.address, "/v1/models", models, expected))


async def _compare_models(wire: Wire, config: Mapping[str, Any] | None, vocabulary: int, patience: float) -> None:
    """Before any token is sent: one that the server's model does not know would kill its engine.

    Raises:
        EngineError: The server's model is another one.
    """
    answers = await wire.workers("model_facts", patience)
    facts = answers[0] if answers and isinstance(answers[0], Mapping) else {}
    theirs, ours = dict(_shaping(facts.get("config"))), dict(_shaping(config or {"vocab_size": vocabulary}))
    other = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    if other:
        said = "; ".join(f"{name} is {theirs[name]} there and {ours[name]} here" for name in other[:4])
        raise EngineError(
            f"the vLLM server at {wire.address} runs another model than this run: {said}. Start it on the folder in "
            "`model.path`"
        )


def _shaping(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of the settings that matter, of nested configurations as well."""
    for name, value in config.items() if isinstance(config, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _shaping(value, f"{above}{name}.")
        elif name in _SHAPING:
            yield f"{above}{name}", list(value) if isinstance(value, tuple) else value


async def _wait_until_healthy(wire: Wire, patience: float) -> None:
    waiting = Waiting(wire.address, patience, _SILENT_SECONDS)
    while True:
        try:
            status, answer = await wire.call("GET", "/health", timeout=waiting.timeout)
            if status == 200:
                return waiting.over()
            last = f"/health answered {status}: {words(answer)}"
            if 400 <= status < 500 and status not in LATER:
                raise EngineError(
                    f"{wire.address} is no vLLM server ({last}); expected http://HOST:PORT, without a path"
                )
        except Unreachable as error:
            last = str(error)
        if waiting.left < 0:
            raise EngineError(
                f"no vLLM server answered at {wire.address} for {patience:.0f} s ({last}); start it, check the address "
                "in the recipe, or raise `rollout.server.patience` if it needs longer to load"
            )
        waiting.tell(last)
        await asyncio.sleep(min(1.0, patience / 10))


async def _probe_logprobs(wire: Wire, vocabulary: int, patience: float) -> bool:
    """See that log-probabilities are those of the distribution sampled from, where that is known without the model.

    With top_k 1 there is one outcome, of log-probability 0. The raw ones of a model that is sure of itself are close
    to that; but they do not know the temperature, which scales the distance between the two likeliest tokens.

    Returns:
        Whether a request may name a priority.
    """
    priority, token = True, 0

    async def ask(**options: Any) -> Any:
        nonlocal priority
        sampling = {"seed": 0, "logprobs": 0, "ignore_eos": True, "detokenize": False, **options}
        body: dict[str, Any] = {"token_ids": [token], "sampling_params": sampling}
        status, payload = 400, None
        if priority:
            status, payload = await wire.call("POST", GENERATE, {**body, "priority": 1}, timeout=patience)
            priority = not (status == 400 and "priority" in words(payload))
        if not priority:
            status, payload = await wire.call("POST", GENERATE, body, timeout=patience)
        return _accepted(wire, vocabulary, token, status, payload)

    async def distance(temperature: float) -> float:
        payload = await ask(max_tokens=1, temperature=temperature, logprobs=3)  # the sampled one, then the likeliest
        try:
            likeliest = payload["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            found = sorted(float(entry["logprob"]) for entry in likeliest)
            return found[-1] - found[-2]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            expected = "'top_logprobs' with the numbers of at least two tokens"
            raise EngineError(not_vllm(wire.address, GENERATE, payload, expected)) from error

    await ask(max_tokens=1, temperature=1.0)  # any server knows token 0; its numbers may all be equal, of a padding row
    token = vocabulary - 1
    try:
        await ask(max_tokens=1, temperature=1.0)  # one without our extension may have fewer rows, and dies of this
    except Unreachable as error:
        raise EngineError(_too_few(wire, vocabulary, str(error))) from error
    certain = ServerResponse.read(await ask(max_tokens=_CERTAIN, temperature=0.5, top_k=1)).logprobs
    if len(certain) != _CERTAIN:
        raise EngineError(
            f"the vLLM server at {wire.address} made {len(certain)} tokens where {_CERTAIN} were asked for; look at "
            "its log, and start it as docs/vllm_server.md says"
        )
    cold, warm = await distance(0.5), await distance(2.0)
    if not (np.abs(certain) <= _EXACT).all() or (warm > _EXACT and cold < 2 * warm):
        raise EngineError(
            f"the vLLM server at {wire.address} does not report the sampler's own log-probabilities: tokens that were "
            f"certain have {certain.tolist()} instead of 0, and from temperature 2 to 0.5 the distance of two tokens "
            f"went from {warm:.4g} to {cold:.4g} instead of four times as far; start it with "
            "--logprobs-mode processed_logprobs"
        )
    return priority


def _too_few(wire: Wire, vocabulary: int, said: str) -> str:
    return (
        f"the vLLM server at {wire.address} answered until it was sent token {vocabulary - 1}, the last one of the "
        f"run's vocabulary of {vocabulary}: {said}. Its model has most likely fewer: start the server again, on the "
        "folder in `model.path`"
    )


def _accepted(wire: Wire, vocabulary: int, sent: int, status: int, payload: Any) -> Any:
    """Return the answer to token ``sent``, or raise; each answer before it was good."""
    if status == 400 and "vocabulary" in words(payload):
        raise EngineError(
            f"the model of the vLLM server at {wire.address} does not know token {vocabulary - 1}; the run's model has "
            f"a vocabulary of {vocabulary}: start the server on the folder in `model.path`"
        )
    if status >= 500:
        if sent:
            raise EngineError(_too_few(wire, vocabulary, f"{status}: {words(payload)}"))
        raise EngineError(
            f"{refusal(wire.address, GENERATE, status, payload)}; its log says why. Start it again as "
            "docs/vllm_server.md says, on the folder in `model.path`"
        )
    if status != 200:
        raise EngineError(refusal(wire.address, GENERATE, status, payload))
    try:
        ServerResponse.read(payload)
    except ValueError as error:
        raise EngineError(not_vllm(wire.address, GENERATE, payload, f"a response ({error})")) from error
    return payload
