"""Teachers of other trainers: what becomes of on-policy distillation (``algorithm.teacher``)."""

from __future__ import annotations

import re

from dapo.importing.common import DS
from dapo.importing.reading import Reading, SourceValue

_TEACHER = "algorithm.teacher"
_ELSEWHERE = "the learner holds the teacher here"


def nemo(r: Reading) -> bool:
    """Read NeMo RL's ``on_policy_distillation``, and return whether its teacher is all that trains.

    Its advantage is log p_teacher - log p of the policy before the step, and rewards are only looked at.
    """
    section = "on_policy_distillation"
    on, estimator = r.flag(f"{section}.enabled", default=False), r.text("grpo.adv_estimator.name", default="grpo")
    if not on.value or estimator.value != "opd":
        return False
    models = [key for key in r.source.settings if key.startswith(f"{section}.teacher_model_by_agent_name.")]
    paths = [found for key in models if (found := r.find(key)) is not None]
    if len({found.value for found in paths}) != 1:
        r.replace(on, "one teacher by agent: here algorithm.teacher.by_source names them by data source")
        return False
    _put(r, paths[0], None, on, estimator)
    _idle(r, rf"{section}\..*")
    _alone(r, estimator)
    return True


def verl(r: Reading) -> None:
    """Read verl's ``distillation``."""
    section = "distillation"
    on = r.flag(f"{section}.enabled", default=False)
    if not on.value:
        return
    named = r"distillation\.(teacher_models\.\w+\.model_path|teacher_model\.(model_)?path)"
    paths = [found for key in r.source.settings if re.fullmatch(named, key) and (found := r.find(key)) is not None]
    loss = f"{section}.distillation_loss"
    mode, as_reward = r.text(f"{loss}.loss_mode", default="k3"), r.flag(f"{loss}.use_policy_gradient", default=False)
    rewards = r.flag(f"{loss}.use_task_rewards", default=True)
    names = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    estimator = names.get(str(mode.value))
    if len(paths) != 1 or estimator is None or (as_reward.value and (estimator != "k1" or rewards.value)):
        r.replace(on, f"a teacher of another form is here: {_why(len(paths), str(mode.value), estimator)}")
        return
    _put(r, paths[0], r.need(f"{loss}.distillation_loss_coef", default=1.0) if rewards.value else None, on)
    if as_reward.value:
        r.put(f"{_TEACHER}.term", "advantage", as_reward, mode)
        for ours, theirs in (("low", "clip_ratio_low"), ("high", "clip_ratio_high")):
            r.take(f"algorithm.clip.{ours}", r.need(f"{loss}.{theirs}", default=0.2), float)
        r.say(
            "verl takes the present student's log-probabilities for the advantage, and here those that the ratio runs "
            "against: the same in the first optimizer step of a training step"
        )
    else:
        r.put(f"{_TEACHER}.term", "loss", as_reward)
        r.put(f"{_TEACHER}.estimator", estimator, mode)
    for clamp in ("loss_max_clamp", "log_prob_min_clamp"):
        r.drop(r.find(f"{loss}.{clamp}"), "differences of log-probabilities are clamped at 20 nats here")
    _idle(
        r, rf"{section}\.(?!distillation_loss).*|{loss}\.(topk|clip_ratio\w*|policy_loss_mode|distillation_loss_coef)"
    )
    if not rewards.value:
        _alone(r, rewards)


def swift(r: Reading) -> None:
    """Read ms-swift's ``teacher_model`` or ``teacher_model_server``, of which one is given.

    Its advantage of a token has ``teacher_kl_coef`` x (log p_teacher - log p of the policy before the step) added.
    """
    path, offload = r.find("teacher_model"), r.find("offload_teacher_model")
    if path is None and (path := r.find("teacher_model_server")) is not None:
        temperature = r.need("temperature", default=0.9)
        if temperature.value != 1:
            r.replace(path, f"a server judges at temperature 1, and responses are sampled at {temperature.value}")
            return
        address = str(path.value).rstrip("/").removesuffix("/v1")
        address = address if "://" in address else f"http://{address}"
        path = SourceValue(address, path.said, path.given, path.unread)
        r.drop(offload, "the server holds the teacher", idle=True)
        offload = None
    if path is None or isinstance(path.value, list):
        return
    _put(r, path, r.need("teacher_kl_coef", default=1.0))
    r.take(f"{_TEACHER}.offload", offload, lambda value: str(value).lower() == "true")
    _idle(r, r"teacher_(deepspeed|model_type|model_revision)")
    if not r.given("reward_funcs"):
        _alone(r, path)


def _why(teachers: int, mode: str, estimator: str | None) -> str:
    if teachers != 1:
        return f"{teachers} teachers are named; algorithm.teacher.by_source has one for each data source"
    if estimator is None:
        return f"{mode} compares more than the sampled token"
    return "with rewards verl clips its advantage apart from theirs, and only k1 is one here"


def _put(r: Reading, path: SourceValue, coefficient: SourceValue | None, *founds: SourceValue) -> None:
    r.put(f"{_TEACHER}.path", str(path.value), path, *founds)
    r.take(f"{_TEACHER}.coefficient", coefficient, float)


def _idle(r: Reading, pattern: str) -> None:
    """List the source's other keys of the teacher as such that change nothing that is computed."""
    for key in [key for key in r.source.settings if key not in r.used and re.fullmatch(pattern, key)]:
        r.drop(r.find(key), _ELSEWHERE, idle=True)


def _alone(r: Reading, found: SourceValue) -> None:
    """Write that rewards are measured and train nothing."""
    r.put(
        "rewards", [{"name": "accuracy", "kind": "math", "weight": 0}], found, note="it is measured, and trains nothing"
    )
    r.put(f"{DS}.mode", "off", found)
    r.put("algorithm.overlong_punishment.enabled", False, found)
    r.put("algorithm.reward_scaling.enabled", False, found)
