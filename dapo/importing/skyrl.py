"""SkyRL's keys that only mean something together. Defaults: its `train/config/config.py`, 0.3.0."""

from __future__ import annotations

from dapo.importing import common
from dapo.importing.common import DS, FIX, LOSS
from dapo.importing.reading import Reading, SourceValue

_A = "trainer.algorithm"
_REDUCTIONS = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "prompt_mean": "prompt_mean",
    "seq_mean_token_sum_norm": "constant",
    "token_mean_legacy": "micro_batch_mean",
}


def convert(r: Reading) -> None:
    """Write every line that needs several keys of SkyRL, or one of its defaults."""
    prompts = r.count("trainer.train_batch_size", default=1024)
    r.put("rollout.prompts_per_step", prompts.value, prompts)
    common.minibatch_of_prompts(r, prompts, r.count("trainer.policy_mini_batch_size", default=256))
    r.used.add("generator.max_input_length")
    common.epochs_per_rollout(r, "trainer.update_epochs_per_batch")
    _loss(r)
    _kl_and_correction(r)
    _sampling(r)
    _length(r)
    _running(r)
    where, names = "trainer.policy.model.lora.", "rank alpha dropout target_modules"
    common.lora(r, where, names, on=None, rank=0, alpha=16)
    common.own_program(r, r".*main_(base|dapo|fully_async|dapo_fully_async|async)(\.py)?", r".*[./]main_\w+(\.py)?")


def _loss(r: Reading) -> None:
    kind = r.text(f"{_A}.policy_loss_type", default="regular")
    dual = r.need(f"{_A}.clip_ratio_c", default=3.0)
    if kind.value == "dual_clip":
        r.put("algorithm.clip.dual", float(dual.value), dual, kind)
    elif kind.value == "gspo":
        r.put(f"{LOSS}.ratio", "sequence", kind)
    elif kind.value == "cispo":
        r.put(f"{LOSS}.kind", "cispo", kind)
        above, below = (r.need(f"{_A}.cispo.cispo_eps_clip_{end}", default=by) for end, by in (("high", 5), ("low", 0)))
        r.put(f"{LOSS}.cap", float(1 + above.value), above, note="of the ratio itself, 1 + it")
        r.put(f"{LOSS}.floor", float(1 - below.value), below, note="of the ratio itself, 1 - it")
    elif kind.unread:
        r.put(f"{LOSS}.kind", "clip", kind)
    elif kind.value != "regular" and not common.other_loss(r, kind):
        r.replace(kind, "the clipped loss takes its place (algorithm.loss.kind takes a function of yours)")
    if kind.value != "dual_clip":
        r.drop(dual, f"SkyRL reads it only with policy_loss_type: dual_clip, not {kind.value}", idle=True)
    for key in (f"{_A}.clip_cov.clip_ratio", f"{_A}.kl_cov.kl_cov_frac"):
        share = r.number(key)
        if share is not None and kind.value == key.split(".")[-2]:
            r.put(f"{LOSS}.share", float(share.value), share)
    reduction = r.text(f"{_A}.loss_reduction", default="token_mean")
    r.choose(f"{LOSS}.reduction", reduction, _REDUCTIONS)
    micro = r.count("trainer.micro_train_batch_size_per_gpu", default=1)
    length = r.number(f"{_A}.max_seq_len")
    if reduction.value == "seq_mean_token_sum_norm" and length is not None:
        r.put(f"{LOSS}.reduction.length", length.value, length)
    if reduction.value == "token_mean_legacy":
        r.put(f"{LOSS}.reduction.sequences", micro.value, micro)
        r.put(f"{LOSS}.reduction.weighted", False, note="SkyRL takes the mean of the micro-batches' means")
        r.say("token_mean_legacy is a mean over micro-batches; `token_mean` weighs every token of a minibatch alike")
    estimator = r.text(f"{_A}.advantage_estimator", default="grpo")
    by_std = r.flag(f"{_A}.grpo_norm_by_std", default=True)
    common.estimator(r, estimator, "group_std" if by_std.value else "none", by_std)


def _kl_and_correction(r: Reading) -> None:
    in_loss = r.flag(f"{_A}.use_kl_loss", default=True)
    in_reward = r.flag(f"{_A}.use_kl_in_reward", default=False)
    coefficient = r.need(f"{_A}.kl_loss_coef", default=0.001)
    kind = r.text(f"{_A}.kl_estimator_type", default="k3")
    if in_loss.value:
        common.kl(r, coefficient, kind, in_reward=False, switch=in_loss)
    elif in_reward.value:
        common.kl(r, coefficient, None, in_reward=in_reward)
    else:
        r.put("algorithm.kl_coefficient", 0.0, in_loss)
    bonus, on = r.number(f"{_A}.entropy_loss_coef", default=0.01), r.flag(f"{_A}.use_entropy_loss", default=False)
    if on.value and bonus is not None:
        r.put("algorithm.entropy_coefficient", bonus.value, bonus, on)
    common.plain_learner_ratio(r)
    where = f"{_A}.off_policy_correction"
    kind = r.text(f"{where}.tis_ratio_type", default="none")
    old = r.flag(f"{_A}.use_tis", default=False)
    cap = r.number(f"{where}.token_tis_ratio_clip_high", f"{_A}.tis_imp_ratio_cap", default=2.0)
    product = r.number(f"{where}.sequence_tis_ratio_clip_high", default=5.0)
    mask = r.text(f"{where}.sequence_mask_metric", default="none")
    high, low = r.number(f"{where}.geo_mask_high", default=1.01), r.number(f"{where}.geo_mask_low", default=0.99)
    if mask.value == "geometric" and high is not None and low is not None:
        r.put(f"{FIX}.kind", "mask_sequence", mask)
        r.put(f"{FIX}.cap", float(high.value), high)
        r.put(f"{FIX}.floor", float(low.value), low)
        r.put(f"{FIX}.token_cap", float(cap.value) if kind.value == "token" and cap else None, kind, cap)
    elif (kind.value == "token" or old.value) and cap is not None:
        r.put(f"{FIX}.kind", "truncate", kind, old)
        r.put(f"{FIX}.cap", float(cap.value), cap)
    elif kind.value == "sequence" and product is not None:
        r.put(f"{FIX}.kind", "truncate_sequence", kind)
        r.put(f"{FIX}.sequence_cap", float(product.value), product)
    if mask.value == "product":
        r.replace(mask, "a band for the product of ratios is not here; mask_sequence goes by the geometric mean")


def _sampling(r: Reading) -> None:
    kind = r.text(f"{_A}.dynamic_sampling.type", default="")
    rounds = r.need(f"{_A}.dynamic_sampling.max_sample_batches", default=30)
    ratio = r.number(f"{_A}.dynamic_sampling.replace.min_ratio", default=0.3)
    masked = r.flag(f"{_A}.zero_variance_filter", default=False)
    full = r.flag("trainer.fully_async.sample_full_batch", default=False)
    if kind.value in ("filter", "replace"):
        r.put(f"{DS}.mode", kind.value, kind)
        if kind.value == "filter":
            common.filter_rounds(r, rounds, 1.0, (), "SkyRL ends with an error; here the state is saved")
        elif ratio is not None:
            r.put(f"{DS}.replace.min_ratio", ratio.value, ratio)
    elif masked.value and full.value:
        r.put(f"{DS}.mode", "filter", full, masked, note="SkyRL, too, replaces groups without variance")
        r.put(f"{DS}.cap.groups", None, note="no limit in SkyRL; `dapo check` warns of it")
    elif masked.value:
        r.put(f"{DS}.mode", "mask", masked)
    else:
        common.no_filter(r, kind)


def _length(r: Reading) -> None:
    common.overlong_filtering(r, r.flag("generator.apply_overlong_filtering", default=False))
    zero = r.flag("generator.zero_reward_on_non_stop", default=False)
    if zero.value:
        r.put("algorithm.truncated_factor", 0.0, zero)
        r.say("SkyRL sets the rewards of truncated responses to 0 before its filter; here it comes after it")
    names = (f"{_A}.overlong_buffer.len", f"{_A}.overlong_buffer_len")
    cache = r.number(*names)
    factor = r.need(f"{_A}.overlong_buffer.penalty_factor", f"{_A}.overlong_buffer_penalty_factor", default=1.0)
    if cache is not None:
        common.penalty(r, None, cache, factor)
        r.say("SkyRL adds the length penalty in a subclass of its trainer, before its filter; here it comes after it")
    else:
        common.no_penalty(r)
    env = r.text("environment.env_class", default="gsm8k")
    signed = "aime" in str(env.value)
    note = "its rule gives 1 and -1" if signed else "its rule gives 1 and 0"
    r.put("algorithm.reward_scaling.enabled", signed, env, note=note)
    common.reward(r, env)


def _running(r: Reading) -> None:
    backend = r.text("generator.backend", "generator.inference_engine.backend", default="vllm")
    common.generation(r, "generator.sampling_params", backend, "generator.inference_engine.engine_init_kwargs")
    urls = r.find("generator.inference_engine.external_server_urls", "generator.inference_engine.external_proxy_url")
    if urls is not None:
        r.put("rollout.engine", "vllm_server", urls)
        r.put("rollout.server.url", urls.value, urls)
    _evaluation(r)
    common.data(r, "train", r.find("data.train_data"), fields=_FIELDS)
    common.data(r, "validation", r.find("data.val_data"), fields=_FIELDS)
    common.end(r, r.number("trainer.max_training_steps", "trainer.max_steps"), r.number("trainer.epochs", default=1))
    optim = "trainer.policy.optimizer_config"
    kind = r.text(f"{optim}.scheduler", default="constant_with_warmup")
    warmup, note = r.number(f"{optim}.num_warmup_steps", default=0), "SkyRL's scheduler counts optimiser steps"
    common.schedule(r, kind, unit="optimizer", warmup=warmup, note=note)
    common.run_name(r, r.find("trainer.run_name"))
    common.trackers(r, r.find("trainer.logger"), r.find("trainer.project_name"), otherwise="skyrl")
    entry = sorted(word for word in r.source.words if "fully_async" in word)  # of releases without the switch
    by_entry = SourceValue(bool(entry), f"from the entry point {entry[0]}" if entry else "", bool(entry))
    fully = "trainer.fully_async"
    common.staleness_if(r, f"{fully}.enabled", f"{fully}.max_staleness_steps", default=4, entry=by_entry)


_FIELDS = {"problem": "prompt", "answer": "reward_spec.ground_truth"}


def _evaluation(r: Reading) -> None:
    params = "generator.eval_sampling_params"
    some = any(key.startswith(f"{params}.") for key in r.source.settings)
    temperature = r.need(f"{params}.temperature", default=1.0 if some else 0)
    if some and not temperature.given:
        r.say("SkyRL's evaluation has temperature 0, and 1 as soon as any other of eval_sampling_params is set")
    samples = r.count("generator.eval_n_samples_per_prompt", default=1)
    common.evaluation(r, samples, temperature, r.number(f"{params}.top_p", default=1.0))
