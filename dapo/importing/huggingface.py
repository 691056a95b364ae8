"""TRL's and ms-swift's keys that only mean something together: both are trainers of transformers, with its sizes.

A generation batch is ``per_device_train_batch_size`` x devices x ``steps_per_generation`` responses, an optimiser step
``per_device_train_batch_size`` x devices x ``gradient_accumulation_steps`` of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dapo.importing import shared
from dapo.importing.reading import Reading, SourceValue
from dapo.importing.shared import DS, FIX, LOSS

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
    temperature: float
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    schedule: str
    epochs: int


TRL = Defaults(8, "dapo", 0.0, 1.0, 1e-6, 0.0, (0.9, 0.999), "linear", 3)
SWIFT = Defaults(1, "grpo", 0.04, 0.9, 1e-5, 0.1, (0.9, 0.95), "cosine", 3)


def convert_trl(r: Reading) -> None:
    """every line that needs several keys of TRL, or one of its defaults."""
    _convert(r, TRL)
    shared.no_filter(r)
    r.say("TRL has no dynamic sampling: algorithm.dynamic_sampling.mode=filter adds it")
    _trl_correction(r)


def convert_swift(r: Reading) -> None:
    """Write every line that needs several keys of ms-swift, or one of its defaults."""
    _convert(r, SWIFT)
    method = r.text("rlhf_type", default="grpo")
    if method.value == "grpo":
        r.drop(method, "a recipe is GRPO or a relative", idle=True)
    else:
        r.replace(method, "GRPO and its relatives are here")
    on = r.flag("dynamic_sample", default=False)
    times = r.count("max_resample_times", default=3)
    if on.value:
        r.put(f"{DS}.mode", "filter", on)
        r.put(f"{DS}.oversample", 1.0, note="ms-swift draws whole batches")
        r.put(f"{DS}.cap.groups", float(1 + times.value), times, note=f"the batch and {times.value} more, in P groups")
        r.put(f"{DS}.cap.then", "fill", note="ms-swift trains the first batch then; `fill` keeps the good groups found")
        shared.whole_rounds(r)
        r.say("ms-swift keeps groups by the weighted sum of all rewards; here the accuracy decides, as in the paper")
        r.say("where groups are missing ms-swift draws a whole new batch; here so many groups as are missing are drawn")
    else:
        shared.no_filter(r, on)
    _swift_correction(r)


def _convert(r: Reading, d: Defaults) -> None:
    _sizes(r, d)
    _loss(r, d)
    _rewards(r)
    _optimiser(r, d)
    _running(r, d)


def _devices(r: Reading) -> SourceValue:
    if r.source.devices:
        nodes = f" on each of {r.source.nodes} machines" if r.source.nodes > 1 else ""
        return SourceValue(r.source.devices * r.source.nodes, f"from {r.source.devices} processes{nodes}", True)
    return SourceValue(1, "one device: nothing says how many (`--devices N`)", False)


def _sizes(r: Reading, d: Defaults) -> None:
    group = r.count("num_generations", default=8)
    if r.given("global_batch_size") or "global_batch_size" in r.source.unread:
        _megatron_sizes(r, group)
        return
    per_device = r.count("per_device_train_batch_size", default=d.per_device)
    accumulated = r.count("gradient_accumulation_steps", default=1)
    devices = _devices(r)
    slices = r.number("steps_per_generation") or accumulated
    rows = per_device.value * accumulated.value * devices.value
    whole = r.number("generation_batch_size")
    batch = int(whole.value) if whole is not None else per_device.value * slices.value * devices.value
    founds = (whole, group) if whole is not None else (per_device, slices, devices, group)
    how = f"{batch} responses / {group.value} of each prompt"
    if whole is None:
        how = f"{per_device.value} x {slices.value} x {devices.value} = {how}"
    prompts = max(1, batch // group.value)
    if batch % group.value:
        r.say(f"{batch} responses are no whole groups of {group.value}; {r.title} refuses that")
    r.put("rollout.prompts_per_step", prompts, *founds, note=how)
    r.put("rollout.group_size", group.value, group)
    said = f"{per_device.value} x {accumulated.value} x {devices.value} = {rows}"
    unread = next((found.unread for found in (*founds, accumulated) if found.unread), "")
    total = SourceValue(prompts, per_device.said, per_device.given, unread)
    founds_of_mini = [f.said for f in (per_device, accumulated, devices)]
    step = SourceValue(rows, f"from {', '.join(s.removeprefix('from ') for s in founds_of_mini)}: {said}", True)
    shared.minibatch_of_responses(r, total, group, step)
    _lengths(r)


def _megatron_sizes(r: Reading, group: SourceValue) -> None:
    """Read `megatron rlhf`: an optimizer step has ``global_batch_size`` responses, whatever the devices are."""
    step, slices = r.count("global_batch_size", default=16), r.count("steps_per_generation", default=1)
    whole = r.number("generation_batch_size")
    batch = int(whole.value) if whole is not None else step.value * slices.value
    prompts = max(1, batch // group.value)
    founds = (whole, group) if whole is not None else (step, slices, group)
    how = f"{batch} responses / {group.value} of each prompt"
    r.put("rollout.prompts_per_step", prompts, *founds, note=how)
    r.put("rollout.group_size", group.value, group)
    unread = next((found.unread for found in founds if found is not None and found.unread), "")
    shared.minibatch_of_responses(r, SourceValue(prompts, step.said, step.given, unread), group, step)
    _lengths(r)


def _lengths(r: Reading) -> None:
    shared.epochs_per_rollout(r, "num_iterations")
    r.take("rollout.max_response_tokens", r.count("max_completion_length", default=512))
    r.take(
        "data.max_prompt_tokens",
        r.number("max_prompt_length") or (r.number("max_length") if r.title == "ms-swift" else None),
    )


def _loss(r: Reading, d: Defaults) -> None:
    low = r.number("epsilon", "epsilon_low", default=0.2)
    high = r.number("epsilon_high")
    assert low is not None
    kind = r.text("loss_type", default=d.loss)
    reductions = {"grpo": "sequence_mean", "dapo": "token_mean", "dr_grpo": "constant", "bnpo": "micro_batch_mean"}
    reductions |= {"cispo": "token_mean", "sapo": "sequence_mean"}
    if str(kind.value) in reductions or kind.unread:
        r.put(f"{LOSS}.reduction", reductions.get(str(kind.value)), kind)
    else:
        r.replace(kind, "has no counterpart; `algorithm.loss.reduction` keeps its default")
    r.put("algorithm.clip.low", low.value, low)
    if kind.value == "cispo":
        r.put(f"{LOSS}.kind", "cispo", kind)
        if high is not None:
            r.put(f"{LOSS}.cap", float(high.value), high, note="the ratio itself is bounded by it with cispo")
    elif high is not None:
        r.put("algorithm.clip.high", high.value, high)
    else:
        r.put("algorithm.clip.high", low.value, low, note=f"{r.title}'s epsilon_high is epsilon unless set")
    if kind.value == "bnpo":
        r.take(
            f"{LOSS}.reduction.sequences",
            r.count("per_device_train_batch_size", default=d.per_device),
            note="the micro-batch of one device",
        )
        r.put(f"{LOSS}.reduction.weighted", False, kind)
        r.say("bnpo is a mean over micro-batches; meant is algorithm.loss.reduction=token_mean, as in the paper")
    other = kind.value == "sapo" and shared.other_loss(r, kind)
    dual = r.number("delta")
    if other:
        r.drop(dual, "a bound of the clipped loss, which sapo has not")
    elif dual is not None:
        r.put(
            "algorithm.clip.dual", float(dual.value), dual, note="the bound of the ratio, as c for negative advantages"
        )
    level = r.text("importance_sampling_level", default="token")
    if level.value == "sequence":
        r.put(f"{LOSS}.ratio", "sequence", level)
    elif level.value != "token":
        r.drop(level, "ratios of tokens or of sequences are here")
    in_reward = r.flag("kl_in_reward", default=False)
    shared.kl(r, r.need("beta", default=d.beta), None, in_reward=in_reward if in_reward.value else False)
    shared.plain_learner_ratio(r)
    scale = r.text("scale_rewards", default="group")
    words = {"group": "group_std", "true": "group_std", "batch": "batch_std", "none": "none", "false": "none"}
    if scale.value == "gdpo":
        shared.estimator(r, scale, "group_std")
    elif not r.choose("algorithm.advantage.scale", scale, words):
        r.replace(scale, "rewards are divided by the group's deviation here")
    r.put("algorithm.advantage.eps", 1e-4, note=f"{r.title}'s constant")
    kind = r.text("advantage_estimator", default="grpo")
    if kind.value != "grpo":
        shared.estimator(r, kind, r.lines["algorithm.advantage.scale"].value)


def _rewards(r: Reading) -> None:
    filtered = r.flag("overlong_filter", "mask_truncated_completions", default=False)
    shared.overlong_filtering(r, filtered)
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
            shared.penalty(r, longest, cache, None, funcs)
            weight = factors[soft] if soft < len(factors) and isinstance(factors[soft], int | float) else 1.0
            r.put("algorithm.overlong_punishment.factor", float(weight), weights, note="its weight among the rewards")
        else:
            if r.title == "ms-swift":
                r.say("soft_overlong without soft_cache_length: ms-swift refuses it; a fifth of the limit is taken")
            r.put("algorithm.overlong_punishment.enabled", True, funcs)
    else:
        shared.no_penalty(r, funcs)
        r.find("soft_cache_length")
    r.put("algorithm.reward_scaling.enabled", False, note="rewards are taken as they are there; to -1 and 1 here")
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
            "rewards.N.function=MODULE:NAME (docs/own_reward.md)"
        )
    if not rewards:
        shared.reward(r, *founds)
        return
    rewards[0]["name"], first = "accuracy", rewards[0]["name"]
    note = f"dynamic sampling and the report read {first} as `accuracy`" if first != "accuracy" else ""
    if len({reward["name"] for reward in rewards}) < len(rewards):
        rewards = [{**reward, "name": "accuracy" if n == 0 else f"reward_{n}"} for n, reward in enumerate(rewards)]
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
    lora = r.text("train_type", "tuner_type", default="lora" if r.title == "ms-swift" else "full")
    rate = 1e-4 if r.title == "ms-swift" and lora.value == "lora" else d.learning_rate
    r.take("learner.learning_rate", r.need("learning_rate", "lr", default=rate))
    decay, norm = r.need("weight_decay", default=d.weight_decay), r.need("max_grad_norm", "clip_grad", default=1.0)
    r.put("learner.weight_decay", decay.value, decay)
    r.put("learner.max_grad_norm", float(norm.value), norm)
    first, second = r.need("adam_beta1", default=d.betas[0]), r.need("adam_beta2", default=d.betas[1])
    r.put("learner.betas", [first.value, second.value], first, second)
    shared.optimizer(r, "optim")
    r.take("learner.eps", r.number("adam_epsilon", "adam_eps"))
    steps = r.number("max_steps", "train_iters")
    warmup: SourceValue | None
    warmup, share = r.number("warmup_steps", "lr_warmup_iters"), r.number("warmup_ratio", "lr_warmup_fraction")
    if (warmup is None or not warmup.value) and share is not None and share.value:
        if steps is not None and steps.value > 0:
            warmup = SourceValue(share.value * steps.value, share.said, True, share.unread or steps.unread)
        else:
            warmup = shared.share_of_steps(share)
    warmup = warmup if warmup is not None else SourceValue(0, f"{r.title}'s default of warmup_steps", False)
    kind = r.text("lr_scheduler_type", "lr_decay_style", default=d.schedule)
    shared.schedule(r, kind, unit="optimizer", warmup=warmup, note=f"{r.title}'s scheduler counts optimiser steps")
    least, rate_line = r.number("min_lr"), r.lines["learner.learning_rate"]
    if least is not None and r.lines["learner.schedule"].value != "constant" and rate_line.value:
        r.put("learner.final_ratio", least.value / rate_line.value, least)
    _adapter(r, lora)


def _adapter(r: Reading, kind: SourceValue) -> None:
    """Defaults of ms-swift's ``tuner_args.py``, TRL's ``model_config.py``, PEFT's ``lora/config.py``."""
    names = {"rank": "lora_rank", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}
    if r.title == "ms-swift":
        on = SourceValue(kind.value in ("lora", "adalora"), kind.said, kind.given)
        shared.lora(r, "", names, on=on, rank=8, alpha=32, dropped=0.05)
        return
    names["rank"] = "lora_r"
    if "LoraConfig" in r.source.words:
        on = SourceValue(True, "from LoraConfig", True)
        shared.lora(r, "", names, on=on, rank=8, alpha=8)
    else:
        names["targets"] = "lora_target_modules"
        shared.lora(r, "", names, on=r.flag("use_peft", default=False), rank=16, alpha=32, dropped=0.05)
    if "model.lora.rank" in r.lines and "model.lora.target_modules" not in r.lines:
        r.say(
            "TRL leaves the adapted layers to PEFT, by architecture (query and value, mostly); here all linear ones are"
        )


def _entropy_and_reference(r: Reading) -> None:
    """Read TRL's adaptive entropy, and a reference that follows the policy, if it replaces and does not mix."""
    adapts, target = r.flag("use_adaptive_entropy", default=False), r.number("entropy_target")
    if adapts.value and target is not None:
        r.put("algorithm.entropy_control.target", float(target.value), target, adapts)
    else:
        r.drop(target, "use_adaptive_entropy is off", idle=True)
    follows, steps = r.flag("sync_ref_model", default=False), r.count("ref_model_sync_steps", default=512)
    mixed = r.need("ref_model_mixup_alpha", default=0.6)
    if follows.value and mixed.value == 1:
        every = max(1, steps.value // _optimiser_steps(r))
        r.put(
            "algorithm.reference.refresh_every",
            every,
            steps,
            follows,
            note="optimiser steps there, training steps here",
        )
    elif follows.value:
        r.drop(
            follows, f"mixes reference and policy, {mixed.value:g} of it: algorithm.reference.refresh_every replaces it"
        )
        r.drop(steps, "of that mixing")
        r.drop(mixed, "of that mixing")


def _running(r: Reading, d: Defaults) -> None:
    shared.sampling(r, r.need("temperature", default=d.temperature), r.number("top_p", default=1.0), r.number("top_k"))
    used = r.flag("use_vllm", default=False)
    r.find("bf16")
    mode = r.text("vllm_mode", default="colocate")
    url = r.find("vllm_server_base_url")
    if used.value and mode.value == "server":
        r.put("rollout.engine", "vllm_server", used, mode)
        host, port = r.text("vllm_server_host", default="localhost"), r.count("vllm_server_port", default=8000)
        if url is None:
            r.put("rollout.server.url", f"http://{host.value}:{port.value}", host, port)
        else:
            r.put("rollout.server.url", str(url.value), url)
    else:
        name = SourceValue("vllm" if used.value else "embedded", used.said, used.given)
        if used.value:
            shared.engine(r, name)
        else:
            r.put("rollout.engine", "embedded", name, note=f"{r.title} generates with transformers then")
    shared.engine_args(r, "vllm_engine_kwargs")
    _entropy_and_reference(r)
    for key, ours in (("save_steps", "checkpoint.every"), ("eval_steps", "validation.every")):
        found = r.number(key)
        if found is not None and found.value >= 1:
            per = _optimiser_steps(r)
            note = f"{found.value} optimiser steps of {per} a training step" if per > 1 else ""
            r.put(ours, max(1, int(found.value) // per), found, note=note)
    follows = r.title == "ms-swift" and r.given("val_dataset")
    strategy = r.text("eval_strategy", default="steps" if follows else "no")
    if strategy.value == "no" and not r.given("eval_steps"):
        r.put(
            "validation.every",
            0,
            strategy,
            note="no evaluation there; here one before the first step and one after the last",
        )
    elif strategy.given and r.title == "TRL" and not r.given("eval_steps"):
        steps = r.need("logging_steps", default=10)
        note = "eval_steps is logging_steps there unless set"
        r.put("validation.every", max(1, int(steps.value) // _optimiser_steps(r)), strategy, steps, note=note)
    elif follows and not r.given("eval_steps"):
        steps = r.need("save_steps", default=500)
        r.put("validation.every", max(1, int(steps.value) // _optimiser_steps(r)), strategy, steps)
    r.take("model.path", r.find("model_name_or_path", "model"), str)
    half = r.flag("bf16", default=True)
    dtype = r.text("torch_dtype", "dtype", default="bfloat16" if half.value else "float32")
    dtypes = {"bfloat16": "bfloat16", "float32": "float32", "auto": "bfloat16"}
    r.choose("model.dtype", dtype if dtype.given else SourceValue(dtype.value, half.said, half.given), dtypes)
    _train_data(r)
    split = r.find("eval_split")
    shared.data(
        r, "validation", r.find("val_dataset", "eval_dataset"), **({"split": str(split.value)} if split else {})
    )
    _steps(r, d)
    _prompt(r)
    shared.trackers(r, r.find("report_to"), otherwise="huggingface")
    shared.run_name(r, r.find("run_name"))
    r.take("run.seed", r.number("seed"), int)


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
    found, part, split = r.find("dataset", "train_dataset", "dataset_name"), None, None
    if r.title == "TRL":
        part, split = r.find("dataset_config"), r.find("dataset_train_split")
    if found is not None and part is not None and isinstance(found.value, str):
        found = SourceValue(f"{found.value}:{part.value}", f"{found.said}, {part.said.removeprefix('from ')}", True)
    elif part is not None:
        r.drop(part, "of a data set of the hub, which is not named")
    if found is not None and split is not None:
        found = SourceValue(found.value, f"{found.said}, {split.said.removeprefix('from ')}", True)
        shared.data(r, "train", found, split=str(split.value))
        return
    r.drop(split, "of a data set, which is not named: data.train.N.split")
    shared.data(r, "train", found)


def _optimiser_steps(r: Reading) -> int:
    prompts, mini = r.lines["rollout.prompts_per_step"].value, r.lines["learner.minibatch_prompts"].value
    epochs = r.lines.get("learner.epochs_per_rollout")
    return max(1, int(prompts) // int(mini)) * (1 if epochs is None else int(epochs.value))


def _steps(r: Reading, d: Defaults) -> None:
    steps = r.number("max_steps", "train_iters")
    epochs = r.number("num_train_epochs", "max_epochs", default=d.epochs)
    if steps is None or steps.value <= 0:
        shared.epochs_and_steps(r, None, epochs)
        return
    per = _optimiser_steps(r)
    note = f"{steps.value} optimiser steps / {per} of each training step" if per > 1 else ""
    r.put("trainer.steps", max(1, -(-int(steps.value) // per)), steps, note=note)


def _trl_correction(r: Reading) -> None:
    on = r.flag("vllm_importance_sampling_correction", default=True)
    mode = r.text("vllm_importance_sampling_mode", default="sequence_mask")
    cap = r.need("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max", default=3.0)
    floor = r.number("vllm_importance_sampling_clip_min")
    corrects = r.lines["rollout.engine"].value != "embedded" and bool(on.value)
    if not _off_policy_mask(r, "off_policy_mask_threshold", mode if corrects else None) and corrects:
        _correct(r, mode, cap, floor)


def _swift_correction(r: Reading) -> None:
    mode = r.text("rollout_importance_sampling_mode", default="")
    cap = r.need("rollout_importance_sampling_threshold", default=2.0)
    masked = _off_policy_mask(r, "off_policy_sequence_mask_delta", mode if mode.value else None)
    if mode.value and not masked:
        _correct(r, mode, cap)


def _off_policy_mask(r: Reading, key: str, mode: SourceValue | None) -> bool:
    """Write the off-policy sequence mask, if the source has one, and name the correction that it replaces."""
    threshold = r.number(key)
    if threshold is None:
        return False
    r.put(f"{FIX}.kind", "mask_off_policy", threshold)
    r.put(f"{FIX}.threshold", float(threshold.value), threshold)
    if mode is not None:
        r.say(f"{key} beside {mode.value}: {r.title} multiplies both, and one correction is taken here, the mask")
    return True


def _correct(r: Reading, mode: SourceValue, cap: SourceValue, floor: SourceValue | None = None) -> None:
    kind = _MODES.get(str(mode.value))
    if kind is None:
        r.put(f"{FIX}.kind", "none", mode, note="see below")
        r.say(
            f"{mode.value} drops sequences by the product of their ratios (bound {cap.value:g}), which drifts with the "
            "length, and is not here: algorithm.correction.kind=mask_sequence goes by the geometric mean"
        )
        return
    r.put(f"{FIX}.kind", kind[0], mode)
    r.put(f"{FIX}.{kind[1]}", float(cap.value), cap)
    if kind[0] == "mask_token" and floor is not None:
        r.put(f"{FIX}.floor", float(floor.value), floor)
    elif kind[0] == "mask_token":
        r.put(f"{FIX}.floor", 0.0, note="no lower bound there")
    else:
        r.drop(floor, f"a lower bound of weights; `{kind[0]}` has none")
