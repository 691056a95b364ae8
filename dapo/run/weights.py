"""Choose the folder through which a run's weights travel, and delete what is left in it."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from dapo.config.schema import Recipe
from dapo.models.weights import SETS
from dapo.processes.left_over import claim, delete_left, leave
from dapo.processes.transport import ROOM
from dapo.run.deployment import Deployment
from dapo.run.places import Places
from dapo.system import shared_memory
from dapo.types.model import ModelFacts

_PREFIX = "dapo-weights-"
_SETS = 2.5  # sets of weights that shared memory must hold: the present one, the next, and some room


def weights_folder(
    recipe: Recipe, deployment: Deployment, facts: ModelFacts, run: Path | None, places: Places | None = None
) -> Path | None:
    """Return the folder that the learner publishes to; None: the engine finds its tensors in this process.

    Args:
        recipe: its section ``rollout.server``.
        deployment: who runs where.
        facts: of the model.
        run: the run's folder, through which weights travel if shared memory cannot hold them.
        places: of a Ray cluster; None: learner and engines are on this machine.
    """
    if deployment.route == "shared":
        return None
    if deployment.kind != "vllm_server":
        if deployment.route == "object_store" and deployment.learner != "here":
            return room_of()
        return shared_weights(facts, run, memory=places is None or places.one_machine)
    if recipe.rollout.server.weights_dir is not None:
        return Path(recipe.rollout.server.weights_dir).absolute()
    if deployment.pool and run is not None:
        delete_sets(run / "weights")
    return Path(tempfile.mkdtemp(prefix="dapo-weights-")) if run is None else run / "weights"


def delete_weights(recipe: Recipe, deployment: Deployment, weights: Path | None) -> None:
    """Delete the published weights, unless the recipe names their folder or the client of one server deletes them."""
    by_client = deployment.kind == "vllm_server" and not deployment.pool and deployment.learner != "ranks"
    if weights is not None and not by_client and recipe.rollout.server.weights_dir is None:
        delete_sets(weights)


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


def room_of() -> Path:
    """Return a folder, in shared memory if there is any, that the processes of this run alone use on every machine."""
    parent = shared_memory() or Path(tempfile.gettempdir())
    return parent / f"{ROOM}{secrets.token_hex(8)}"


def delete_sets(folder: Path) -> None:
    """Delete the sets of weights in ``folder``, and the folder if nothing else is in it."""
    with suppress(FileNotFoundError):
        for left in os.listdir(folder):
            if left.startswith(SETS):
                shutil.rmtree(folder / left, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()
    leave(str(folder))


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
