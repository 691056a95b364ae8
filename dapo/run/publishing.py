"""Make the exchange of a run's weights, and choose the folder through which they travel."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from dapo.config.deployment import Deployment
from dapo.config.schema import Recipe
from dapo.models.rendezvous import LOOPBACK
from dapo.processes.left_over import claim, delete_left
from dapo.processes.transport import SHARED_FOLDER
from dapo.run.places import Places
from dapo.system import shared_memory
from dapo.types.model import ModelFacts
from dapo.weights.exchange import WeightExchange
from dapo.weights.routes import ROUTES
from dapo.weights.sets import WeightSets, delete_sets

_PREFIX = "dapo-weights-"
_SETS = 2.5  # sets of weights that shared memory must hold: the present one, the next, and some room


def make_exchange(
    recipe: Recipe, deployment: Deployment, facts: ModelFacts, run: Path | None, places: Places | None = None
) -> WeightExchange:
    """Return what the learner publishes through and the engines take weights from.

    Args:
        recipe: its section ``rollout.server``.
        deployment: who runs where.
        facts: of the model.
        run: the run's folder, through which weights travel if shared memory cannot hold them.
        places: of a Ray cluster; None: learner and engines are on this machine.
    """
    sets = None
    if deployment.route != "shared":
        named = recipe.rollout.server.weights_dir if deployment.kind == "vllm_server" else None
        folder = _folder(deployment, facts, run, places) if named is None else Path(named).absolute()
        sets = WeightSets(folder, own=named is None)
    return WeightExchange(ROUTES[deployment.route](sets, host_of(places), recipe.learner.timeout))


def host_of(places: Places | None) -> str:
    """Return the address at which the run's processes reach this one."""
    return LOOPBACK if places is None or places.one_machine else places.here


def _folder(deployment: Deployment, facts: ModelFacts, run: Path | None, places: Places | None) -> Path:
    """Return a folder that no other run uses."""
    if deployment.kind == "vllm_server":
        if run is None:
            return Path(tempfile.mkdtemp(prefix=_PREFIX))
        delete_sets(run / "weights")
        return run / "weights"
    if deployment.route == "object_store" and deployment.learner != "here":
        return new_shared_folder()
    return shared_weights(facts, run, memory=places is None or places.one_machine)


def shared_weights(facts: ModelFacts, run: Path | None, *, memory: bool = True) -> Path:
    """Return a folder of this run alone, in shared memory if it fits, and delete what killed runs left there.

    With ``memory=False``, for processes of several machines, it is in the run's folder.
    """
    folder = shared_memory()
    if folder is not None:
        delete_left(folder, _PREFIX)
    if run is not None:
        delete_sets(run / "weights")
    if memory and folder is not None and _room(folder) >= _SETS * 4 * facts.parameters:  # bytes, at most
        with suppress(OSError):
            return Path(claim(lambda: _new_folder(folder)))
    return Path(tempfile.mkdtemp(prefix=_PREFIX)) if run is None else run / "weights"


def new_shared_folder() -> Path:
    """Return a folder, in shared memory if there is any, that the processes of this run alone use on every machine."""
    parent = shared_memory() or Path(tempfile.gettempdir())
    return parent / f"{SHARED_FOLDER}{secrets.token_hex(8)}"


def _room(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _new_folder(parent: Path) -> str:
    folder = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return str(folder)
