"""The learner that a recipe names: a worker of this process, of one beside it, or ranks in processes of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from dapo.config.deployment import Deployment
from dapo.config.schema import Lora, Recipe
from dapo.errors import ModelError
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import LearnerHosts, WorkerHere, Workers
from dapo.learner.sharding import Shape
from dapo.learner.step import PolicyStep
from dapo.learner.worker import RankPlace, Worker, make_worker
from dapo.models.load import find_device
from dapo.models.loaded import LoadedModel
from dapo.models.read import float32_weights
from dapo.models.rendezvous import serve
from dapo.observe.console import Console
from dapo.processes.left_over import claim, delete_left, leave
from dapo.processes.transport import HostSpec
from dapo.run.algorithm import make_correction, make_objective, needs_reference
from dapo.run.model import adapter_seed, make_model
from dapo.run.places import Places, transport_of
from dapo.run.publishing import host_of
from dapo.run.teachers import load_teachers, teacher_models
from dapo.types.model import ModelFacts
from dapo.weights.exchange import WeightExchange


def without_adapter(recipe: Recipe) -> Recipe:
    """Return the recipe of an engine's own model: what it is sent is merged."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"lora": Lora()})})


def in_one_process(recipe: Recipe) -> Recipe:
    """Return the recipe with a learner of this process, which reads the checkpoint of any number of ranks."""
    alone = {"ranks": 1, "replicas": 1, "context_parallel": 1, "cpu_offload": False, "reshard_after_forward": "auto"}
    return recipe.model_copy(update={"learner": recipe.learner.model_copy(update=alone)})


def make_learner(
    recipe: Recipe,
    deployment: Deployment,
    facts: ModelFacts,
    loaded: LoadedModel | None,
    *,
    exchange: WeightExchange,
    run: Path | None,
    training: bool = True,
    say: Callable[[str], None] = lambda note: None,
    places: Places | None = None,
) -> LearnerDriver:
    """Return the recipe's learner.

    Args:
        recipe: the recipe.
        deployment: who runs where.
        facts: of its model.
        loaded: the model of this process, if there is one: a learner of this process trains it.
        exchange: through which it publishes.
        run: the run's folder, for what workers print; None: it is dropped.
        training: False: it is asked for nothing but its weights and log-probabilities.
        say: hears what a person should know of a model that is loaded elsewhere.
        places: where processes of the learner run; None: on this machine.

    Raises:
        ModelError: the model cannot be loaded in its process.
        LearnerLost: a process did not start.
    """
    rendezvous = ExitStack()
    workers: Workers
    try:
        if deployment.learner == "here":
            assert loaded is not None  # Deployment.model_here
            workers = WorkerHere(_worker(recipe, loaded, training=training))
        else:
            specs = worker_specs(recipe, deployment, facts.name, rendezvous, places)
            workers = LearnerHosts(transport_of(run, places), specs, recipe.learner.timeout)
        asynchronous = recipe.checkpoint.asynchronous
        learner = LearnerDriver(workers, exchange, asynchronous=asynchronous, rendezvous=rendezvous)
    except BaseException:
        rendezvous.close()
        raise
    for note in learner.notes:
        if loaded is None or note not in loaded.notes:  # the model of this process is the same one
            say(note)
    return learner


def worker_specs(
    recipe: Recipe, deployment: Deployment, model: str, rendezvous: ExitStack, places: Places | None
) -> list[HostSpec]:
    """Return what each process of the learner is made of.

    Args:
        recipe: the recipe.
        deployment: who runs where.
        model: folder or hub name, where the processes find it. A built-in one is made once, by the driver.
        rendezvous: gets what the processes need to find each other.
        places: where they run; None: on this machine.
    """
    learner = recipe.learner
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": model})})
    environment = {"OMP_NUM_THREADS": str(recipe.run.threads)}
    if deployment.learner == "apart":
        (name,) = deployment.learner_hosts
        return [HostSpec(name, start_worker, (recipe,), environment)]
    if places is None:
        address = f"file://{Path(_rendezvous_folder(rendezvous)) / 'rendezvous'}"
    else:
        store, address = serve(host_of(places))
        rendezvous.callback(lambda: store)  # it lives as long as somebody holds it
        if places.cuda:
            environment["LOCAL_RANK"] = "0"  # of the devices that a rank sees, which are its own
    reshard = {"auto": None, "true": True, "false": False}[learner.reshard_after_forward]
    shape = Shape(learner.ranks, learner.replicas, reshard, learner.cpu_offload, learner.context_parallel)
    return [
        HostSpec(name, start_worker, (recipe, RankPlace(rank, shape, address, learner.timeout)), environment)
        for rank, name in enumerate(deployment.learner_hosts)
    ]


def start_worker(recipe: Recipe, place: RankPlace | None = None) -> Worker:
    """Make a worker of the learner in its process, from the recipe, whose model is found as it is named.

    Args:
        recipe: the recipe.
        place: among the ranks; None: it is alone, and holds the whole model.

    Raises:
        ModelError: a device or a model that cannot be.
    """
    if place is None:
        with Console("quiet") as console:
            return _worker(recipe, make_model(recipe, console))
    disable_progress_bar()
    torch.set_num_threads(recipe.run.threads)
    torch.set_float32_matmul_precision(recipe.model.matmul_precision)
    device = find_device(recipe.model.device)
    if recipe.learner.cpu_offload and device.type == "cpu":
        raise ModelError(
            "learner.cpu_offload moves slices from a CUDA device into the processor's memory, and this learner runs on "
            "the processor: take it out"
        )
    with Console("quiet") as console:
        theirs = teacher_models(recipe, console)
    worker = make_worker(
        place,
        recipe.model,
        recipe.learner,
        recipe.rollout.temperature,
        make_objective(recipe),
        make_correction(recipe),
        recipe.algorithm.reference if needs_reference(recipe) else None,
        device=place.join(device),
        seed=adapter_seed(recipe),
        teachers=theirs,
        offload=recipe.algorithm.teacher.offload,
    )
    worker.loaded.sends_adapter = Deployment(recipe).sends_adapter
    return worker


def _worker(recipe: Recipe, loaded: LoadedModel, *, training: bool = True) -> Worker:
    """Return the worker of a learner of one process."""
    loaded.sends_adapter, remote = Deployment(recipe).sends_adapter, recipe.model.trust_remote_code
    whole = training and not loaded.adapter
    return Worker(
        PolicyStep(
            loaded,
            make_objective(recipe),
            recipe.learner,
            recipe.rollout.temperature,
            make_correction(recipe),
            recipe.algorithm.reference if training and needs_reference(recipe) else None,
            starts=float32_weights(loaded.name, loaded.model, trust_remote_code=remote) if whole else None,
            teachers=load_teachers(recipe) if training else {},
        )
    )


_MEETINGS = "dapo-ranks-"


def _rendezvous_folder(held: ExitStack) -> str:
    """Make a folder for the file in which ranks of this machine meet, and delete it after them."""
    parent = Path(tempfile.gettempdir())
    delete_left(parent, _MEETINGS)
    folder = claim(lambda: tempfile.mkdtemp(prefix=f"{_MEETINGS}{os.getpid()}-", dir=parent))
    held.callback(leave, folder)
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder
