"""The teachers of a recipe, and settings of ``algorithm.teacher`` that contradict others."""

from __future__ import annotations

from dapo.config.check_data import source_name
from dapo.config.faults import Broken
from dapo.config.schema import Recipe

_TEACHER = "algorithm.teacher"


def teachers(r: Recipe) -> dict[str, str]:
    """Return the teacher's path of each training source that has one, by the source's name."""
    given = r.algorithm.teacher
    if not given.coefficient or r.run.stage == "sft":
        return {}
    paths = {name: given.by_source.get(name, given.path) for name in map(source_name, r.data.train)}
    return {name: path for name, path in paths.items() if path is not None}


def taught_alone(r: Recipe) -> bool:
    """Whether a teacher is all that trains: no reward has a weight."""
    return bool(teachers(r)) and r.scorer is None and all(reward.weight == 0 for reward in r.rewards)


def check_teacher(r: Recipe) -> Broken:
    """Yield what makes a teacher impossible, or without effect."""
    given, sources = r.algorithm.teacher, {source_name(source) for source in r.data.train}
    named = given.path is not None or bool(given.by_source)
    if r.rewards and all(reward.weight == 0 for reward in r.rewards) and not teachers(r):
        yield "rewards", "every weight is 0, so every reward is 0; give at least one a weight, or name a teacher"
    for name in given.by_source.keys() - sources:
        yield f"{_TEACHER}.by_source", f"names {name}, and the training sources are {', '.join(sorted(sources))}"
    if not named:
        if not r.rewards and r.scorer is None and r.run.stage != "sft":
            yield "rewards", "is empty, and there is no teacher (algorithm.teacher.path): nothing would train. Give one"
        changed = [name for name in ("term", "coefficient", "estimator", "offload") if name in given.model_fields_set]
        if changed and any(getattr(given, name) != type(given).model_fields[name].default for name in changed):
            yield f"{_TEACHER}.path", "names no teacher, so the section's other settings do nothing; give a model"
        return
    for key, paths in (("path", [given.path or "-"]), ("by_source", list(given.by_source.values()))):
        if any("://" in path for path in paths):
            yield (
                f"{_TEACHER}.{key}",
                "names a server; the learner loads teachers: give a folder or hub name",
            )
        elif not all(path.strip() for path in paths):
            yield f"{_TEACHER}.{key}", "names no model; give a folder, a GGUF file or a hub name"
    if not given.coefficient:
        yield f"{_TEACHER}.coefficient", "is 0, so the teacher has no effect; take the section out, or raise it"
        return
    if given.path is not None and sources <= given.by_source.keys():
        yield f"{_TEACHER}.path", "judges nothing: by_source names a teacher for every source; take it out"
    if given.term == "advantage":
        yield from _as_advantage(r)
    if taught_alone(r):
        yield from _alone(r)


def _as_advantage(r: Recipe) -> Broken:
    loss, correction = r.algorithm.loss.kind, r.algorithm.correction.kind
    if loss in ("clip_cov", "kl_cov"):
        yield (
            f"{_TEACHER}.term",
            f"gives each token an advantage of its own, and loss.kind: {loss} marks tokens by the response's; set "
            "term: loss, or loss.kind: clip",
        )
    if correction == "mask_off_policy":
        yield (
            f"{_TEACHER}.term",
            "gives each token an advantage of its own, and correction.kind: mask_off_policy asks the sign of the "
            "response's; set term: loss, or another correction",
        )


def _alone(r: Recipe) -> Broken:
    sampling, punishment = r.algorithm.dynamic_sampling, r.algorithm.overlong_punishment
    why = "no reward has a weight, so the teacher alone trains, and it has something to say of every response"
    if sampling.mode != "off":
        yield "algorithm.dynamic_sampling.mode", f"{why}: set mode: off (preset: distillation does)"
    if punishment.enabled and punishment.factor and r.algorithm.shaping is None:
        said = "no reward has a weight, so length alone would count: set enabled: false (preset: distillation does)"
        yield "algorithm.overlong_punishment.enabled", said
    if r.algorithm.shaping is not None:
        yield "algorithm.shaping", "no reward has a weight, so there is nothing to shape; take it out, or give a weight"
    if r.algorithm.kl_in_reward and r.algorithm.kl_coefficient:
        yield "algorithm.kl_in_reward", "no reward has a weight to subtract from; set it to false: KL in the loss"
    if r.rewards:
        return
    if r.data.validation:
        yield (
            "data.validation",
            (
                "is answered, and no reward says what is right: give one without a weight, such as "
                "rewards: [{kind: math, weight: 0}], or take it out"
            ),
        )
    for n, source in enumerate(r.data.train):
        if source.levels:
            yield f"data.train.{n}.levels", "follow the accuracy, and no reward measures it; give one with weight: 0"
