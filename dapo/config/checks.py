"""Facts that follow from several settings of a recipe, and rules about names, batches, sampling, engine and learner."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from dapo.config.check_teacher import taught_alone
from dapo.config.deployment import Deployment
from dapo.config.faults import Broken
from dapo.config.reward_range import fitting, overflow, weights_said
from dapo.config.schema import Recipe
from dapo.config.schema.kinds import Mask
from dapo.config.schema.rollout import ENGINES
from dapo.config.schema.run import TRACKERS, WITH_PROJECTS
from dapo.config.staleness import keeps_old_cache
from dapo.system import NO_MPS

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import RatioAgainst

CorrectionKind = Literal[
    "none", "report", "untruncated", "truncate", "truncate_sequence", "mask_token", "mask_sequence", "mask_off_policy"
]


def ratio_against(recipe: Recipe) -> RatioAgainst:
    """Return whose log-probabilities the ratio runs against: ``algorithm.old_logprobs``, ``auto`` decided.

    ``auto`` is the sampler with the embedded engine in float32, unless its cache keeps old weights' keys and values. In
    bfloat16 its numbers are off the learner's by about 0.01 nats a token, which the ratio would take for a change of
    the policy (benchmarks/log.md has the measurement).
    """
    old = recipe.algorithm.old_logprobs
    if old == "auto":
        return "sampler" if _exact_sampler(recipe) else "learner"
    return old


def _exact_sampler(recipe: Recipe) -> bool:
    """Return whether the engine's log-probabilities are the learner's to about 1e-7 nats."""
    return Deployment(recipe).engine_facts.ours and recipe.model.dtype == "float32" and not keeps_old_cache(recipe)


def correction_kind(recipe: Recipe) -> CorrectionKind:
    """``algorithm.correction.kind``; ``auto`` is truncation where the learner's log-probabilities are used."""
    kind = recipe.algorithm.correction.kind
    if kind != "auto":
        return kind
    return "none" if ratio_against(recipe) == "sampler" else "truncate"


def kl_in_loss(recipe: Recipe) -> float:
    """Coefficient of the loss's KL term; 0: it has none."""
    return 0.0 if recipe.algorithm.kl_in_reward else recipe.algorithm.kl_coefficient


def kl_in_reward(recipe: Recipe) -> float:
    """Coefficient of the KL that is subtracted from rewards; 0: none is."""
    return recipe.algorithm.kl_coefficient if recipe.algorithm.kl_in_reward else 0.0


def penalty_interval(recipe: Recipe) -> tuple[int, int]:
    """(Lmax, Lcache) of the soft overlong punishment in tokens, defaults filled in.

    Lmax defaults to the response limit, Lcache to a fifth of Lmax (at least one token).
    """
    punishment = recipe.algorithm.overlong_punishment
    longest = punishment.max_length or recipe.rollout.max_response_tokens
    return longest, punishment.cache_length or max(1, longest // 5)


def _batch(r: Recipe) -> Broken:
    prompts, mini, key = r.rollout.prompts_per_step, r.learner.minibatch_prompts, "learner.minibatch_prompts"
    if mini is None:
        return
    if mini > prompts:
        bound = f"use at most {prompts}, or null for one optimiser step"
        yield key, f"is more than rollout.prompts_per_step = {prompts}; {bound}"
    elif prompts % mini:
        fits = [d for d in range(1, prompts + 1) if prompts % d == 0]
        near = sorted(sorted(fits, key=lambda d: abs(d - mini))[:3])
        yield (
            key,
            f"does not divide rollout.prompts_per_step = {prompts} ({prompts} = {prompts // mini} x {mini} + "
            f"{prompts % mini}); use one of {', '.join(map(str, near))}",
        )


def _group(r: Recipe) -> Broken:
    bounds = r.algorithm.advantage_clip
    if (bounds.low, bounds.high) == (0, 0):
        yield "algorithm.advantage_clip", "makes every advantage 0, so no reward trains; give low below 0 or high above"
    if r.rollout.group_size > 1 or taught_alone(r):
        return
    advantage, sampling = r.algorithm.advantage, r.algorithm.dynamic_sampling
    key = "rollout.group_size"
    if ":" not in advantage.kind:
        yield key, "a group of one trains nothing, since it takes two voters; use at least 2 (16 in DAPO)"
    elif sampling.mode != "off":
        mode = f"dynamic_sampling.mode: {sampling.mode}"
        yield key, f"a group of one is never mixed, so {mode} keeps none; use 16, or off"


def _dynamic_sampling(r: Recipe) -> Broken:
    d = r.algorithm.dynamic_sampling
    where = "algorithm.dynamic_sampling"
    names = {reward.name for reward in r.rewards}
    may_name_more = any(reward.kind in ("function", "service", "code") for reward in r.rewards)  # dicts of numbers
    if d.metric not in names and not may_name_more and r.rewards:
        known = ", ".join(f"`{n}`" for n in sorted(names))
        yield f"{where}.metric", f"no reward of that name; there are {known}"
    if d.band is not None and not d.band[0] < d.band[1]:
        yield f"{where}.band", "expected [low, high] with low below high, such as [0.1, 0.9]"
    if d.mode == "filter" and d.cap.groups is not None and d.oversample is not None and d.oversample > d.cap.groups:
        yield f"{where}.oversample", f"the first dispatch alone passes cap.groups = {d.cap.groups:g}"
    smallest = r.rollout.prompts_per_step * r.rollout.group_size
    if d.mode == "filter" and d.cap.tokens is not None and d.cap.tokens < smallest:
        yield f"{where}.cap.tokens", f"is less than one token for each of the {smallest} responses of a step"


def _length(r: Recipe) -> Broken:
    punishment, limit = r.algorithm.overlong_punishment, r.rollout.max_response_tokens
    if not punishment.enabled:
        return
    where = "algorithm.overlong_punishment"
    longest, cache = penalty_interval(r)
    if cache > longest:
        yield (
            f"{where}.cache_length",
            f"the penalty grows over the last cache_length tokens before Lmax = {longest}, so it must be at most "
            f"{longest}; null takes a fifth ({max(1, longest // 5)})",
        )
    elif longest - cache >= limit:
        yield (
            f"{where}.max_length",
            f"the penalty starts above {longest - cache} tokens ({longest} - {cache}) and responses end at "
            f"rollout.max_response_tokens = {limit}: it never applies. Set max_length: null, or enabled: false",
        )


def _scaling(r: Recipe) -> Broken:
    s = r.algorithm.reward_scaling
    if not s.enabled:
        return
    where = "algorithm.reward_scaling"
    if s.source_min >= s.source_max:
        yield f"{where}.source_max", f"must be above source_min = {s.source_min:g}: the map divides by their difference"
    if s.target_min == s.target_max:
        yield f"{where}.target_max", f"equals target_min: every reward becomes {s.target_max:g}"
    elif s.target_min > s.target_max:
        yield f"{where}.target_max", f"is below target_min = {s.target_min:g}: right answers would be punished"
    found = overflow(r, functions=False)
    if found is not None and s.source_min < s.source_max:
        fits = fitting(r, overflow(r, functions=True) or found)
        yield (
            where,
            f"clamps the weighted sum of the rewards to {s.source_min:g} .. {s.source_max:g}, and the weights "
            f"({weights_said(r.rewards)}) let that of {found.source} run from {found.low:g} to {found.high:g}: what is "
            f"clamped away teaches nothing. Set {fits}, smaller weights, or {where}.enabled=false",
        )


def _sampling(r: Recipe) -> Broken:
    rollout = r.rollout
    if ratio_against(r) != "learner":
        for name, value, neutral in (("top_p", rollout.top_p, 1.0), ("top_k", rollout.top_k, 0)):
            if value != neutral:
                yield (
                    f"rollout.{name}",
                    f"cuts and renormalises the sampler's probabilities, so a ratio against them is biased; set "
                    f"rollout.{name}={neutral:g} or algorithm.old_logprobs=learner",
                )
    if r.algorithm.loss.penalises_distance and ratio_against(r) != "learner" and not _exact_sampler(r):
        yield (
            "algorithm.old_logprobs",
            f"cannot be used with loss.kind: {r.algorithm.loss.kind} here: engine and learner round differently, and "
            "the penalty abs(log r) takes the sign of that difference for a direction; set "
            "algorithm.old_logprobs=learner or auto",
        )
    if ratio_against(r) == "sampler" and r.algorithm.correction.kind not in ("auto", "none", "mask_off_policy"):
        gap = "corrects the gap between learner and sampler, which needs algorithm.old_logprobs=learner"
        yield "algorithm.correction.kind", gap
    correction = r.algorithm.correction
    if isinstance(correction, Mask) and correction.floor >= correction.cap:
        yield "algorithm.correction.floor", f"must be below cap = {correction.cap:g}"


OF_THE_ENGINE = {
    "model": "model.path",
    "trust_remote_code": "model.trust_remote_code",
    "dtype": "rollout.vllm.dtype",
    "max_num_seqs": "rollout.slots",
    "max_model_len": "data.max_prompt_tokens and rollout.max_response_tokens",
    "gpu_memory_utilization": "rollout.vllm.gpu_memory_utilization",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_mib",
    "kv_cache_dtype": "rollout.vllm.kv_cache_dtype",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel_size",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "enable_sleep_mode": "rollout.vllm.sleep",
}
"""Arguments of vLLM that have a setting of their own."""
_FIXED = {
    "load_format": "dummy: the weights come with the first publish",
    "logprobs_mode": "processed_logprobs: those of the distribution that was sampled from",
    "skip_tokenizer_init": "true: tokens go in and come out",
    "worker_extension_cls": "ours, which loads published weights",
    "async_scheduling": "false: a step ahead of itself, vLLM would stamp tokens with the wrong version",
    "scheduling_policy": "priority: what earlier steps left goes first",
}
"""vLLM arguments that are not free, with their values in dapo."""
_ONE = re.compile(r"(data|pipeline|(prefill|decode)_context)_parallel_size|nnodes|api_server_count")
"""Numbers of processes or machines of which vLLM in the trainer's process can have one: more wait for ever, or fail."""
_ELSEWHERE = re.compile(r"data_parallel_(?!size)\w+|node_rank|master_(addr|port)|headless")


def _engine(r: Recipe) -> Broken:
    rollout, kind = r.rollout, Deployment(r).engine
    if kind == "vllm" and re.fullmatch(r"cuda:0*[1-9]\d*", r.model.device):
        yield (
            "model.device",
            "vLLM in the trainer's process computes on the first device that it sees, and the learner would sit on "
            f"another: set model.device=cuda and CUDA_VISIBLE_DEVICES={r.model.device.partition(':')[2]}",
        )
    if rollout.embedded.cuda_graphs and not Deployment(r).engine_facts.ours:
        other = f"rollout.engine is {rollout.engine}"
        yield "rollout.embedded.cuda_graphs", f"asks for graphs of the embedded engine, and {other}; take it out"
    elif rollout.embedded.cuda_graphs and r.model.device == "cpu":
        move = "asks for CUDA graphs, and model.device is cpu; take it out, and a GPU gets them anyway"
        yield "rollout.embedded.cuda_graphs", move
    if Deployment(r).keeps_8_bits and correction_kind(r) in ("none", "report"):
        yield (
            "rollout.vllm.kv_cache_dtype",
            "the engine samples from other probabilities than the learner computes, and nothing corrects it: set "
            "algorithm.old_logprobs=learner and algorithm.correction.kind=truncate, or take this out",
        )
    for section in ("rollout", "validation") if kind in ("vllm", "vllm_server") else ():
        if not 0.01 <= getattr(r, section).temperature <= 2:
            move = "vLLM knows temperatures from 0.01 to 2; change it, or set rollout.engine: embedded"
            yield f"{section}.temperature", move
    for name, value in rollout.vllm.engine_args.items():
        key = f"rollout.vllm.engine_args.{name}"
        if name in OF_THE_ENGINE:
            yield key, f"set {OF_THE_ENGINE[name]} instead"
        if name in _FIXED:
            yield key, f"is fixed here as {_FIXED[name]}; take it out"
        if (_ONE.fullmatch(name) and value not in (None, 1)) or (_ELSEWHERE.fullmatch(name) and value):
            several = "for several devices there is rollout.vllm.tensor_parallel_size"
            yield key, f"does not work with vLLM in the trainer's process; take it out ({several})"


def long_warmup(section: str, warmup: int, total: int, rate: float, of: str = "steps") -> str | None:
    """Return a message on a warm-up that takes half of the run or more, as in a short trial; None on any other.

    Args:
        section: of the settings, ``learner`` or ``sft``.
        warmup: its length.
        total: the run's length, in the same unit.
        rate: learning rate after the warm-up.
        of: the unit, in words.
    """
    if not warmup or not 0 < total <= 2 * warmup:
        return None
    peak, short = f"{section}.learning_rate = {rate:.2g}", f"{section}.warmup={total // 10}"
    if total < warmup:
        said = f"all {total:,} {of}: the learning rate ends at {rate * total / warmup:.2g} and never reaches {peak}"
    else:
        said = f"{warmup:,} of the {total:,} {of}: only then the learning rate is at {peak}"
    return f"warm-up ({section}.warmup = {warmup:,}) takes {said}. A short trial learns more with {short}"


def schedule_steps(r: Recipe) -> int:
    """Return the steps of the learning rate's schedule in the whole run, in its own unit."""
    prompts = r.rollout.prompts_per_step
    per_step = r.learner.epochs_per_rollout * -(-prompts // (r.learner.minibatch_prompts or prompts))
    return r.trainer.steps * (per_step if r.learner.schedule_unit == "optimizer" else 1)


def _learner(r: Recipe) -> Broken:
    learner = r.learner
    for n, beta in enumerate(learner.betas):
        if not 0 <= beta < 1:
            yield "learner.betas", f"number {n} must lie in [0, 1)"
            break
    if learner.schedule != "constant" and learner.warmup >= schedule_steps(r) > 0:
        steps = f"{schedule_steps(r)} steps (trainer.steps = {r.trainer.steps})"
        yield "learner.warmup", f"the run ends after {steps}, so the {learner.schedule} schedule never starts"
    if re.fullmatch(r"mps(:\d+)?", r.model.device):
        yield "model.device", f"Apple's GPU is not supported: {NO_MPS}"
    elif not re.fullmatch(r"auto|cpu|cuda(:\d+)?", r.model.device):
        yield "model.device", "expected `auto`, `cpu`, `cuda` or `cuda:N`"


RECORDING = tuple(name for name, known in ENGINES.items() if known.records_experts)
"""Engines that can give the experts of each token."""


def _experts(r: Recipe) -> Broken:
    """Refuse routers that have nothing to repeat."""
    replay, key = r.learner.router_replay, "learner.router_replay"
    if replay == "off":
        return
    if r.run.stage == "sft":
        yield key, "repeats what a rollout chose, and supervised training has none; set it off"
    elif replay == "sampler" and Deployment(r).engine not in RECORDING:
        yield (
            key,
            f"needs the experts of each token, which rollout.engine = {r.rollout.engine} does not give; set "
            f"rollout.engine to {' or '.join(RECORDING)}, or {key}: learner",
        )
    elif replay == "learner" and ratio_against(r) != "learner":
        yield (
            key,
            "repeats the passes that compute the old log-probabilities, and this run takes those of the engine; set "
            f"algorithm.old_logprobs: learner, or {key}: sampler",
        )
    elif replay == "learner" and _rows_move(r):
        yield (
            key,
            f"keeps choices on the rank that made them, and with learner.epochs_per_rollout = "
            f"{r.learner.epochs_per_rollout} and several minibatches later passes take rows to other ranks; set "
            f"learner.minibatch_prompts: null, or {key}: sampler",
        )


def _rows_move(r: Recipe) -> bool:
    mini = r.learner.minibatch_prompts
    several = mini is not None and mini < r.rollout.prompts_per_step
    return r.learner.ranks > 1 and r.learner.epochs_per_rollout > 1 and several


def _names(r: Recipe) -> Broken:
    name = r.run.name
    if not name.strip() or "/" in name or name in (".", ".."):
        yield "run.name", "names one folder inside run.dir; put the path into run.dir"
    elif not name.isprintable():
        yield "run.name", "holds a character that cannot be seen; use letters, digits, `-` and `_`"
    elif name[0] in ".-":
        yield "run.name", "begins with a dot (a hidden folder) or a dash (an option); use another"
    elif len(name.encode()) > _LONGEST_NAME:
        yield "run.name", f"is {len(name.encode())} bytes long; a folder takes {_LONGEST_NAME}"
    if not r.run.dir.strip() or not r.run.dir.isprintable():
        yield "run.dir", "expected the path of a folder, without characters that cannot be seen"


def _trackers(r: Recipe) -> Broken:
    kinds = [tracker.kind for tracker in r.logging.trackers]
    for n, tracker in enumerate(r.logging.trackers):
        if tracker.kind in kinds[:n]:
            yield f"logging.trackers.{n}.kind", "is named twice; take one of them out"
        if r.logging.also and tracker.kind not in TRACKERS:
            own = f"{tracker.kind} gets the numbers as they are; compute them in it"
            yield "logging.also", f"is for trackers by name, and {own}"
        if tracker.project is not None and tracker.kind not in WITH_PROJECTS:
            yield f"logging.trackers.{n}.project", f"{tracker.kind} has no projects"


_LONGEST_NAME = 200
"""Bytes: file systems take 255, and a run moved aside gets a number."""
_MOST_RESPONSES = 4_194_304
"""Of a step, all in memory."""


def _counts(r: Recipe) -> Broken:
    rollout = r.rollout
    if rollout.prompts_per_step * rollout.group_size > _MOST_RESPONSES:
        count = f"{rollout.prompts_per_step:,} x {rollout.group_size:,} responses a step"
        yield "rollout.group_size", f"makes {count}, more than the {_MOST_RESPONSES:,} that a step may have"
    for n, token in enumerate(rollout.stop_token_ids or []):
        if token < 0:
            yield "rollout.stop_token_ids", f"number {n} is {token}; token ids begin at 0"
    if rollout.stop_token_ids == []:
        move = "name the tokens, or null for the model's own"
        yield "rollout.stop_token_ids", f"is empty, so every response would run to the limit; {move}"
    for n, text in enumerate(rollout.stop):
        if not text or text in rollout.stop[:n]:
            yield f"rollout.stop.{n}", "is empty" if not text else "stands there twice"


_OF_THE_ALGORITHM = (_batch, _group, _dynamic_sampling, _length, _scaling, _sampling)
RULES = (_names, _trackers, _counts, *_OF_THE_ALGORITHM, _engine, _learner, _experts)
