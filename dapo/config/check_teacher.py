"""The teachers of a recipe, and settings of ``algorithm.teacher`` that contradict others."""

from __future__ import annotations

from urllib.parse import urlsplit

from dapo.config.check_data import source_name
from dapo.config.faults import Broken
from dapo.config.schema import Recipe
from dapo.config.section import BARE, is_bare

_TEACHER = "algorithm.teacher"


def teachers(r: Recipe) -> dict[str, str]:
    """Return the teacher's path of each training source that has one, by the source's name. Equal servers are one."""
    given = r.algorithm.teacher
    if not given.coefficient or r.run.stage == "sft":
        return {}
    paths = {name: given.by_source.get(name, given.path) for name in map(source_name, r.data.train)}
    return {name: path.rstrip("/") if on_server(path) else path for name, path in paths.items() if path is not None}


def teacher_paths(r: Recipe, *, served: bool) -> list[str]:
    """Return each teacher once: those on servers, or those that the learner loads."""
    return [path for path in dict.fromkeys(teachers(r).values()) if on_server(path) is served]


def on_server(path: str) -> bool:
    """Whether a teacher's path is the address of a server."""
    return "://" in path


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
        changed = given.model_fields_set - {"path", "by_source"}
        if any(getattr(given, name) != type(given).model_fields[name].default for name in changed):
            yield f"{_TEACHER}.path", "names no teacher, so the section's other settings do nothing; give a model"
        return
    for key, paths in (("path", [given.path or "-"]), ("by_source", list(given.by_source.values()))):
        for path in filter(on_server, paths):
            yield from _on_server(r, f"{_TEACHER}.{key}", path)
        if not all(path.strip() for path in paths):
            move = "give a folder, a GGUF file, a hub name or the address of a vLLM server"
            yield f"{_TEACHER}.{key}", f"names no model; {move}"
    if not given.coefficient:
        yield f"{_TEACHER}.coefficient", "is 0, so the teacher has no effect; take the section out, or raise it"
        return
    if given.path is not None and sources <= given.by_source.keys():
        yield f"{_TEACHER}.path", "judges nothing: by_source names a teacher for every source; take it out"
    if given.term == "advantage":
        yield from _as_advantage(r)
    if taught_alone(r):
        yield from _alone(r)


def _on_server(r: Recipe, key: str, path: str) -> Broken:
    if not is_bare(path):
        yield key, f"expected a vLLM server as {BARE}, {_TEACHER}.api_key_variable"
        return
    urls = r.rollout.server.url or []
    engines = filter(is_bare, [urls] if isinstance(urls, str) else urls)
    if r.rollout.engine == "vllm_server" and _place(path) in map(_place, engines):
        yield key, "is the engine's server (rollout.server.url), which has the student's weights: name another server"
    if (temperature := r.rollout.temperature) != 1:
        yield (
            key,
            f"a server gives log-probabilities at temperature 1, and rollout.temperature is {temperature:g}: set that "
            "to 1, or let the learner load the teacher (a folder or hub name)",
        )


def _place(url: str) -> tuple[str, int]:
    """Return host and port; all names of this machine are one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ("localhost" if host in ("127.0.0.1", "::1", "0.0.0.0") else host), port


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
