"""Checks of a supervised start, and what a recipe is for ``dapo sft``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dapo.config.check_data import source_name
from dapo.config.faults import Broken
from dapo.config.schema import DataSource, Recipe, Sft, SftSource

SUFFIX = "-sft"
_OF_REWARDS = ("rewards", "scorer", "sandbox", "rollout", "algorithm", "validation", "cluster", "launch", "slurm")
"""Sections of training by reward."""
_OF_REWARDS_TOO = {
    "run": "reward_workers reward_memory_mib",
    "data": "train stream curriculum thinking max_prompt_tokens overlong_prompts epochs",
    "learner": "learning_rate schedule schedule_unit warmup final_ratio minibatch_prompts epochs_per_rollout",
    "trainer": "steps sync_check_tolerance",
    "logging": "rollouts tokens samples_every",
}
_READ_ANYWAY = ("rollout.stop_token_ids", "cluster.max_learner_restarts")


def read_by_sft(path: str) -> bool:
    """Whether ``dapo sft`` reads the setting at this path."""
    section, _, rest = path.partition(".")
    if path in _READ_ANYWAY:
        return True
    return section not in _OF_REWARDS and rest.partition(".")[0] not in _OF_REWARDS_TOO.get(section, "").split()


def read_by_train(path: str) -> bool:
    """Whether ``dapo train`` reads the setting at this path, of a recipe that may be for both."""
    return path.partition(".")[0] != "sft"


def unread_by_sft(overrides: Collection[str]) -> list[str]:
    """Warn if the command line of ``dapo sft`` sets what it does not read. A file may set it, since it serves both
    commands."""
    unread = [
        f"{key} (it has sft.{name})" if (name := key.rpartition(".")[2]) in Sft.model_fields else key
        for key in overrides
        if not read_by_sft(key)
    ]
    return [f"`dapo sft` does not read {', '.join(unread)}"] if unread else []


def unread_by_train(beneath: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Warn if settings on top of a file are not read by training by reward. As ``unread_by_sft``.

    Args:
        beneath: settings of the file.
        own: these with the command line, or a caller's settings, on top.
    """
    old, new = (of.get("sft") for of in (beneath, own))
    old, new = (section if isinstance(section, Mapping) else {} for section in (old, new))
    unread = [f"sft.{name}" for name, value in new.items() if name not in old or old[name] != value]
    return [f"`dapo train` does not read {', '.join(unread)}: `dapo sft` does"] if unread else []


def sft_source_name(source: SftSource) -> str:
    """Return the name of a source in metrics: as given, else the file's without its suffix, or the folder's."""
    return source_name(DataSource(name=source.name, path=source.path))


def for_sft(given: Mapping[str, Any], named: bool) -> dict[str, Any]:
    """Return a recipe's settings in the form that ``dapo sft`` takes.

    The run is called NAME-sft, beside the run of ``dapo train`` by the same recipe (``named``: the command line names
    it). A recipe without problems to train on by reward gets a placeholder, which nothing reads.
    """
    own = {key: dict(value) if isinstance(value, Mapping) else value for key, value in given.items()}
    run, data = own.get("run") or {}, own.get("data") or {}
    if not isinstance(run, dict) or not isinstance(data, dict) or run.get("stage") == "sft":
        return own
    own["run"] = {**run, "stage": "sft"}
    if not named:
        own["run"]["name"] = f"{run.get('name', 'run')}{SUFFIX}"
    if not data.get("train"):
        own["data"] = {**data, "train": [{"task": "signed_sum", "name": "placeholder", "size": 4}]}
    return own


def supervised(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with ``sft``'s values for the learner, and ``steps`` training steps."""
    sft = recipe.sft
    learner = recipe.learner.model_copy(
        update={
            "learning_rate": sft.learning_rate,
            "schedule": sft.schedule,
            "schedule_unit": "optimizer",
            "warmup": sft.warmup,
            "final_ratio": sft.final_ratio,
            "minibatch_prompts": None,
            "epochs_per_rollout": 1,
        }
    )
    # no engine works beside it, and an optimiser step is a training step
    rollout = recipe.rollout.model_copy(update={"temperature": 1.0, "max_staleness": 0, "prompts_per_step": 1})
    trainer = recipe.trainer.model_copy(update={"steps": steps})
    return recipe.model_copy(update={"learner": learner, "rollout": rollout, "trainer": trainer})


def check_sft(r: Recipe) -> Broken:
    """Yield settings that a supervised run lacks, and settings that it does not use."""
    for where, sources in (("train", r.sft.train), ("validation", r.sft.validation)):
        for n, source in enumerate(sources):
            wrong = sorted(source.fields.keys() - {"prompt", "response", "messages"})
            if wrong or ("messages" in source.fields and len(source.fields) > 1):
                yield f"sft.{where}.{n}.fields", "expected `prompt` and `response`, or `messages` alone"
    if r.run.stage != "sft":
        return
    if r.launch.backend != "local":
        yield "launch.backend", "`dapo sft` keeps its ranks on this machine: leave it local"
    if not r.sft.train:
        move = (
            "is empty: name a file of prompts and responses or of messages, sft.train.0.path=FILE (`dapo rollouts RUN "
            "--correct` makes one of a run's correct responses)"
        )
        yield "sft.train", move
    for key, metric in (
        ("checkpoint.best", r.checkpoint.best),
        ("trainer.early_stop.metric", r.trainer.early_stop.metric),
    ):
        if metric is None or not metric.startswith("validation/"):
            continue
        if not metric.endswith("loss"):
            yield key, f"is not measured by `dapo sft`: add {key}=validation/loss to the command"
        elif not (r.sft.validation and r.sft.every):
            yield key, "needs held-out examples (sft.validation) that are measured (sft.every)"
