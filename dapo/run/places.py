"""Placement of a recipe's ranks and engines on a Ray cluster."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dapo.config.deployment import Deployment
from dapo.config.schema import Recipe
from dapo.errors import ClusterEnded, ClusterError, DapoError, RecipeError, WithEvidence
from dapo.links import install
from dapo.observe.run_folder import HOSTS
from dapo.processes.local import ProcessTransport
from dapo.processes.placement import Node, Plan, amounts, await_machines, plan_places
from dapo.processes.ray_head import OwnCluster, outlive_head
from dapo.processes.transport import Transport
from dapo.processes.watch import lost_said, unanswered, unreachable
from dapo.types.evidence import ClusterLost

if TYPE_CHECKING:
    from dapo.processes.ray import RayCluster

ELSEWHERE = (
    "on a cluster that lives (cluster.address=HOST:PORT, or null for one of this machine alone) or with "
    "launch.backend=local"
)
"""What to do about a cluster that was lost."""


class Places:
    """The cluster of a run.

    Args:
        cluster: that it has joined.
        recipe: its sections ``model``, ``rollout`` and ``cluster``.
        deployment: who runs where.

    Raises:
        ClusterError: the recipe wants more than the cluster has.
    """

    def __init__(self, cluster: RayCluster, recipe: Recipe, deployment: Deployment) -> None:
        self._cluster = cluster
        wanted = recipe.cluster
        nodes = await_machines(cluster.nodes, wanted.nodes, wanted.gpus_per_node, wanted.start_timeout)
        self.cuda = wants_devices(recipe, nodes)
        if deployment.kind != "given" and recipe.rollout.embedded.cuda_graphs and not self.cuda:
            raise ClusterError(
                "rollout.embedded.cuda_graphs is true, and no machine of the Ray cluster has a GPU "
                f"({describe_machines(nodes)}): take the setting out (a GPU gets graphs anyway), or add a machine "
                "with a GPU"
            )
        self.plan = plan_of(recipe, deployment, cuda=self.cuda)
        self.one_machine = cluster.one_machine
        self.here = cluster.here
        if self.cuda and not deployment.learner_hosts:
            raise ClusterError(
                "learner.ranks=1 keeps the learner in this process, and the cluster may give its device to an engine: "
                "set learner.ranks above 1, or launch.backend=local"
            )
        cluster.place(self.plan, recipe.cluster.start_timeout)

    def sentence(self) -> str:
        """Return a sentence on the machines taken, for the console."""
        machines = describe_machines(self._cluster.nodes())
        return f"Ray cluster at {self._cluster.address} ({machines}): {describe_plan(self.plan)}"

    def transport(self, run: Path | None) -> Transport:
        """For hosts that print into a folder of the run (None: what they print is dropped)."""
        return self._cluster.transport(None if run is None else run / HOSTS)

    def where(self) -> dict[str, str]:
        """Return the machine of each host that has started, by the host's name."""
        return self._cluster.where()

    def tell(self, lose: Callable[[ClusterLost], None]) -> None:
        """Have a loss of the cluster told, in a thread of its own."""
        self._cluster.lost.add_done_callback(lambda lost: lose(lost.result()))

    def lost(self) -> ClusterLost | None:
        """How the cluster was lost, if it was: it is asked, as that may not have been seen yet."""
        with suppress(ClusterError):
            self._cluster.nodes()
        return self._cluster.lost.result() if self._cluster.lost.done() else None

    @contextmanager
    def told_if_lost(self) -> Iterator[None]:
        """Turn an error that follows from the cluster's loss into one that says so, with the next move."""
        try:
            yield
        except DapoError as error:
            lost = None if isinstance(error, WithEvidence) else self.lost()
            if lost is None:
                raise
            said = f"{lost_said(lost)}, and nothing can be started there: {str(error).rstrip('. ')}"
            raise ClusterEnded(lost, f"{said}. Give the command again {ELSEWHERE}") from error

    def close(self) -> None:
        """Give everything back."""
        self._cluster.close()


def transport_of(run: Path | None, places: Places | None) -> Transport:
    """For hosts in processes: of this machine, or on the run's cluster. What they print goes to its folder, if any."""
    if places is not None:
        return places.transport(run)
    return ProcessTransport(None if run is None else run / HOSTS)


def missing_ray(recipe: Recipe) -> str:
    """Why the recipe's cluster cannot be used for want of a package, and the next move; "" if it can."""
    if recipe.launch.backend != "ray" or importlib.util.find_spec("ray") is not None:
        return ""
    return (
        f"launch.backend: ray needs the package ray, which is not installed: `{install('ray')}`, or set "
        "launch.backend: local, which keeps ranks and engines in processes of this machine"
    )


def open_places(recipe: Recipe, deployment: Deployment) -> Places | None:
    """Return the cluster that the recipe wants, joined or started; None if the run stays on this machine. As
    ``Places``.

    Raises:
        RecipeError: the package is not installed.
        ClusterError: it cannot be reached or started, or is too small.
    """
    if recipe.launch.backend != "ray":
        return None
    if missing := missing_ray(recipe):
        raise RecipeError(missing)
    outlive_head()
    named = recipe.cluster.address or os.environ.get("RAY_ADDRESS")
    if named and (why := unanswered(named)):
        raise ClusterError(unreachable(named, why))
    address: str | OwnCluster = named or ("" if _is_open() else OwnCluster())
    from dapo.processes.ray import RayCluster  # not before: what it imports asks whether the cluster has a token

    cluster = RayCluster(address)
    try:
        return Places(cluster, recipe, deployment)
    except BaseException:
        cluster.close()
        raise


def plan_of(recipe: Recipe, deployment: Deployment, *, cuda: bool) -> Plan:
    """Return the bundles of a run's processes on a Ray cluster, on devices or on processors."""
    return plan_places(
        deployment.learner_hosts,
        deployment.engine_hosts if deployment.transport == "ray" else [],
        cpus=recipe.cluster.cpus_per_host or float(recipe.run.threads),
        rank_gpus=int(cuda),
        engine_gpus=deployment.engine_devices if cuda else 0,
        colocate=deployment.colocated,
        environments=deployment.environment_hosts,
    )


def wants_devices(recipe: Recipe, nodes: list[Node]) -> bool:
    """Whether ranks and engines compute on CUDA devices: where ``auto`` is asked for, if the cluster has any."""
    device = recipe.model.device
    return device.startswith("cuda") or (device == "auto" and any(node.gpus for node in nodes))


def describe_place(recipe: Recipe) -> str:
    """Which cluster ``open_places`` will use."""
    if recipe.cluster.address:
        return f"the Ray cluster at {recipe.cluster.address}"
    if os.environ.get("RAY_ADDRESS"):
        return f"the Ray cluster at {os.environ['RAY_ADDRESS']} (RAY_ADDRESS)"
    return "a Ray cluster of this machine, which is started for the run"


def describe_machines(nodes: list[Node]) -> str:
    """Return the first few machines by name."""
    return ", ".join(map(str, nodes[:4])) + (f", and {len(nodes) - 4} more" if len(nodes) > 4 else "")


def describe_plan(plan: Plan) -> str:
    """``2 bundles of 1 CPU: rank-0 and engine-0 share one, ...``, in few words."""
    kinds = {bundle: plan.bundles.count(bundle) for bundle in plan.bundles}
    bundles = " and ".join(f"{count} of {bundle}" for bundle, count in kinds.items())
    kinds_in: dict[int, set[str]] = {}
    for name, place in plan.places.items():
        kinds_in.setdefault(place.bundle, set()).add(name.partition("-")[0])
    shared = sum(len(inside) > 1 for inside in kinds_in.values())
    whose = (
        "ranks and an engine"
        if any(len(place.shared) > 1 for place in plan.places.values())
        else "a rank and an engine"
    )
    turns = f"; {shared} of them for {whose} in turns" if shared else ""
    return (
        f"{len(plan.places)} hosts in {len(plan.bundles)} bundles, {amounts(plan.cpus, plan.gpus)} ({bundles}{turns})"
    )


def _is_open() -> bool:
    """Whether the caller's program works on a Ray cluster already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
