"""NeMo RL's keys that only mean something together. Defaults: its `grpo_math_1B.yaml`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dapo.importing import common, teacher
from dapo.importing.common import DS, FIX, LEN, LOSS
from dapo.importing.reading import Reading, SourceValue

_SCALE = "algorithm.reward_scaling"
_ADVANCES = "NeMo RL's scheduler advances after all minibatches of a rollout"


def convert(r: Reading) -> None:
    """Write every line that needs several keys of NeMo RL, or one of its defaults."""
    prompts = r.count("grpo.num_prompts_per_step", default=32)
    group = r.count("grpo.num_generations_per_prompt", default=16)
    r.put("rollout.prompts_per_step", prompts.value, prompts)
    mini = r.count("policy.train_global_batch_size", default=512)
    common.minibatch_of_responses(r, prompts, group, mini)
    _lengths(r)
    _loss(r)
    _sampling(r)
    _rewards(r)
    if not teacher.nemo(r):
        _advantage(r)
    _running(r)
    _optimiser(r)
    megatron = r.flag("policy.megatron_cfg.enabled", default=False).value
    where = "policy.megatron_cfg.peft" if megatron else "policy.dtensor_cfg.lora_cfg"
    on, every = r.flag(f"{where}.enabled", default=False), r.flag(f"{where}.match_all_linear", default=not megatron)
    common.lora(
        r, f"{where}.", "dim alpha dropout target_modules", on=on, rank=32 if megatron else 8, alpha=32, every=every
    )


def _lengths(r: Reading) -> None:
    total = r.count("policy.max_total_sequence_length", default=512)
    longest = r.number("policy.generation.max_new_tokens") or total
    r.put("rollout.max_response_tokens", longest.value, longest)
    prompt = r.number("data.max_input_seq_length") or total
    r.put("data.max_prompt_tokens", prompt.value, prompt)
    if longest.value + prompt.value > total.value:
        r.say(
            f"policy.max_total_sequence_length = {total.value} limits prompt and response together; here the two "
            f"limits are apart, {prompt.value} + {longest.value} tokens"
        )


def _loss(r: Reading) -> None:
    token = r.flag("loss_fn.token_level_loss", "grpo.token_level_loss", default=True)
    r.put(f"{LOSS}.reduction", "token_mean" if token.value else "sequence_mean", token)
    sequence = r.flag("loss_fn.sequence_level_importance_ratios", default=False)
    if sequence.value:
        r.put(f"{LOSS}.ratio", "sequence", sequence)
    cispo = r.flag("loss_fn.use_cispo", default=False)
    if cispo.value:
        r.put(f"{LOSS}.kind", "cispo", cispo)
        high = r.lines["algorithm.clip.high"].value
        r.put(f"{LOSS}.cap", 1.0 + high, note=f"1 + ratio_clip_max = {1 + high:g}")
    coefficient = r.need("loss_fn.reference_policy_kl_penalty", default=0.01)
    kind = r.text("loss_fn.reference_policy_kl_type", default="k3")
    in_reward = r.flag("loss_fn.use_kl_in_reward", default=False)
    common.kl(r, coefficient, kind, in_reward=in_reward)
    common.plain_learner_ratio(r)
    _correction(r)


def _correction(r: Reading) -> None:
    on = r.flag("loss_fn.use_importance_sampling_correction", default=False)
    kind = r.text("loss_fn.truncated_importance_sampling_type", default="")
    high = r.number("loss_fn.truncated_importance_sampling_ratio")
    low = r.number("loss_fn.truncated_importance_sampling_ratio_min")
    if not on.value:
        return
    names = {"": "untruncated", "tis": "truncate", "icepop": "mask_token", "seq-mask-tis": "mask_sequence"}
    if not kind.given and high is not None:
        kind = SourceValue("tis", high.said, True)
    if not r.choose(f"{FIX}.kind", kind, names):
        return
    r.put(f"{FIX}.kind", r.lines[f"{FIX}.kind"].value, on, kind if kind.value else None)
    if high is not None:
        r.put(f"{FIX}.cap", float(high.value), high)
    if low is not None and kind.value in ("icepop", "seq-mask-tis"):
        r.put(f"{FIX}.floor", float(low.value), low)
    if kind.value == "seq-mask-tis":
        r.put(f"{FIX}.token_cap", None, kind, note="NeMo RL takes raw ratios of the tokens")


def _sampling(r: Reading) -> None:
    on = r.flag("grpo.use_dynamic_sampling", default=False)
    times = r.need("grpo.batch_multiplier", default=1)
    rounds = r.need("grpo.dynamic_sampling_max_gen_batches", default=10)
    if not on.value:
        common.no_filter(r, on)
        return
    r.put(f"{DS}.mode", "filter", on)
    common.filter_rounds(
        r, rounds, max(1.0, float(times.value)), (times,), "NeMo RL ends with an error; here the state is saved"
    )


def _rewards(r: Reading) -> None:
    if not r.lines[f"{_SCALE}.enabled"].value:
        for name in ("source_min", "source_max", "target_min", "target_max"):
            del r.lines[f"{_SCALE}.{name}"]
    shaped = r.flag("grpo.reward_shaping.enabled", default=False)
    cache = r.count("grpo.reward_shaping.overlong_buffer_length", default=128)
    factor = r.need("grpo.reward_shaping.overlong_buffer_penalty", default=1.0)
    longest = r.number("grpo.reward_shaping.max_response_length")
    longest = longest or r.count("policy.max_total_sequence_length", default=512)
    if shaped.value:
        common.penalty(r, longest, cache, factor, shaped)
    else:
        common.no_penalty(r, shaped)
    stop = r.number("grpo.reward_shaping.stop_properly_penalty_coef")
    if stop is not None:
        if shaped.value:
            r.put(f"{LEN}.enabled", False, stop, note="NeMo RL has it in place of the overlong penalty")
            r.put("algorithm.truncated_factor", float(stop.value), stop)
        else:
            r.drop(stop, "not read without grpo.reward_shaping.enabled", idle=True)
    common.overlong_filtering(r, r.flag("grpo.overlong_filtering", default=False))
    verifier = r.find("env.math.math_verify_impl")
    common.reward(r, verifier)
    if verifier is not None and "dapo" in str(verifier.value):
        r.say(
            "NeMo RL's DAPO verifier compares the text after the last `Answer:`; math-verify reads it as mathematics "
            "(rewards.0.kind: exact with a pattern is nearer)"
        )


def _advantage(r: Reading) -> None:
    estimator = r.text("grpo.adv_estimator.name", default="grpo")
    left_out = r.flag("grpo.adv_estimator.use_leave_one_out_baseline", "grpo.use_leave_one_out_baseline", default=True)
    r.used.add("grpo.use_leave_one_out_baseline")
    r.put("algorithm.advantage.baseline", "leave_one_out" if left_out.value else "mean", left_out)
    normal = r.flag("grpo.adv_estimator.normalize_rewards", "grpo.normalize_rewards", default=True)
    r.used.add("grpo.normalize_rewards")
    if estimator.value == "reinforce_plus_plus":
        less = r.flag("grpo.adv_estimator.minus_baseline", default=True)
        common.whitened(r, "mean" if less.value else "none", 0, estimator, less)
    else:
        common.estimator(r, estimator, "group_std" if normal.value else "none", normal)
    r.take("algorithm.advantage_clip.low", r.number("grpo.advantage_clip_low"), float)
    r.take("algorithm.advantage_clip.high", r.number("grpo.advantage_clip_high"), float)


def _optimiser(r: Reading) -> None:
    megatron = r.flag("policy.megatron_cfg.enabled", default=False)
    if megatron.value:  # it has an optimiser and a schedule of its own, and reads no other
        _megatron(r, megatron)
        for key in ("policy.optimizer", "policy.scheduler"):
            for below in [given for given in r.source.settings if given == key or given.startswith(f"{key}.")]:
                r.drop(r.find(below), "not read with policy.megatron_cfg.enabled", idle=True)
        return
    common.optimizer(r, "policy.optimizer.name")
    shape, warmup = _scheduler(r)
    common.schedule(r, shape, unit="rollout", warmup=warmup, note=_ADVANCES)


def _megatron(r: Reading, on: SourceValue) -> None:
    """Megatron's own optimiser and schedule; both advance as the others do there."""
    optimizer, scheduler = "policy.megatron_cfg.optimizer", "policy.megatron_cfg.scheduler"
    lr = r.need(f"{optimizer}.lr", default=5e-6)
    r.put("learner.learning_rate", lr.value, lr, on)
    r.take("learner.weight_decay", r.need(f"{optimizer}.weight_decay", default=0.01))
    first, second = r.need(f"{optimizer}.adam_beta1", default=0.9), r.need(f"{optimizer}.adam_beta2", default=0.999)
    r.put("learner.betas", [first.value, second.value], first, second)
    r.take("learner.eps", r.need(f"{optimizer}.adam_eps", default=1e-8))
    common.optimizer(r, f"{optimizer}.optimizer")  # its adam is AdamW: the weight decay is decoupled
    norm = r.need(f"{optimizer}.clip_grad", "policy.max_grad_norm", default=1.0)
    r.used.add("policy.max_grad_norm")
    r.put("learner.max_grad_norm", float(norm.value), norm)
    shape = r.text(f"{scheduler}.lr_decay_style", default="constant")
    if shape.value not in ("constant", "linear", "cosine"):
        r.drop(shape, "holds a schedule that has no counterpart; constant after the warm-up is taken")
        shape = SourceValue("constant", shape.said, shape.given)
    warmup = r.count(f"{scheduler}.lr_warmup_iters", default=13)
    common.schedule(r, shape, unit="rollout", warmup=warmup, note=_ADVANCES)
    r.drop(r.find(f"{scheduler}.lr_warmup_init"), "the warm-up begins at learning_rate / warmup here")
    least = r.number(f"{optimizer}.min_lr")
    if least is not None and shape.value != "constant":
        r.put("learner.final_ratio", least.value / lr.value, least, lr)
    decay = r.find(f"{scheduler}.lr_decay_iters")
    r.drop(decay, "a schedule ends at trainer.steps here", idle=shape.value == "constant")


def _scheduler(r: Reading) -> tuple[SourceValue, SourceValue]:
    """Shape and warm-up of a list of torch schedulers with milestones."""
    found = r.find("policy.scheduler")
    if found is None:
        usual = "NeMo RL's default of policy.scheduler"
        return SourceValue("constant", usual, False), SourceValue(50, usual, False)
    stages: list[Any] = found.value if isinstance(found.value, list) else [found.value]
    shape, warmup, known = "constant", 0, True
    for stage in stages:
        name = str(stage.get("name", "")) if isinstance(stage, dict) else ""
        kwargs = stage.get("kwargs") if isinstance(stage, dict) else None
        kwargs = kwargs if isinstance(kwargs, dict) else {}
        if name.endswith("LinearLR") and isinstance(kwargs.get("total_iters"), int):
            warmup = kwargs["total_iters"]
        elif name.endswith("CosineAnnealingLR"):
            shape = "cosine"
        elif name and not name.endswith("ConstantLR"):
            known = False
    if not known:
        r.drop(found, "holds a schedule that has no counterpart; constant after the warm-up is taken")
    said = "from policy.scheduler"
    return SourceValue(shape, said, True), SourceValue(warmup, f"{said}: total_iters of LinearLR = {warmup}", True)


def _running(r: Reading) -> None:
    generation = "policy.generation"
    backend = r.text(f"{generation}.backend", default="vllm")
    common.generation(r, generation, backend, f"{generation}.vllm_kwargs")
    if not r.cautions:
        r.take("model.path", r.find("policy.model_name", default="Qwen/Qwen2.5-1.5B"), str)
    saves = r.flag("checkpointing.enabled", default=True)
    if not saves.value:
        r.put("checkpoint.every", 0, saves, note="0: only at the end")
    _data(r)
    _validation(r)
    common.end(r, r.number("grpo.max_num_steps"), r.number("grpo.max_num_epochs", default=1))
    project = r.find("logger.wandb.project")
    boards = {name: r.flag(f"logger.{name}_enabled", default=False) for name in ("wandb", "tensorboard", "mlflow")}
    if used := {name: on.said[5:] for name, on in boards.items() if on.value}:
        found = SourceValue(" ".join(used), f"from {', '.join(used.values())}", True)
        common.trackers(r, found, project, otherwise="grpo-dev")
        if r.flag("grpo.use_dynamic_sampling", default=False).value:
            r.put("logging.also", "nemo-rl", note="NeMo RL's names of three metrics of dynamic sampling")
    common.run_name(r, r.find("logger.wandb.name"))
    common.staleness_if(r, "grpo.async_grpo.enabled", "grpo.async_grpo.max_trajectory_age_steps", default=1)
    _best(r)


def _best(r: Reading) -> None:
    """Set the metric of the best checkpoint, and the time by which a run saves and ends."""
    metric = r.find("checkpointing.metric_name")
    name = "" if metric is None else str(metric.value).removeprefix("val:").removeprefix("val_")
    measured = "data.validation" in r.lines and r.lines["validation.every"].value
    if metric is not None and not measured:
        r.drop(metric, "checkpoint.best needs data.validation, which is not named", idle=True)
    elif metric is not None and name in ("accuracy", "reward"):
        r.put("checkpoint.best", "validation/accuracy", metric, note="NeMo RL's validation accuracy is its mean reward")
    elif metric is not None:
        r.drop(metric, "checkpoint.best takes a metric of dapo (docs/metrics.md)")
    by = r.find("checkpointing.checkpoint_must_save_by")
    words = [] if by is None else str(by.value).split(":")
    if len(words) == 4 and all(word.isdigit() for word in words):
        days, hours, minutes, seconds = map(int, words)
        r.put("trainer.max_hours", round(24 * days + hours + minutes / 60 + seconds / 3600, 4), by, note="days:h:m:s")


def _validation(r: Reading) -> None:
    """Write the evaluation. Rows that repeat a problem become samples: dapo asks each problem once, G times.

    ``grpo.max_val_samples`` counts rows before ``grpo.val_num_generations_per_prompt`` repeats them.
    """
    found = r.find("data.validation.dataset_name", "data.val_dataset_name")
    most = r.need("grpo.max_val_samples", default=256)
    each = r.count("grpo.val_num_generations_per_prompt", default=1)
    repeat = r.count("data.validation.repeat", default=1)
    name = "" if found is None else _plain(found.value)
    problems, repeats = 30 if "aime" in name else 0, 32 if name == "dapomathaime2024" else repeat.value
    founds = (each, most, repeat) if repeats > 1 else (each,)
    if problems and most.value < problems * repeats:
        seen = max(1, int(most.value) // problems)
        r.say(f"{common.brief(most)} of {problems * repeats} rows: {problems} problems, {seen} rows of each")
        repeats = seen
    elif not problems:
        r.put("validation.limit", max(1, int(most.value) // repeats), most, *founds[2:])
    note = f"{repeats} rows of each problem" if repeats > 1 else ""
    r.put("validation.samples", each.value * repeats, *founds, note=note)
    r.put("validation.greedy", False, note="none in NeMo RL")
    for ours in ("temperature", "top_p"):
        found = r.need(f"policy.generation.val_{ours}", f"policy.generation.{ours}", default=1.0)
        r.take(f"validation.{ours}", found, float)


def _plain(name: Any) -> str:
    return str(name).lower().replace("-", "").replace("_", "")


_KNOWN_DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "dapomath17k": ("BytedTsinghua-SIA/DAPO-Math-17k", {"format": "dapo_math"}),
    "dapomathaime2024": ("BytedTsinghua-SIA/AIME-2024", {"format": "dapo_math"}),
    "aime2024": ("BytedTsinghua-SIA/AIME-2024", {"format": "dapo_math"}),
    "gsm8k": ("openai/gsm8k:main", {"format": "gsm8k"}),
    "openmathinstruct2": (
        "nvidia/OpenMathInstruct-2",
        {"split": "train_1M", "fields": {"problem": "problem", "answer": "expected_answer"}},
    ),
}


def _data(r: Reading) -> None:
    usual = None if r.cautions or r.given("data.train") else "OpenMathInstruct-2"
    for part, default in (("train", usual), ("validation", None)):
        old = "data.dataset_name" if part == "train" else "data.val_dataset_name"
        name = r.find(f"data.{part}.dataset_name", old, default=default)
        found = r.find(f"data.{part}.data_path") or name  # a ResponseDataset has its file in data_path
        asked = [r.find(f"data.{part}.{key}", f"data.default.{key}") for key in ("input_key", "output_key")]
        if found is None:
            continue
        if not found.given:
            prompt = (
                "Think step-by-step to solve the following problem. Output your answer inside of \\boxed{} tags.:\n"
            )
            r.put("data.instruction", prompt, found, note="NeMo RL's examples/prompts/cot.txt")
        columns = {ours: str(key.value) for ours, key in zip(("problem", "answer"), asked, strict=True) if key}
        known = _KNOWN_DATA.get(_plain(found.value))
        if known:
            r.put(f"data.{part}", [{"path": f"hub:{known[0]}", **known[1]}], found)
        elif "/" in str(found.value) or found.unread:
            fields: dict[str, Any] = {"fields": columns} if columns else {}
            found = replace(found, said=", ".join([found.said, *(key.said[5:] for key in asked if key)]))
            common.data(r, part, found, **fields)
        else:
            r.drop(found, f"a data set that NeMo RL knows by name: give its file, data.{part}.0.path=FILE")
