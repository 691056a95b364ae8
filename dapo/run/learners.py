"""The learner that a recipe names: of this process, or of ranks in processes that it starts itself."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from dapo.cluster.processes import ProcessTransport
from dapo.config.schema import Recipe
from dapo.contracts.model import ModelFacts
from dapo.contracts.protocols import Learner
from dapo.contracts.remote import HostSpec
from dapo.errors import ModelError
from dapo.learner.group import LearnerGroup
from dapo.learner.local import LocalLearner
from dapo.learner.rank import Rank, RankPlace, open_rank
from dapo.learner.sharding import Shape
from dapo.models.load import find_device
from dapo.models.loaded import LoadedModel
from dapo.run.parts import make_correction, make_objective, needs_reference

OUTPUT = "hosts"
"""Of a run's folder: what the processes of its ranks print."""


def over_ranks(recipe: Recipe) -> bool:
    """Whether the learner lives in processes of its own, and no tensor of it in this one."""
    return recipe.learner.ranks > 1


def in_one_process(recipe: Recipe) -> Recipe:
    """The recipe with the learner of this process: enough to read a checkpoint's weights, of any number of ranks."""
    alone = {"ranks": 1, "replicas": 1, "cpu_offload": False, "reshard_after_forward": "auto"}
    return recipe.model_copy(update={"learner": recipe.learner.model_copy(update=alone)})


def make_learner(
    recipe: Recipe,
    facts: ModelFacts,
    loaded: LoadedModel | None,
    *,
    weights: Path | None,
    run: Path | None,
    training: bool = True,
) -> Learner:
    """The recipe's learner.

    Args:
        recipe: the recipe.
        facts: of its model.
        loaded: that model, which the learner of this process trains; ranks load their own parts.
        weights: from ``weights_folder``: what it publishes through.
        run: the run's folder, for what ranks print; None: it is dropped.
        training: False: it is asked for nothing but its weights and log-probabilities.

    Raises:
        ModelError: a rank cannot load its part.
        LearnerLost: a rank did not start.
    """
    if over_ranks(recipe):
        assert weights is not None  # weights_folder
        return _ranks(recipe, facts.name, weights, run)
    assert loaded is not None
    return LocalLearner(
        loaded,
        make_objective(recipe),
        recipe.learner,
        recipe.rollout.temperature,
        correction=make_correction(recipe),
        weights_folder=weights,
        reference=recipe.algorithm.reference if training and needs_reference(recipe) else None,
    )


def start_rank(recipe: Recipe, model: str, place: RankPlace) -> Rank:
    """In the process of a rank: everything that it needs, from the recipe.

    Raises:
        ModelError: a device or a model that cannot be.
    """
    disable_progress_bar()
    torch.set_num_threads(recipe.run.threads)
    torch.set_float32_matmul_precision(recipe.model.matmul_precision)
    device = find_device(recipe.model.device)
    if recipe.learner.cpu_offload and device.type == "cpu":
        raise ModelError(
            "learner.cpu_offload moves slices from a CUDA device into the processor's memory, and this learner runs on "
            "the processor: take it out"
        )
    return open_rank(
        place,
        recipe.model.model_copy(update={"path": model}),
        recipe.learner,
        recipe.rollout.temperature,
        make_objective(recipe),
        make_correction(recipe),
        recipe.algorithm.reference if needs_reference(recipe) else None,
        device=device,
    )


def rank_specs(recipe: Recipe, model: str, meeting: str) -> list[HostSpec]:
    """What each rank is made of.

    Args:
        recipe: the recipe.
        model: folder or hub name, where ranks find it.
        meeting: the address at which they find each other, as ``torch.distributed`` takes it.
    """
    learner = recipe.learner
    reshard = {"auto": None, "true": True, "false": False}[learner.reshard_after_forward]
    shape = Shape(learner.ranks, learner.replicas, reshard, learner.cpu_offload)
    environment = {"OMP_NUM_THREADS": str(recipe.run.threads)}
    return [
        HostSpec(
            f"rank-{rank}", start_rank, (recipe, model, RankPlace(rank, shape, meeting, learner.timeout)), environment
        )
        for rank in range(learner.ranks)
    ]


def _ranks(recipe: Recipe, model: str, weights: Path, run: Path | None) -> LearnerGroup:
    meeting = Path(tempfile.gettempdir()) / f"dapo-ranks-{secrets.token_hex(8)}"
    return LearnerGroup(
        ProcessTransport(None if run is None else run / OUTPUT),
        rank_specs(recipe, model, f"file://{meeting}"),
        recipe.learner,
        weights,
        asynchronous=recipe.checkpoint.asynchronous,
    )
