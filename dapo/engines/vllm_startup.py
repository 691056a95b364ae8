"""Requirements on a vLLM server before it is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo.engines.vllm_http import GENERATE, LATER, ServerResponse, Unreachable, Wire, not_vllm, refusal, words
from dapo.engines.vllm_lease import ServerLease
from dapo.engines.vllm_waiting import Outage
from dapo.errors import EngineError

_EXACT = 1e-6
_CERTAIN = 4  # tokens of which only one is possible
_UNSEEN = re.compile(
    r"(^|[._])(rope|rotary)_|(^|[._])eps(ilon)?$|softcapping$|scalar$|_scal(e|ing)$|_multiplier$|_act$|_activation$"
    r"|activation_function$|norm_topk_prob$|num_experts_per_tok$"
)
"""Settings of a configuration that change numbers and no tensor. The few short rows of the sync check see some of them
hardly: the epsilon of norms, rotations of late positions, soft caps of small logits."""
_FIRST_TOKENS_SECONDS = 180.0  # a fresh server still compiles at its first request


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

    That its model is the run's is seen at the first publish: by its tensors, their checksums and the sync check. What
    these hardly see is compared here.

    Args:
        wire: To the server.
        lease: Of this trainer; taken here.
        longest: Tokens of prompt and response together that the run may ask for.
        vocabulary: Token ids of the run's model.
        patience: Seconds that the server may be away.
        config: The run's model configuration; None: not compared.

    Raises:
        EngineError: It cannot be reached for ``patience`` seconds, runs without development mode, serves another
            trainer, its context is shorter than ``longest``, its vocabulary smaller, its norms or rotations are others,
            or its log-probabilities are not the sampler's.
    """
    label = await _first_answer(wire, patience)
    patience = max(patience, _FIRST_TOKENS_SECONDS)
    try:
        context = context_of(wire, await wire.must("GET", "/v1/models", timeout=patience))
        if context is not None and context < longest:
            raise EngineError(
                f"the vLLM server at {wire.address} takes {context} tokens of prompt and response together; this run "
                f"needs {longest}: start it with --max-model-len {longest}, or lower rollout.max_response_tokens"
            )
        await lease.take(patience, label)
        await _compare_unseen(wire, config or {}, patience)
        if await wire.is_paused(patience):  # left behind by a trainer that died within a publish
            await wire.must("POST", "/resume", timeout=patience)
        priority = await _make_certain_tokens(wire, vocabulary, patience)
    except Unreachable as error:
        raise EngineError(
            f"the vLLM server at {wire.address} stopped answering during the start-up checks ({error}); its log says "
            "why. Start it again on the folder in `model.path`"
        ) from error
    return ServerFacts(context, vocabulary, priority)


async def _first_answer(wire: Wire, patience: float) -> str:
    """Wait until the server is up; returns the label of its weights."""
    outage = Outage(wire.address, patience)
    while True:
        try:
            return await wire.weight_label(outage.timeout)
        except Unreachable as error:
            if 400 <= error.status < 500 and error.status not in LATER:
                raise EngineError(
                    f"{wire.address} is no vLLM server ({error}); expected http://HOST:PORT, without a path"
                ) from error
            if not await outage.wait(str(error)):
                raise EngineError(
                    f"no vLLM server answered at {wire.address} for {patience:.0f} s ({error}); start it, check the "
                    "address in the recipe, or raise `rollout.server.patience` if it needs longer to load"
                ) from error


def context_of(wire: Wire, models: Any, setting: str = "rollout.server.url") -> int | None:
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
    raise EngineError(not_vllm(wire.address, "/v1/models", models, expected, setting))


async def _compare_unseen(wire: Wire, config: Mapping[str, Any], patience: float) -> None:
    """Compare what tensors do not show; a server without our worker extension says nothing of it.

    Raises:
        EngineError: a setting differs.
    """
    answers = await wire.workers("model_facts", patience)
    ours, theirs = dict(_unseen(config)), dict(_unseen(answers[0] if answers else {}))
    other = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    if other:
        said = "; ".join(f"{name} is {theirs[name]} there and {ours[name]} here" for name in other[:4])
        raise EngineError(
            f"the vLLM server at {wire.address} runs another model than this run: {said}. Start it on the folder in "
            "`model.path`"
        )


def _unseen(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of such settings, of nested configurations as well."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _unseen(value, f"{name}.")
        elif _UNSEEN.search(name):
            yield name, list(value) if isinstance(value, tuple) else value


async def _make_certain_tokens(wire: Wire, vocabulary: int, patience: float) -> bool:
    """Make tokens after the last one of the run's vocabulary, each of which is the only one possible.

    So the server has that vocabulary, and a log-probability of what was sampled from is 0.

    Returns:
        Whether a request may name a priority.
    """
    sampling: dict[str, Any] = {"seed": 0, "logprobs": 0, "ignore_eos": True, "detokenize": False}
    sampling |= {"max_tokens": _CERTAIN, "temperature": 0.5, "top_k": 1}
    body: dict[str, Any] = {"token_ids": [vocabulary - 1], "sampling_params": sampling}
    status, answer = await wire.call("POST", GENERATE, {**body, "priority": 1}, timeout=patience)
    priority = not (status == 400 and "priority" in words(answer))
    if not priority:
        status, answer = await wire.call("POST", GENERATE, body, timeout=patience)
    if status == 400 or status >= 500:
        raise EngineError(
            f"{refusal(wire.address, GENERATE, status, answer)}. It was sent token {vocabulary - 1}, the last one of "
            f"the run's vocabulary of {vocabulary}; its log may say more. Start it on the folder in `model.path`"
        )
    if status != 200:
        raise EngineError(refusal(wire.address, GENERATE, status, answer))
    try:
        certain = ServerResponse.read(answer).logprobs
    except ValueError as error:
        raise EngineError(not_vllm(wire.address, GENERATE, answer, f"a response ({error})")) from error
    if len(certain) != _CERTAIN or not (np.abs(certain) <= _EXACT).all():
        raise EngineError(
            f"the vLLM server at {wire.address} does not report the sampler's own log-probabilities: {_CERTAIN} tokens "
            f"that were certain have {certain.tolist()} instead of 0 each; start it with --logprobs-mode "
            "processed_logprobs"
        )
    return priority
