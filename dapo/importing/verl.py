"""verl's keys that only mean something together. Defaults: its `ppo_trainer.yaml` and what that takes along, 0.9.1."""

from __future__ import annotations

import re
from pathlib import PurePath

from dapo.importing import common, teacher
from dapo.importing.common import DS, FIX, LOSS
from dapo.importing.reading import Reading, SourceValue

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}
_FUNCTION = [f"{section}custom_reward_function" for section in ("reward.", "", "reward_model.")]
"""Where releases have the user's reward function."""
_MANAGER = ("reward.reward_manager.module.path", "reward_manager.module.path", "reward_model.reward_loop_module_path")
"""Where they have code that takes the place of their reward managers."""
_GIVE_IT = "give its rule as rewards.N.kind=function rewards.N.function=MODULE:NAME (docs/own_reward.md)"


def convert(r: Reading) -> None:
    """Write every line that needs several keys of verl, or one of its defaults."""
    prompts = r.count("data.train_batch_size", default=1024)
    _sizes(r, prompts)
    _clip_and_loss(r)
    _sampling(r, prompts)
    _length(r)
    _reward(r)
    _advantage(r)
    teacher.verl(r)
    _running(r)
    _optimiser(r)
    _adapter(r)
    thinks = r.flag("data.apply_chat_template_kwargs.enable_thinking", default=True)
    if thinks.given:
        r.put("data.chat_template_kwargs", {"enable_thinking": thinks.value}, thinks)
    known = r"((verl|recipe)[./](.*[./])?)?(main_ppo\w*|main_dapo\w*|fully_async_main|main)(\.py)?"
    common.own_program(r, known, r"(.*[./])?(main\w*|\w+_main|train\w*)\.py|.*[./](main\w*|\w+_main)")


def _adapter(r: Reading) -> None:
    """Read the adapter of FSDP (``model.lora_rank``), or of Megatron (``model.lora.rank``)."""
    model = "actor_rollout_ref.model"
    megatron = r.number(f"{model}.lora.rank")
    if megatron is not None and megatron.value > 0:
        common.lora(r, f"{model}.lora.", "rank alpha dropout target_modules", on=None, rank=0, alpha=32)
        return
    common.lora(r, f"{model}.", "lora_rank lora_alpha lora_dropout target_modules", on=None, rank=0, alpha=16)


def _sizes(r: Reading, prompts: SourceValue) -> None:
    r.put("rollout.prompts_per_step", prompts.value, prompts)
    common.minibatch_of_prompts(r, prompts, r.count(f"{_ACTOR}.ppo_mini_batch_size", default=256))
    common.epochs_per_rollout(r, f"{_ACTOR}.ppo_epochs")


def _clip_and_loss(r: Reading) -> None:
    both = r.number(f"{_ACTOR}.clip_ratio")
    for end in ("low", "high"):
        own = r.number(f"{_ACTOR}.clip_ratio_{end}")
        r.take(f"algorithm.clip.{end}", own or both or r.need(f"{_ACTOR}.clip_ratio_{end}", default=0.2))
        if own is None and both is not None and both.value != 0.2:
            r.say(
                f"clip_ratio = {both.value:g} stands alone: newer verl has clip_ratio_low and clip_ratio_high of "
                "0.2 in its YAML, which go before it; if yours does, set algorithm.clip.low and .high to 0.2"
            )
    mode = r.text(f"{_ACTOR}.loss_agg_mode", default="token-mean")
    token = r.flag(f"{_ACTOR}.use_token_level_loss", default=True)  # what it was called at first
    if token.given and not mode.given:
        mode = SourceValue("token-mean" if token.value else "seq-mean-token-mean", token.said, True)
    r.choose(f"{LOSS}.reduction", mode, _MODES)
    length = r.number(f"{_ACTOR}.loss_scale_factor")
    if mode.value == "seq-mean-token-sum-norm" and length is not None:
        r.put(f"{LOSS}.reduction.length", length.value, length)
    if mode.value == "token-mean":
        r.say(
            "token-mean is the mean over the whole minibatch here and in verl from 0.8; up to 0.6 it was taken in each "
            "micro-batch: algorithm.loss.reduction: {kind: micro_batch_mean, sequences: N}"
        )
    _kind(r)
    _kl(r)
    common.plain_learner_ratio(r)
    bypass = r.flag("algorithm.rollout_correction.bypass_mode", default=False)
    if bypass.value:
        r.put("algorithm.old_logprobs", "sampler", bypass, note="the ratio runs against the sampler's numbers")
    level = r.text("algorithm.rollout_correction.rollout_is", f"{_ROLLOUT}.rollout_is", "algorithm.rollout_is")
    cap = r.number("algorithm.rollout_correction.rollout_is_threshold", "algorithm.rollout_is_threshold", default=2.0)
    if cap is not None and (level.value in ("token", "sequence") or level.unread):
        r.put(f"{FIX}.kind", "truncate" if level.value == "token" else "truncate_sequence", level)
        r.put(f"{FIX}.cap" if level.value == "token" else f"{FIX}.sequence_cap", float(cap.value), cap)
    elif level.value.lower() not in ("", "null", "none"):
        r.replace(level, "weights by token and by sequence are here; none is taken")
    _rejection(r, cap if level.value == "token" else None, level)
    tis = r.number(f"{_ACTOR}.tis_imp_ratio_cap")
    if tis is not None and tis.value > 0:
        r.put(f"{FIX}.kind", "truncate", tis)
        r.put(f"{FIX}.cap", float(tis.value), tis)


def _kind(r: Reading) -> None:
    """Read the loss; its own settings are in ``policy_loss``, or next to it in earlier scripts."""
    kind = r.text(f"{_ACTOR}.policy_loss.loss_mode", f"{_ACTOR}.loss_mode", default="vanilla")
    if kind.value == "gspo":
        r.put(f"{LOSS}.ratio", "sequence", kind)
    elif kind.unread or (kind.value != "vanilla" and common.other_loss(r, kind)):
        r.put(f"{LOSS}.kind", kind.value, kind)
    elif kind.value != "vanilla":
        r.replace(kind, "the clipped loss takes its place (algorithm.loss.kind takes a function of yours)")
    if kind.value == "cispo":  # clamp(ratio, 1 - low, 1 + high)
        low, high = r.lines["algorithm.clip.low"], r.lines["algorithm.clip.high"]
        r.put(f"{LOSS}.cap", 1.0 + high.value, SourceValue(0, high.comment, high.given), note="1 + it")
        r.put(f"{LOSS}.floor", max(0.0, 1.0 - low.value), SourceValue(0, low.comment, low.given), note="1 - it")
    both = [f"{_ACTOR}.policy_loss.", f"{_ACTOR}."]
    percent = r.number(f"{_ACTOR}.k_percent")
    share = r.number(*(f"{where}{kind.value}_ratio" for where in both))
    if kind.value == "kl_cov" and share is None and percent is not None:
        r.put(f"{LOSS}.share", percent.value / 100, percent, note="verl has it in percent")
    elif kind.value in ("kl_cov", "clip_cov") and share is not None:
        r.put(f"{LOSS}.share", float(share.value), share)
    for name in ("clip_cov_ratio", "kl_cov_ratio"):
        r.used |= {f"{where}{name}" for where in both}


def _rejection(r: Reading, cap: SourceValue | None, level: SourceValue) -> None:
    """Rejection by ratios. Its bounds ``low_up`` hold for sampler over learner, and ``up`` alone is 1/up to up.

    ``trainer/ppo/rollout_corr_helper.py``: what is compared with log low and log up is the k1 estimator, log sampler -
    log learner. The earlier names (``token``, ``geometric``) compare learner over sampler.

    Args:
        r: what is read.
        cap: of the token's weight; None: the weights are not by token.
        level: of these weights.
    """
    where = "algorithm.rollout_correction"
    rule, bounds = r.text(f"{where}.rollout_rs"), r.find(f"{where}.rollout_rs_threshold")
    lower = r.number(f"{where}.rollout_rs_threshold_lower")
    if rule.value in ("", "null"):
        return
    kinds = {"token_k1": "mask_token", "seq_mean_k1": "mask_sequence", "token": "mask_token"}
    kind, inverse = (kinds | {"geometric": "mask_sequence"}).get(rule.value), rule.value.endswith("_k1")
    try:
        words = [float(word) for word in str(bounds.value if bounds else "").split("_")]
        low, up = words if len(words) == 2 else (lower.value if lower else 1 / words[0], words[0])
    except (ValueError, ZeroDivisionError):
        low = up = 0.0
    if kind is None or bounds is None or not 0 < low < up:
        r.replace(rule, "no rejection is made (token_k1 and seq_mean_k1 with low_up are here)")
        r.drop(bounds, "of that rejection")
        return
    floor, highest = (1 / up, 1 / low) if inverse else (low, up)
    said = "1/up and 1/low: verl's bounds are of sampler over learner" if inverse else ""
    r.put(f"{FIX}.kind", kind, rule)
    r.put(f"{FIX}.floor", float(f"{floor:.9g}"), bounds, lower, note=said)
    r.put(f"{FIX}.cap", float(f"{highest:.9g}"), bounds, note=said)
    if kind == "mask_sequence":
        r.put(f"{FIX}.token_cap", None if cap is None else float(cap.value), cap)
    if level.value == "sequence":
        r.drop(level, "weights by sequence together with a rejection have no counterpart: the rejection is taken")
    elif cap is None:
        r.say("verl gives what passes rollout_rs the weight 1; here it carries its ratio (of learner over sampler)")
    elif kind == "mask_token" and cap.value < highest:
        r.say(f"verl cuts weights at {cap.value:g} within rollout_rs's bounds; here they go to {highest:g}")


def _kl(r: Reading) -> None:
    in_loss = r.flag(f"{_ACTOR}.use_kl_loss", default=False)
    in_reward = r.flag("algorithm.use_kl_in_reward", default=False)
    loss_coefficient = r.need(f"{_ACTOR}.kl_loss_coef", default=0.001)
    kind = r.text(f"{_ACTOR}.kl_loss_type", default="low_var_kl")
    coefficient = r.need("algorithm.kl_ctrl.kl_coef", default=0.001)
    penalty, control = r.text("algorithm.kl_penalty", default="kl"), r.text("algorithm.kl_ctrl.type", default="fixed")
    on = bool(in_reward.value)
    if on and penalty.value not in ("kl", "k1"):
        r.drop(penalty, "the KL term in the reward is k1 here")
    if on and control.value != "fixed":
        r.drop(control, "the KL coefficient is fixed here")
    if in_loss.value:
        common.kl(r, loss_coefficient, kind, in_reward=False, switch=in_loss)
        if in_reward.value:
            r.drop(in_reward, "a KL term is in the loss or in the reward here, not in both: the loss has it")
    elif in_reward.value:
        common.kl(r, coefficient, None, in_reward=in_reward)
    else:
        r.put("algorithm.kl_coefficient", 0.0, in_loss, in_reward)


def _sampling(r: Reading, prompts: SourceValue) -> None:
    on = r.flag("algorithm.filter_groups.enable", default=False)
    batch = r.count("data.gen_batch_size", default=prompts.value)
    rounds = r.need("algorithm.filter_groups.max_num_gen_batches", default=0)
    metric = r.text("algorithm.filter_groups.metric", default="reward")
    if not on.value:
        common.no_filter(r, on)
        return
    r.put(f"{DS}.mode", "filter", on)
    oversample = max(1.0, batch.value / prompts.value)
    if metric.value in ("acc", "accuracy"):
        r.put(f"{DS}.metric", "accuracy", metric)
    else:
        r.put(f"{DS}.metric", "accuracy", metric, note="accuracy alone")
        r.say(
            f"verl filters by {metric.value}, which may hold the length penalty; groups are kept by accuracy here, as "
            "in the paper (a named reward can be `algorithm.dynamic_sampling.metric`)"
        )
    common.filter_rounds(r, rounds, oversample, (batch, prompts), "verl ends with an error; here the state is saved")


def _length(r: Reading) -> None:
    places = (
        "reward_model.overlong_buffer",
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        "reward.reward_kwargs.overlong_buffer_cfg",
        "reward.overlong_buffer",
        "custom_reward_function.overlong_buffer",  # in the DAPO recipe's first form
    )
    on = r.flag(*(f"{p}.enable" for p in places), default=False)
    cache = r.count(*(f"{p}.len" for p in places), default=4096)
    factor = r.need(*(f"{p}.penalty_factor" for p in places), default=1.0)
    r.used |= {f"{p}.log" for p in places}
    longest = r.number("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len")
    longest = longest or r.number("reward_model.max_resp_len", "data.max_response_length")
    if on.value:
        common.penalty(r, longest, cache, factor, on)
    else:
        common.no_penalty(r, on)


def _reward(r: Reading) -> None:
    """Write the user's function beside an accuracy that does not train, or the rule of the trainer's as ``math``."""
    manager = r.text("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager", default="naive")
    code = r.find(*_MANAGER)
    if code is not None:
        r.cautions.append(f"your reward manager was not taken ({common.brief(code)}): {_GIVE_IT}")
    path = r.find(*(f"{section}.path" for section in _FUNCTION))
    if path is not None and _function(r, path, manager):
        return
    if manager.value == "batch":
        r.cautions.append(
            f"{common.brief(manager)}: the function sees all responses of a batch there. Give it as rewards.N.kind="
            "function rewards.N.function=MODULE:NAME rewards.N.per=group: here it sees those to one prompt"
        )
    dapo = str(manager.value).lower() == "dapo"
    note = "the scorer of DAPO's data gives 1 and -1" if dapo else "rewards as the rule gives them, 0 and 1 here"
    r.put("algorithm.reward_scaling.enabled", dapo, manager, note=note)
    if "rewards" not in r.lines:
        common.reward(r, path)


def _function(r: Reading, path: SourceValue, manager: SourceValue) -> bool:
    """Write the function of ``custom_reward_function``, and return whether it could be named as ``module:name``."""
    name = r.text(*(f"{section}.name" for section in _FUNCTION), default="compute_score")
    spelled = str(path.value)
    file, unread = PurePath(spelled), path.unread or name.unread
    module = spelled.removeprefix("pkg://") if spelled.startswith("pkg://") else file.stem * (file.suffix == ".py")
    if unread or not all(part.isidentifier() for part in (*module.split("."), name.value)):
        found = (
            unread or f"{common.brief(path)}, {common.brief(name)} is no function of a Python file that can be named"
        )
        r.cautions.append(f"your reward function was not taken: {found}; {_GIVE_IT}")
        if unread:
            r.put("rewards", [], path, name)
        return False
    reward = {"name": "score", "kind": "function", "function": f"{module}:{name.value}"}
    if manager.value == "batch":
        reward["per"] = "group"
        r.say(
            f"{common.brief(manager)}: the function sees all responses of a batch there, and those to one prompt here"
        )
    r.put(
        "rewards",
        [reward, {"name": "accuracy", "kind": "math", "weight": 0.0}],
        path,
        name,
        manager if "per" in reward else None,
        note=f"{module} must be importable from the folder you start in; accuracy only decides what is right",
    )
    r.put("algorithm.reward_scaling.enabled", False, path, note="verl scales none: the function's own numbers train")
    r.say(
        f"accuracy compares the last marked answer with the gold answer, since no number of {file.name} is known to "
        "lie in 0 .. 1: choose another kind in rewards.1 if your function reads answers otherwise"
    )
    passed = [key for key in r.source.settings if re.match(r"(\w+\.)?custom_reward_function\.reward_kwargs\.", key)]
    if passed:
        given = ", ".join(common.brief(one) for key in passed if (one := r.find(key)) is not None)
        r.cautions.append(f"your reward function does not get {given} here: make them defaults of its parameters")
    return True


def _advantage(r: Reading) -> None:
    kind = r.text("algorithm.adv_estimator", default="gae")
    by_std = r.flag("algorithm.norm_adv_by_std_in_grpo", default=True)
    common.estimator(r, kind, "group_std" if by_std.value else "none", by_std)
    gamma = [r.number("algorithm.gamma"), r.number("algorithm.lam")]
    for found in gamma:
        if found is not None and found.value != 1:
            r.drop(found, "a discount: advantages are the same for every token here")


def _optimiser(r: Reading) -> None:
    optim = f"{_ACTOR}.optim"
    common.optimizer(r, f"{optim}.optimizer")
    kind = r.text(f"{optim}.lr_scheduler_type", f"{optim}.warmup_style", f"{optim}.lr_decay_style", default="constant")
    warmup, share = r.number(f"{optim}.lr_warmup_steps"), r.number(f"{optim}.lr_warmup_steps_ratio", default=0.0)
    if warmup is not None and warmup.value >= 0:
        share = None
    note = "verl's scheduler advances once for each rollout"
    common.schedule(r, kind, unit="rollout", warmup=warmup, share=share, note=note)
    low = r.number(f"{optim}.min_lr_ratio")
    if low is not None and r.lines["learner.schedule"].value != "constant":
        r.put("learner.final_ratio", low.value, low)


def _running(r: Reading) -> None:
    common.generation(r, _ROLLOUT, r.text(f"{_ROLLOUT}.name", default="vllm"), f"{_ROLLOUT}.engine_kwargs.vllm")
    val = f"{_ROLLOUT}.val_kwargs"
    sampled = r.flag(f"{val}.do_sample", default=False)
    temperature = r.need(f"{val}.temperature", default=0)
    if not sampled.value and temperature.value:
        mode = r.find(f"{_ROLLOUT}.mode")
        if mode is not None and mode.value == "sync":
            temperature = SourceValue(0, f"{mode.said}, {common.brief(sampled)}", True)
        else:
            r.say(
                "verl's agent loop evaluates at val_kwargs.temperature whatever do_sample says, and so does this "
                "recipe; with rollout.mode=sync in earlier releases do_sample=False is greedy"
            )
    top_p, top_k = r.number(f"{val}.top_p", default=1.0), r.number(f"{val}.top_k")
    common.evaluation(r, r.count(f"{val}.n", default=1), temperature, top_p)
    r.drop(top_k, "evaluations have no top_k here", idle=top_k is not None and top_k.value <= 0)
    steps, epochs = r.number("trainer.total_training_steps"), r.number("trainer.total_epochs", default=30)
    if steps is None:
        r.say(
            "verl counts batches of data in total_epochs; DAPO-Math-17k's published file repeats each prompt 100 times"
        )
    common.data(r, "train", r.find("data.train_files"), format="dapo_math")
    common.data(r, "validation", r.find("data.val_files"), format="dapo_math")
    common.end(r, steps, epochs)
    cut = r.text("data.truncation")
    dropped = r.flag("data.filter_overlong_prompts", default=False)
    if cut.value == "error" and not dropped.value:
        r.put("data.overlong_prompts", "refuse", cut)
    elif cut.value in ("left", "right", "middle"):
        r.put("data.overlong_prompts", "drop", cut, note="nothing is ever cut here: a prompt over the limit is dropped")
    elif dropped.given:
        r.put("data.overlong_prompts", "drop", dropped)
    common.run_name(r, r.find("trainer.experiment_name"))
    common.trackers(r, r.find("trainer.logger"), r.find("trainer.project_name"), otherwise="verl_examples")
