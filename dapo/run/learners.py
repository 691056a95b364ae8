"""The learner that a recipe names: of this process, of one beside it, or of ranks in processes of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from dapo.config.deployment import weight_route
from dapo.config.schema import Lora, Recipe
from dapo.errors import ModelError
from dapo.learner.apart import LearnerApart, LearnerHost
from dapo.learner.group import LearnerGroup
from dapo.learner.local import LocalLearner
from dapo.learner.publisher import Audience
from dapo.learner.rank import Rank, RankPlace, open_rank
from dapo.learner.sharding import Shape
from dapo.models.load import find_device
from dapo.models.loaded import LoadedModel
from dapo.models.rendezvous import LOOPBACK, serve
from dapo.observe.console import Console
from dapo.processes.left_over import claim, delete_left, leave
from dapo.processes.transport import HostSpec
from dapo.rollout.pool import EnginePool
from dapo.run.parts import adapter_seed, make_correction, make_model, make_objective, needs_reference
from dapo.run.places import Places, transport_of
from dapo.types.batch import PASSING
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine, Learner


def without_adapter(recipe: Recipe) -> Recipe:
    """The recipe of an engine's own model: what it is sent is merged."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"lora": Lora()})})


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
    say: Callable[[str], None] = lambda note: None,
    places: Places | None = None,
    engine: Engine | None = None,
) -> Learner:
    """The recipe's learner.

    Args:
        recipe: the recipe.
        facts: of its model.
        loaded: that model, which the learner of this process trains; None: it lives elsewhere, and loads its own.
        weights: from ``weights_folder``: what it publishes through.
        run: the run's folder, for what ranks print; None: it is dropped.
        training: False: it is asked for nothing but its weights and log-probabilities.
        say: hears what a person should know of a model that is loaded elsewhere.
        places: where a learner that lives elsewhere does; None: in processes of this machine.
        engine: that its weights go to.

    Raises:
        ModelError: the model cannot be loaded in its process.
        LearnerLost: a process did not start.
    """
    if recipe.learner.ranks > 1:
        assert weights is not None  # weights_folder
        audience = make_audience(recipe, places)
        group = _ranks(recipe, facts.name, weights, run, places, audience)
        for note in group.notes:
            if loaded is None or note not in loaded.notes:  # the engine's model, here, is the same one
                say(note)
        return _heard(group, audience, engine)
    if loaded is None:
        assert weights is not None  # engines beside it have weights of their own
        environment = {"OMP_NUM_THREADS": str(recipe.run.threads)}
        spec = HostSpec("learner", start_learner, (_at(recipe, facts.name), weights), environment)
        audience = make_audience(recipe, places)
        transport = transport_of(run, places)
        learner = LearnerApart(transport, spec, asynchronous=recipe.checkpoint.asynchronous, audience=audience)
        for note in learner.notes:
            say(note)
        return _heard(learner, audience, engine)
    return _local(recipe, loaded, weights, training=training)


def make_audience(recipe: Recipe, places: Places | None) -> Audience:
    """How the learner's processes publish; for a broadcast with the store where its members meet."""
    route = weight_route(recipe)
    if route != "broadcast":
        return Audience(route)
    store, address = serve(_host(places))
    return Audience(route, store, address, recipe.learner.timeout)


def _host(places: Places | None) -> str:
    """Return the address at which the run's processes reach this one."""
    return LOOPBACK if places is None or places.one_machine else places.here


def _heard(learner: LearnerGroup | LearnerApart, audience: Audience, engine: Engine | None) -> Learner:
    """A pool deletes weights itself; where they can be had only just after a publish, both know of each other."""
    audience.deletes = isinstance(engine, EnginePool)
    if audience.route in PASSING and isinstance(engine, EnginePool):
        audience.present = engine.weights_from(learner.publisher)
    return learner


def _local(recipe: Recipe, loaded: LoadedModel, weights: Path | None, *, training: bool = True) -> LocalLearner:
    return LocalLearner(
        loaded,
        make_objective(recipe),
        recipe.learner,
        recipe.rollout.temperature,
        correction=make_correction(recipe),
        weights_folder=weights,
        reference=recipe.algorithm.reference if training and needs_reference(recipe) else None,
        asynchronous=recipe.checkpoint.asynchronous,
    )


def start_learner(recipe: Recipe, weights: Path) -> LearnerHost:
    """In the learner's process: everything that it needs, from the recipe, whose model is found as it is named.

    Raises:
        ModelError: a device or a model that cannot be.
    """
    with Console("quiet") as console:
        return LearnerHost(_local(recipe, make_model(recipe, console), weights))


def _at(recipe: Recipe, path: str) -> Recipe:
    """With the model where it lies: a built-in one is made once, by the driver."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": path})})


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
        seed=adapter_seed(recipe),
    )


def rank_specs(
    recipe: Recipe, model: str, meeting: str, environment: Mapping[str, str] | None = None
) -> list[HostSpec]:
    """What each rank is made of.

    Args:
        recipe: the recipe.
        model: folder or hub name, where ranks find it.
        meeting: the address at which they find each other; see ``RankPlace``.
        environment: variables of theirs, on top of the driver's.
    """
    learner = recipe.learner
    reshard = {"auto": None, "true": True, "false": False}[learner.reshard_after_forward]
    shape = Shape(learner.ranks, learner.replicas, reshard, learner.cpu_offload)
    environment = {"OMP_NUM_THREADS": str(recipe.run.threads), **(environment or {})}
    return [
        HostSpec(
            f"rank-{rank}", start_rank, (recipe, model, RankPlace(rank, shape, meeting, learner.timeout)), environment
        )
        for rank in range(learner.ranks)
    ]


def _ranks(
    recipe: Recipe, model: str, weights: Path, run: Path | None, places: Places | None, audience: Audience
) -> LearnerGroup:
    environment: dict[str, str] = {}
    meeting = ExitStack()
    try:
        if places is None:
            address = f"file://{Path(_meeting_folder(meeting)) / 'meeting'}"
        else:
            store, address = serve(_host(places))
            meeting.callback(lambda: store)  # it lives as long as somebody holds it
            if places.cuda:
                environment["LOCAL_RANK"] = "0"  # of the devices that a rank sees, which are its own
        return LearnerGroup(
            transport_of(run, places),
            rank_specs(recipe, model, address, environment),
            recipe.learner,
            weights,
            asynchronous=recipe.checkpoint.asynchronous,
            meeting=meeting,
            audience=audience,
        )
    except BaseException:
        meeting.close()
        raise


_MEETINGS = "dapo-ranks-"


def _meeting_folder(held: ExitStack) -> str:
    """For the file in which ranks of this machine meet: nobody else deletes it, as ranks are killed at their end."""
    parent = Path(tempfile.gettempdir())
    delete_left(parent, _MEETINGS)
    folder = claim(lambda: tempfile.mkdtemp(prefix=f"{_MEETINGS}{os.getpid()}-", dir=parent))
    held.callback(leave, folder)
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder
