"""AReaL's keys that only mean something together. Defaults: its `api/cli_args.py`, 1.0.4."""

from __future__ import annotations

from dapo.importing import common
from dapo.importing.common import DS, FIX, LEN
from dapo.importing.reading import Reading, SourceValue

_SCALE = "algorithm.reward_scaling"


def convert(r: Reading) -> None:
    """Write every line that needs several keys of AReaL, or one of its defaults."""
    prompts = r.count("train_dataset.batch_size", default=1)
    r.put("rollout.prompts_per_step", prompts.value, prompts)
    parts = r.count("actor.ppo_n_minibatches", default=4)
    size = prompts.value // parts.value
    if size and prompts.value % parts.value == 0:
        note = f"{prompts.value} prompts / {parts.value} minibatches"
        r.put("learner.minibatch_prompts", size, parts, note=f"{note}; {parts.value} optimiser steps")
    else:
        r.put("learner.minibatch_prompts", prompts.value, prompts, note="one optimiser step")
        r.say(
            f"{parts.value} minibatches of {prompts.value} prompts are no whole groups; set learner.minibatch_prompts"
        )
    if parts.value > 1:
        r.say("AReaL splits by tokens, through groups; minibatches here are whole groups")
    _loss(r)
    _groups(r)
    _rewards(r)
    _running(r)
    _optimiser(r)
    where = r.find("scheduler.type", "launcher.type", "launcher")
    if where is not None and where.value == "ray":
        r.put("launch.backend", "ray", where)
    elif where is not None and where.value == "slurm":
        nodes = r.count("cluster.n_nodes", default=1)
        r.put("slurm.nodes", nodes.value, where, nodes, note="`dapo launch` submits the job")
    on, names = r.flag("actor.use_lora", default=False), "lora_rank lora_alpha lora_dropout target_modules"
    common.lora(r, "actor.", names, on=on, rank=32, alpha=16)


def _loss(r: Reading) -> None:
    high, low = r.number("actor.eps_clip_higher"), r.need("actor.eps_clip", default=0.2)
    note = "" if high else "AReaL's eps_clip_higher is eps_clip unless set"
    r.take("algorithm.clip.high", high or low, note=note)
    sapo = r.flag("actor.use_sapo_loss", default=False)
    if sapo.value:
        common.other_loss(r, SourceValue("sapo", sapo.said, True))
    level = r.text("actor.importance_sampling_level", default="token")
    if level.value == "sequence":
        r.put("algorithm.loss.ratio", "sequence", level)
    else:
        r.drop(level, "ratios of tokens or of sequences are here", idle=level.value == "token")
    estimator = r.text("actor.kl_estimator", default="k1")
    r.drop(estimator, "of the KL term in the reward, which is k1 here", idle=estimator.value == "k1")
    coefficient = r.need("actor.kl_ctl", default=0.1)
    common.kl(r, coefficient, None, in_reward=True)
    common.plain_learner_ratio(r)
    apart = r.flag("actor.use_decoupled_loss", default=False)
    again = r.flag("actor.recompute_logprob", default=False)
    if apart.value or again.value:
        r.put("algorithm.old_logprobs", "learner", *(found for found in (apart, again) if found.value))
    else:
        r.put("algorithm.old_logprobs", "sampler", apart, note="without them AReaL's ratio runs against the sampler")
        if r.need("gconfig.top_p", default=1.0).value != 1:
            r.put("algorithm.old_logprobs", "learner", note="top_p below 1 needs it here")
    method = r.text("actor.prox_logp_method", default="recompute")
    if apart.value and method.value == "loglinear":
        stale = r.number("rollout.max_head_offpolicyness", "max_head_offpolicyness", default=0)
        if stale is not None and stale.value >= 2:
            r.put("algorithm.old_logprobs", "interpolated", method, note="the same equation, by the same versions")
        else:
            r.put("algorithm.old_logprobs", "sampler", method, note="which loglinear is where nothing is older than 1")
    cap = r.number("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
    if cap is not None and apart.value:
        r.put(f"{FIX}.kind", "mask_token", cap, note="tokens above the cap carry no loss")
        r.put(f"{FIX}.cap", float(cap.value), cap)
        r.put(f"{FIX}.floor", 0.0, note="AReaL has no lower bound")
    _rejection(r, apart)


def _rejection(r: Reading, apart: SourceValue) -> None:
    where = "actor.rejection_sampling"
    level, action = r.text(f"{where}.level", default="token"), r.text(f"{where}.action", default="mask")
    upper, lower = r.need(f"{where}.upper", default=5.0), r.number(f"{where}.lower")
    metric = r.text(f"{where}.metric", default="ratio")
    mean = r.text(f"{where}.agg", default="mean")
    if not apart.value or not any(key.startswith(where) for key in r.source.settings):
        return
    kinds = {("token", "clamp"): "truncate", ("token", "mask"): "mask_token", ("sequence", "mask"): "mask_sequence"}
    kind = kinds.get((str(level.value), str(action.value)))
    if kind is None or metric.value != "ratio" or (kind == "mask_sequence" and mean.value != "mean"):
        r.replace(metric if metric.given else level, "this rejection has no counterpart: no correction is taken")
        return
    r.put(f"{FIX}.kind", kind, level, action)
    r.put(f"{FIX}.cap", float(upper.value), upper)
    if kind != "truncate":
        r.put(f"{FIX}.floor", float(lower.value) if lower else 0.0, lower)


def _groups(r: Reading) -> None:
    on = r.flag("actor.dynamic_sampling", default=False)
    varying = r.flag("dynamic_bs", "rollout.dynamic_bs", default=False)
    rule = r.find("dynamic_filter_fn", "should_accept_fn")
    if rule is not None:
        r.put(f"{DS}.mode", "mask" if varying.value else "filter", rule, varying)
        r.say(f"AReaL's rule {rule.value} is yours: algorithm.dynamic_sampling.keep=package.module:function takes it")
        if not varying.value:
            r.put(f"{DS}.cap.groups", None, note="no limit in AReaL; `dapo check` warns of it")
    elif on.value:
        r.put(f"{DS}.mode", "mask", on, note="AReaL drops such groups without replacing them; `filter` is the paper's")
        r.say(
            "actor.dynamic_sampling trains on what is left of a batch, in AReaL and with `mask`; the paper refills it: "
            "algorithm.dynamic_sampling.mode=filter"
        )
    else:
        common.no_filter(r, on)
        if varying.value:
            r.say(
                "dynamic_bs without a filter function accepts every group; with `0 < mean < 1` it is "
                "algorithm.dynamic_sampling.mode=mask"
            )
    _reward_norm(r)
    _advantage_norm(r)


def _reward_norm(r: Reading) -> None:
    norm, ours = "actor.reward_norm", "algorithm.advantage"
    if not _is_set(r, norm):
        r.put(f"{ours}.baseline", "none", note=f"AReaL normalises no reward without {norm}")
        r.put(f"{ours}.scale", "none", note="the same")
        return
    mean, std, left_out = _levels(r, norm)
    baselines = {"group": ("mean", "leave_one_out"), "batch": ("batch_mean", "batch_leave_one_out")}
    baseline = baselines.get(str(mean.value), ("none", "none"))[left_out.value]
    if baseline == "leave_one_out" and std.value == "group":
        size, eps = r.lines["rollout.group_size"].value, r.need(f"{norm}.eps", default=1e-5)
        baseline, note = "mean", "the deviation from the same means is n / (n - 1) times the group's, which cancels"
        r.put(f"{ours}.eps", eps.value * (size - 1) / size, eps, note=f"times (n - 1) / n, with n = {size}")
        r.put(f"{ours}.baseline", baseline, mean, left_out, note=note)
    else:
        r.put(f"{ours}.baseline", baseline, mean, left_out)
    r.choose(f"{ours}.scale", std, {"group": "group_std", "batch": "batch_std", "none": "none"})
    unbiased = r.flag(f"{norm}.std_unbiased", default=True)
    r.put(f"{ours}.ddof", 1 if unbiased.value else 0, unbiased)


def _advantage_norm(r: Reading) -> None:
    norm, ours = "actor.adv_norm", "algorithm.advantage_norm"
    if not _is_set(r, norm):
        return
    mean, std, left_out = _levels(r, norm)
    r.put(f"{ours}.mean", mean.value, mean)
    r.put(f"{ours}.std", std.value, std)
    r.put(f"{ours}.leave_one_out", left_out.value, left_out)
    unbiased = r.flag(f"{norm}.std_unbiased", default=True)
    r.put(f"{ours}.ddof", 1 if unbiased.value else 0, unbiased)
    r.take(f"{ours}.eps", r.need(f"{norm}.eps", default=1e-5))


def _is_set(r: Reading, norm: str) -> bool:
    r.find(norm)  # a null
    return any(key.startswith(f"{norm}.") for key in r.source.settings)


def _levels(r: Reading, norm: str) -> tuple[SourceValue, SourceValue, SourceValue]:
    """Return the levels of the mean and of the deviation, and whether the mean leaves each one out itself."""
    mean, std = _level(r, f"{norm}.mean_level"), _level(r, f"{norm}.std_level")
    size = r.count(f"{norm}.group_size", default=1)
    if "group" in (mean.value, std.value) and size.value != r.lines["rollout.group_size"].value and not size.unread:
        r.say(f"{norm}.group_size is {size.value} in AReaL; a group here is all responses to a prompt")
    return mean, std, r.flag(f"{norm}.mean_leave1out", default=False)


def _level(r: Reading, key: str) -> SourceValue:
    """Return the level of a normalisation; a null, which says nothing for other keys, switches it off."""
    given = r.source.settings.get(key)
    if given is not None and given.value is None:
        r.used.add(key)
        return SourceValue("none", f"from {key} = null", True)
    found = r.text(key, default="batch")
    if found.value not in ("batch", "group", "none") and not found.unread:
        r.replace(found, "AReaL knows batch, group and null; batch, its default, is taken")
        return SourceValue("batch", found.said, True)
    return found


def _rewards(r: Reading) -> None:
    bias, factor = r.need("actor.reward_bias", default=0.0), r.need("actor.reward_scaling", default=1.0)
    low, high = bias.value * factor.value, (1 + bias.value) * factor.value
    moved = (low, high) != (0, 1)
    r.put(f"{_SCALE}.enabled", moved and low < high, bias, factor)
    if moved and low < high:
        r.put(f"{_SCALE}.target_min", float(low), bias, factor, note=f"(0 + {bias.value:g}) x {factor.value:g}")
        r.put(f"{_SCALE}.target_max", float(high), bias, factor, note=f"(1 + {bias.value:g}) x {factor.value:g}")
    clip = r.number("actor.reward_clip")
    if clip is not None:
        wide = clip.value >= max(abs(low), abs(high))
        r.drop(clip, "cuts scaled rewards; those of 0 and 1 lie within it or are cut", idle=wide)
    on = r.flag("actor.overlong_reward_penalty", default=False)
    cache, own = r.number("actor.overlong_tokens"), r.number("actor.overlong_penalty_factor")
    limit = r.number("actor.max_new_tokens", default=1024)
    if not on.value or cache is None or own is None:
        common.no_penalty(r, on)
        if on.value:
            r.say("AReaL's penalty needs actor.overlong_tokens and actor.overlong_penalty_factor, which must be given")
    else:
        same = limit is not None and limit.value == r.lines["rollout.max_response_tokens"].value
        common.penalty(r, None if same else limit, cache, None, on)
        note = f"{own.value:g} x actor.reward_scaling = {factor.value:g}: AReaL scales the penalty, too"
        r.put(f"{LEN}.factor", float(own.value * factor.value), own, note=note if factor.value != 1 else "")
    common.reward(r, r.find("reward_fn", "train_dataset.reward_fn"))


def _optimiser(r: Reading) -> None:
    optim = "actor.optimizer"
    common.optimizer(r, f"{optim}.type")  # its adam is AdamW
    first, second = r.need(f"{optim}.beta1", default=0.9), r.need(f"{optim}.beta2", default=0.999)
    r.put("learner.betas", [first.value, second.value], first, second)
    kind, share = r.text(f"{optim}.lr_scheduler_type", default="constant"), r.number(f"{optim}.warmup_steps_proportion")
    common.end(r, r.number("total_train_steps"), r.number("total_train_epochs", default=1))
    common.schedule(r, kind, unit="rollout", share=share, note="AReaL's scheduler advances once a step")


def _running(r: Reading) -> None:
    common.top_k(r, "gconfig.top_k")
    backend = r.text("allocation_mode", "rollout.backend", default="sglang")
    common.engine(r, SourceValue("vllm" if "vllm" in backend.value else "sglang", backend.said, backend.given))
    stale = r.number("rollout.max_head_offpolicyness", "max_head_offpolicyness", default=0)
    if stale is not None and stale.value:
        common.staleness(r, stale, note="the same unit: versions of the weights")
    temperature = r.number("eval_gconfig.temperature")
    if temperature is not None and temperature.value == 0:
        r.put("validation.greedy", True, temperature, note="temperature 0 is a greedy response")
    else:
        r.take("validation.temperature", temperature, float)
    for part, key in (("train", "train_dataset"), ("validation", "valid_dataset")):
        found, split = r.find(f"{key}.path"), r.find(f"{key}.split")
        kind = {"format": "gsm8k"} if found is not None and "gsm8k" in str(found.value) else {}
        if found is not None and str(found.value) == "openai/gsm8k":
            found = SourceValue("openai/gsm8k:main", found.said, True)
            split = split or SourceValue("train" if part == "train" else "test", "", False)
        common.data(r, part, found, split, **kind)
    common.run_name(r, r.find("experiment_name"), r.find("trial_name"))
