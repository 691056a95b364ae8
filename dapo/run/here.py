"""Reasons that keep a sound recipe from starting on this machine; another machine may have what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from dapo.config.deployment import deployment_of
from dapo.config.schema import Recipe
from dapo.data.hub_sets import missing_for_hub
from dapo.errors import ModelError, NotInstalled
from dapo.metrics.peers import nemo_rl_metrics
from dapo.models.load import find_device, missing_weights
from dapo.observe.run_files import no_room_in
from dapo.observe.run_folder import RunFolder
from dapo.observe.trackers import make_trackers, missing_tracker
from dapo.run.engines import missing_card, missing_key, missing_of_learner, missing_package
from dapo.types.events import Callback


def trackers_of(recipe: Recipe) -> list[Callback]:
    """Make the trackers that the recipe names.

    Raises:
        RecipeError: one of the user's that is none.
    """
    if recipe.logging.also != "nemo-rl":
        return make_trackers(recipe.logging.trackers)
    rollout, oversample = recipe.rollout, recipe.algorithm.dynamic_sampling.oversample
    more = partial(
        nemo_rl_metrics, prompts=rollout.prompts_per_step, group_size=rollout.group_size, oversample=oversample
    )
    return make_trackers(recipe.logging.trackers, more)


def check_trackers(recipe: Recipe) -> None:
    """Refuse trackers that this run could not write to.

    Raises:
        NotInstalled: a package is missing.
        RecipeError: one of the user's that is none.
    """
    if missing := missing_tracker(trackers_of(recipe)):
        raise NotInstalled(missing)


def lacking(recipe: Recipe) -> Iterator[str]:
    """Yield packages, devices and variables that the run needs and this machine lacks, each with the next move."""
    supervised = recipe.run.stage == "sft"
    if missing := missing_weights(recipe.model.path):
        yield missing
    paths = (str(source.path) for source in (*recipe.data.train, *recipe.data.validation))
    yield from dict.fromkeys(missing for path in paths if (missing := missing_for_hub(path)))
    if missing := missing_of_learner(recipe) if supervised else missing_package(recipe):
        yield missing
    if not supervised and (missing := missing_key(recipe)):
        yield missing
    if missing := missing_tracker(trackers_of(recipe)):
        yield missing
    deployment = deployment_of(recipe)
    if deployment.on_ray and deployment.learner_hosts:
        return  # the devices are those of other machines
    try:
        device = find_device(recipe.model.device)
        if not supervised and (missing := missing_card(recipe)):
            yield missing
    except ModelError as error:
        yield str(error)
        return
    ranks = deployment.ranks
    if recipe.learner.cpu_offload and device.type == "cpu":
        yield (
            "learner.cpu_offload moves slices from a GPU into the processor's memory, and torch sees no CUDA device "
            "here: take it out, or start this on a machine with GPUs"
        )
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        yield (
            f"learner.ranks is {ranks}, and torch sees {torch.cuda.device_count()} CUDA devices here: every rank needs "
            "one of its own; set learner.ranks accordingly, or start this where there are as many"
        )


def without_place(recipe: Recipe) -> Iterator[str]:
    """Why the folders of the run cannot be made, as far as can be seen without making them."""
    run = recipe.run
    if said := RunFolder.refusal(run.dir, run.name, run.if_exists):
        yield said
    place = recipe.checkpoint.dir
    if place is not None and (said := no_room_in(Path(place).absolute())):
        yield f"checkpoint.dir = {place}: no folder can be made there: {said}. Change checkpoint.dir"
