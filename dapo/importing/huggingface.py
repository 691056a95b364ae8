"""TRL's and ms-swift's keys that only mean something together: both are trainers of transformers, with its sizes.

A generation batch is ``per_device_train_batch_size`` x devices x ``steps_per_generation`` responses, an optimiser step
``per_device_train_batch_size`` x devices x ``gradient_accumulation_steps`` of them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from dapo.importing import common, teacher
from dapo.importing.common import DS, FIX, LOSS
from dapo.importing.reading import Reading, SourceValue

_RIGHT = re.compile("accura|correct|answer|solv", re.IGNORECASE)
"""Names of functions that say whether an answer is right."""
_MODES = {
    "token_truncate": ("truncate", "cap"),
    "sequence_truncate": ("truncate_sequence", "sequence_cap"),
    "token_mask": ("mask_token", "cap"),
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values that one of the two takes by default.

    TRL: `trainer/grpo_config.py` of 1.16.0; ms-swift: `arguments/rlhf_args.py`, `tuner_args.py`,
    `trainers/arguments.py` and `rlhf_trainers/args_mixin.py` of 4.6.0; sizes and epochs
    that neither names: transformers' `TrainingArguments`.
    """

    per_device: int
    loss: str
    beta: float
    learning_rate: float
    betas: tuple[float, float]
    schedule: str
    tuner: str


TRL = Defaults(8, "dapo", 0.0, 1e-6, (0.9, 0.999), "linear", "full")
SWIFT = Defaults(1, "grpo", 0.04, 1e-5, (0.9, 0.95), "cosine", "lora")


def convert_trl(r: Reading) -> None:
    """Write every line that needs several keys of TRL, or one of its defaults."""
    _convert(r, TRL)
    common.no_filter(r)
    r.say("TRL has no dynamic sampling: algorithm.dynamic_sampling.mode=filter adds it")
    _trl_correction(r)


def convert_swift(r: Reading) -> None:
    """Write every line that needs several keys of ms-swift, or one of its defaults."""
    _convert(r, SWIFT)
    method = r.text("rlhf_type", default="grpo")
    if method.value != "grpo":
        r.replace(method, "GRPO and its relatives are here")
    on = r.flag("dynamic_sample", default=False)
    times = r.count("max_resample_times", default=3)
    if on.value:
        r.put(f"{DS}.mode", "filter", on)
        r.put(f"{DS}.oversample", 1.0, note="ms-swift draws whole batches")
        r.put(f"{DS}.cap.groups", float(1 + times.value), times, note=f"the batch and {times.value} more, in P groups")
        r.put(f"{DS}.cap.then", "fill", note="ms-swift trains the first batch then; `fill` keeps the good groups found")
        common.whole_rounds(r)
        r.say("ms-swift keeps groups by the weighted sum of all rewards; here the accuracy decides, as in the paper")
        r.say("where groups are missing ms-swift draws a whole new batch; here so many groups as are missing are drawn")
    else:
        common.no_filter(r, on)
    teacher.swift(r)
    _swift_correction(r)


def _convert(r: Reading, d: Defaults) -> None:
    _sizes(r, d)
    _loss(r, d)
    _rewards(r)
    _running(r)
    _optimiser(r, d)


def _devices(r: Reading) -> SourceValue:
    found = r.source.processes
    if found.unread:
        return SourceValue(1, "", True, found.unread)
    if found.devices:
        nodes = f" on each of {found.nodes} machines" if found.nodes > 1 else ""
        return SourceValue(found.devices * found.nodes, f"from {found.devices} processes{nodes}", True)
    return SourceValue(1, "one device: nothing says how many (`--devices N`)", False)


def _sizes(r: Reading, d: Defaults) -> None:
    """Write batch and minibatch. `megatron rlhf` names the responses of an optimizer step, whatever the devices are."""
    group, slices = r.count("num_generations", default=8), r.number("steps_per_generation")
    if r.given("global_batch_size") or "global_batch_size" in r.source.unread:
        step = r.count("global_batch_size", default=16)
        generated = _product(step, slices) if slices else step
    else:
        per_device = r.count("per_device_train_batch_size", default=d.per_device)
        accumulated, devices = r.count("gradient_accumulation_steps", default=1), _devices(r)
        step = _product(per_device, accumulated, devices)
        generated = _product(per_device, slices or accumulated, devices)
    batch = r.number("generation_batch_size") or generated
    prompts = max(1, batch.value // group.value)
    note = f"{batch.value} responses / {group.value} of each prompt"
    if batch.value % group.value and not batch.unread:
        why = f"{batch.said[5:]} responses are no whole groups of {group.value}. `--devices N` gives the processes"
        batch = SourceValue(batch.value, "", True, why)
    r.put("rollout.prompts_per_step", prompts, batch, group, note=note)
    total = SourceValue(prompts, batch.said, batch.given, batch.unread)
    common.minibatch_of_responses(r, total, group, step)
    common.epochs_per_rollout(r, "num_iterations")


def _product(*founds: SourceValue) -> SourceValue:
    """Return the product of whole numbers, with all that they are from."""
    value = math.prod(int(found.value) for found in founds)
    said = ", ".join(found.said.removeprefix("from ") for found in founds)
    how = " x ".join(str(found.value) for found in founds)
    unread = next((found.unread for found in founds if found.unread), "")
    return SourceValue(value, f"from {said}: {how} = {value}", True, unread)


def _loss(r: Reading, d: Defaults) -> None:
    low, high = r.need("epsilon", "epsilon_low", default=0.2), r.number("epsilon_high")
    kind = r.text("loss_type", default=d.loss)
    reductions = {"grpo": "sequence_mean", "dapo": "token_mean", "dr_grpo": "constant", "bnpo": "micro_batch_mean"}
    reductions |= {"cispo": "token_mean", "sapo": "sequence_mean", "luspo": "sequence_sum"}
    if str(kind.value) in reductions or kind.unread:
        r.put(f"{LOSS}.reduction", reductions.get(str(kind.value)), kind)
    else:
        r.replace(kind, "has no counterpart; `algorithm.loss.reduction` keeps its default")
    if kind.value == "cispo":
        r.put(f"{LOSS}.kind", "cispo", kind)
        if high is not None:
            r.put(f"{LOSS}.cap", float(high.value), high, note="the ratio itself is bounded by it with cispo")
    else:
        note = "" if high else f"{r.title}'s epsilon_high is epsilon unless set"
        r.take("algorithm.clip.high", high or low, note=note)
    if kind.value == "bnpo":
        r.take(
            f"{LOSS}.reduction.sequences",
            r.count("per_device_train_batch_size", default=d.per_device),
            note="the micro-batch of one device",
        )
        r.put(f"{LOSS}.reduction.weighted", False, kind)
        r.say("bnpo is a mean over micro-batches; meant is algorithm.loss.reduction=token_mean, as in the paper")
    if kind.value == "sapo":
        common.other_loss(r, kind)
    level = r.text("importance_sampling_level", default="token")
    if level.value == "sequence":
        r.put(f"{LOSS}.ratio", "sequence", level)
    elif level.value != "token":
        r.drop(level, "ratios of tokens or of sequences are here")
    in_reward = r.flag("kl_in_reward", default=False)
    common.kl(r, r.need("beta", default=d.beta), None, in_reward=in_reward if in_reward.value else False)
    common.plain_learner_ratio(r)
    scale = r.text("scale_rewards", default="group")
    words = {"group": "group_std", "true": "group_std", "batch": "batch_std", "none": "none", "false": "none"}
    if scale.value == "gdpo":
        common.estimator(r, scale, "group_std")
    elif not r.choose("algorithm.advantage.scale", scale, words):
        r.replace(scale, "rewards are divided by the group's deviation here")
    kind = r.text("advantage_estimator", default="grpo")
    if kind.value != "grpo":
        common.estimator(r, kind, r.lines["algorithm.advantage.scale"].value)


def _rewards(r: Reading) -> None:
    filtered = r.flag("overlong_filter", "mask_truncated_completions", default=False)
    common.overlong_filtering(r, filtered)
    funcs, weights = r.find("reward_funcs"), r.find("reward_weights")
    names = funcs.value if funcs and isinstance(funcs.value, list) else [funcs.value] if funcs else []
    factors = weights.value if weights and isinstance(weights.value, list) else [weights.value] if weights else []
    soft = next((n for n, name in enumerate(names) if "soft_overlong" in str(name)), None)
    longest = r.number("soft_max_length", "max_completion_length", default=512)
    cache = r.number("soft_cache_length")
    if soft is not None:
        if r.title == "TRL":
            longest, cache = _soft_lengths(r, str(names[soft]))
        if cache is not None:
            common.penalty(r, longest, cache, None, funcs)
            weight = factors[soft] if soft < len(factors) and isinstance(factors[soft], int | float) else 1.0
            r.put("algorithm.overlong_punishment.factor", float(weight), weights, note="its weight among the rewards")
        else:
            if r.title == "ms-swift":
                r.say("soft_overlong without soft_cache_length: ms-swift refuses it; a fifth of the limit is taken")
            r.put("algorithm.overlong_punishment.enabled", True, funcs)
    else:
        common.no_penalty(r, funcs)
        r.find("soft_cache_length")
    if funcs is not None and funcs.unread:
        r.put("rewards", [], funcs)
    else:
        _reward_functions(r, [name for n, name in enumerate(names) if n != soft], factors, (funcs, weights), soft)


def _reward_functions(
    r: Reading, names: list[Any], factors: list[Any], founds: tuple[SourceValue | None, ...], soft: int | None
) -> None:
    """Write functions of the file as rewards that are called as they are; name those that are code elsewhere."""
    weights = [factor for n, factor in enumerate(factors) if n != soft]
    rewards, lost = list[dict[str, Any]](), list[str]()
    for n, name in enumerate(map(str, names)):
        module = r.source.functions.get(name)
        if module is not None:
            rewards.append({"name": name, "kind": "function", "function": f"{module}:{name}"})
        elif "accuracy" in name or name == "reasoning_accuracy_reward":
            rewards.append({"name": "accuracy", "kind": "math"})
        else:
            lost.append(name)
            continue
        if n < len(weights) and isinstance(weights[n], int | float) and weights[n] != 1:
            rewards[-1]["weight"] = float(weights[n])
    if lost:
        r.cautions.append(
            f"reward functions that are lost: {', '.join(lost)}. Give yours as rewards.N.kind=function "
            "rewards.N.function=MODULE:NAME (docs/own_reward.md), and rewards.N.per=group where one compares the "
            "responses to a prompt"
        )
    if not rewards:
        common.reward(r, *founds)
        return
    if any(reward["kind"] == "function" for reward in rewards):
        r.say(
            f"{r.title} calls a reward function with all completions of a batch, and here it sees one response; one "
            "that compares the responses to a prompt needs rewards.N.per=group"
        )
    right = next((n for n, one in enumerate(rewards) if _RIGHT.search(one["name"])), 0)
    rewards[right]["name"], read = "accuracy", rewards[right]["name"]
    note = f"dynamic sampling and the report read {read} as `accuracy`" if read != "accuracy" else ""
    if note and len(rewards) > 1:
        r.say(f"{note}: give the name to another reward if that is not the one that says right or wrong")
    if len({reward["name"] for reward in rewards}) < len(rewards):
        rewards = [{**reward, "name": "accuracy" if n == right else f"reward_{n}"} for n, reward in enumerate(rewards)]
    r.put("rewards", rewards, *founds, note=note)


def _soft_lengths(r: Reading, called: str) -> tuple[SourceValue, SourceValue | None]:
    """Lmax, Lcache of ``get_soft_overlong_punishment(...)``, the larger number first; of its name TRL's constants."""
    if "(" not in called:
        said = "TRL's constant for the command line"
        return SourceValue(1280, said, False), SourceValue(256, said, False)
    numbers = [int(n) for n in re.findall(r"\b\d{1,9}\b", called)]
    if len(numbers) == 2:
        said = f"from reward_funcs {called}"
        return SourceValue(max(numbers), said, True), SourceValue(min(numbers), said, True)
    r.say(
        f"{called}: its lengths are known only when it runs; the response limit and a fifth of it are taken: set "
        "algorithm.overlong_punishment.max_length and .cache_length"
    )
    return r.need("max_completion_length", default=512), None


def _optimiser(r: Reading, d: Defaults) -> None:
    lora = r.text("train_type", "tuner_type", default=d.tuner)
    rate = r.need(
        "learning_rate", "lr", default=1e-4 if r.title == "ms-swift" and lora.value == "lora" else d.learning_rate
    )
    r.take("learner.learning_rate", rate)
    first, second = r.need("adam_beta1", default=d.betas[0]), r.need("adam_beta2", default=d.betas[1])
    r.put("learner.betas", [first.value, second.value], first, second)
    common.optimizer(r, "optim")
    kind = r.text("lr_scheduler_type", "lr_decay_style", default=d.schedule)
    warmup, share = r.number("warmup_steps", "lr_warmup_iters"), r.number("warmup_ratio", "lr_warmup_fraction")
    note = f"{r.title}'s scheduler counts optimiser steps"
    common.schedule(r, kind, unit="optimizer", warmup=warmup, share=share, note=note)
    least, ratio = r.number("min_lr"), r.number("min_lr_rate")
    if r.lines["learner.schedule"].value != "constant" and rate.value:
        r.take("learner.final_ratio", ratio)
        r.take("learner.final_ratio", least, lambda value: value / rate.value)
    _adapter(r, lora)


def _adapter(r: Reading, kind: SourceValue) -> None:
    """Defaults of ms-swift's ``tuner_args.py``, TRL's ``model_config.py``, PEFT's ``lora/config.py``."""
    names, targets = "lora_rank lora_alpha lora_dropout", "target_modules"
    if r.title == "ms-swift":
        on = SourceValue(kind.value in ("lora", "adalora"), kind.said, kind.given)
        r.drop(None if on.value else kind, "all weights are trained, as without model.lora", idle=kind.value == "full")
        common.lora(r, "", f"{names} {targets}", on=on, rank=8, alpha=32, dropped=0.05)
        return
    names = names.replace("lora_rank", "lora_r")
    if "LoraConfig" in r.source.words:
        common.lora(r, "", f"{names} {targets}", on=SourceValue(True, "from LoraConfig", True), rank=8, alpha=8)
    else:
        on = r.flag("use_peft", default=False)
        common.lora(r, "", f"{names} lora_{targets}", on=on, rank=16, alpha=32, dropped=0.05)
    if "model.lora.rank" in r.lines and "model.lora.target_modules" not in r.lines:
        r.say(
            "TRL leaves the adapted layers to PEFT, by architecture (query and value, mostly); here all linear ones are"
        )


def _entropy_and_reference(r: Reading) -> None:
    """Read TRL's adaptive entropy, and a reference that follows the policy, if it replaces and does not mix."""
    adapts, target = r.flag("use_adaptive_entropy", default=False), r.number("entropy_target")
    if adapts.value and target is not None:
        r.put("algorithm.entropy_control.target", float(target.value), target, adapts)
    follows, steps = r.flag("sync_ref_model", default=False), r.count("ref_model_sync_steps", default=512)
    mixed = r.need("ref_model_mixup_alpha", default=0.6)
    if follows.value and mixed.value == 1:
        every = max(1, steps.value // common.optimizer_steps(r))
        note = f"optimiser steps of {r.title}, training steps here"
        r.put("algorithm.reference.refresh_every", every, steps, follows, note=note)
    elif follows.value:
        r.drop(follows, "mixes reference and policy: algorithm.reference.refresh_every replaces the reference")


def _running(r: Reading) -> None:
    common.top_k(r, "top_k")
    _engine(r)
    _entropy_and_reference(r)
    _evaluation(r)
    half = r.flag("bf16", default=True)
    dtype = r.text("torch_dtype", "dtype", default="bfloat16" if half.value else "float32")
    dtypes = {"bfloat16": "bfloat16", "float32": "float32", "auto": "bfloat16"}
    r.choose("model.dtype", dtype if dtype.given else SourceValue(dtype.value, half.said, half.given), dtypes)
    _train_data(r)
    steps, epochs = r.number("max_steps", "train_iters"), r.number("num_train_epochs", "max_epochs", default=3)
    limited = steps is not None and steps.value > 0
    common.end(r, steps, None if limited else epochs, per=common.optimizer_steps(r))
    if r.title == "ms-swift":
        _prompt(r)
    common.trackers(r, r.find("report_to"), otherwise="huggingface")
    common.run_name(r, r.find("run_name"))


def _engine(r: Reading) -> None:
    used, mode = r.flag("use_vllm", default=False), r.text("vllm_mode", default="colocate")
    url = r.find("vllm_server_base_url")
    host, port = r.text("vllm_server_host", default="localhost"), r.count("vllm_server_port", default=8000)
    if used.value and mode.value == "server":
        r.put("rollout.engine", "vllm_server", used, mode)
        address = f"http://{host.value}:{port.value}" if url is None else str(url.value)
        r.put("rollout.server.url", address, *((host, port) if url is None else (url,)))
    elif used.value:
        r.put("rollout.engine", "vllm", used)
    else:
        r.put("rollout.engine", "embedded", used, note=f"{r.title} generates with transformers then")
    common.engine_args(r, "vllm_engine_kwargs")


def _evaluation(r: Reading) -> None:
    """Write when to save and to evaluate, in steps of ours; ms-swift evaluates when it saves, TRL when it logs."""
    follows = r.title == "ms-swift" and r.given("val_dataset")
    strategy = r.text("eval_strategy", default="steps" if follows else "no")
    saved, evaluated = r.number("save_steps"), r.number("eval_steps")
    if evaluated is None and strategy.value == "no":
        note = f"{r.title} evaluates never; dapo before the first step and after the last"
        r.put("validation.every", 0, strategy, note=note)
    elif evaluated is None and follows:
        evaluated = saved or r.need("save_steps", default=500)
    elif evaluated is None and r.title == "TRL":
        evaluated = r.need("logging_steps", default=10)
    per = common.optimizer_steps(r)
    for ours, found in (("checkpoint.every", saved), ("validation.every", evaluated)):
        if found is not None and found.value >= 1:
            note = f"{found.value} optimiser steps of {per} a training step" if per > 1 else ""
            r.put(ours, max(1, int(found.value) // per), found, note=note)


def _prompt(r: Reading) -> None:
    """Read ms-swift's system prompt, which may be the name of a file with the text, and its switch of thinking."""
    system = r.find("system")
    if system is not None and str(system.value).endswith(".txt"):
        text = r.source.text_of(str(system.value))
        why = "" if text else f"{system.said[5:]} is a file with the text, which is not here"
        system = SourceValue(text, f"{system.said}, the file's text", True, why)
    r.take("data.system_prompt", system, str)
    thinks = r.flag("enable_thinking", default=True)
    if thinks.given:
        r.put("data.chat_template_kwargs", {"enable_thinking": thinks.value}, thinks)


def _train_data(r: Reading) -> None:
    """Name the data; a data set of the hub may have a configuration and a split."""
    found = r.find("dataset", "train_dataset", "dataset_name")
    part, split = (r.find("dataset_config"), r.find("dataset_train_split")) if r.title == "TRL" else (None, None)
    if found is not None and part is not None and isinstance(found.value, str):
        found = SourceValue(f"{found.value}:{part.value}", f"{found.said}, {part.said.removeprefix('from ')}", True)
    common.data(r, "train", found, split)
    common.data(r, "validation", r.find("val_dataset", "eval_dataset"), r.find("eval_split"))


def _trl_correction(r: Reading) -> None:
    on = r.flag("vllm_importance_sampling_correction", default=True)
    mode = r.text("vllm_importance_sampling_mode", default="sequence_mask")
    cap = r.need("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max", default=3.0)
    floor = r.number("vllm_importance_sampling_clip_min")
    if r.lines["rollout.engine"].value == "embedded" or not on.value:
        mode = SourceValue("", mode.said, False)
    _correct(r, "off_policy_mask_threshold", mode, cap, floor)


def _swift_correction(r: Reading) -> None:
    mode = r.text("rollout_importance_sampling_mode", default="")
    cap = r.need("rollout_importance_sampling_threshold", default=2.0)
    _correct(r, "off_policy_sequence_mask_delta", mode, cap)


def _correct(r: Reading, key: str, mode: SourceValue, cap: SourceValue, floor: SourceValue | None = None) -> None:
    """Write the correction of ``mode``, or the off-policy sequence mask of ``key``, which goes before it."""
    threshold, kind = r.number(key), _MODES.get(str(mode.value))
    if threshold is not None:
        r.put(f"{FIX}.kind", "mask_off_policy", threshold)
        r.put(f"{FIX}.threshold", float(threshold.value), threshold)
        if mode.value:
            r.say(f"{key} and {mode.value}: {r.title} multiplies both; this recipe has one correction, the mask")
    elif kind is not None:
        r.put(f"{FIX}.kind", kind[0], mode)
        r.put(f"{FIX}.{kind[1]}", float(cap.value), cap)
        if kind[0] == "mask_token":
            note = "" if floor else f"{r.title} has no lower bound"
            r.put(f"{FIX}.floor", float(floor.value) if floor else 0.0, floor, note=note)
    elif mode.value:
        r.put(f"{FIX}.kind", "none", mode, note=f"{r.title} has another correction")
        r.say(
            f"{mode.value} drops sequences by the product of their ratios (bound {cap.value:g}), which drifts with the "
            "length, and is not here: algorithm.correction.kind=mask_sequence goes by the geometric mean"
        )
