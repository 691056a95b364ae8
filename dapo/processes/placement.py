"""Plan where ranks and engines go on a cluster: bundles of processors and devices for placement groups. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dapo.errors import ClusterError

_SHARE = 0.5
"""Of a bundle's processors and device that a rank has, and an engine, where both are in it: they take turns."""


@dataclass(frozen=True, slots=True)
class Place:
    """Share that one host takes of its bundle."""

    bundle: int
    cpus: float
    gpus: float  # that it asks for
    shared: tuple[int, ...] = ()  # devices of the bundle, by their order there, that it is told of and does not ask for


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources that must be free on one machine."""

    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        """As Ray names them."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def __str__(self) -> str:
        return amounts(self.cpus, self.gpus)


@dataclass(frozen=True, slots=True)
class Plan:
    """Bundles of a run, and the place of each host by its name."""

    bundles: tuple[Bundle, ...]
    places: Mapping[str, Place]

    @property
    def cpus(self) -> float:
        return sum(bundle.cpus for bundle in self.bundles)

    @property
    def gpus(self) -> float:
        return sum(bundle.gpus for bundle in self.bundles)

    def granted(self, machines: Sequence[str]) -> Plan:
        """With its hosts where the cluster has put the bundles; ``machines``: of each bundle. See ``by_machine``."""
        numbers = by_machine(self.bundles, machines)
        return replace(
            self, places={name: replace(one, bundle=numbers[one.bundle]) for name, one in self.places.items()}
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster."""

    name: str
    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.name}: {amounts(self.cpus, self.gpus, always=True)}"


def missing(nodes: Sequence[Node], wanted: int | None, gpus: int | None) -> str:
    """Return what a cluster lacks of so many machines with so many devices each; "" if it lacks nothing, or ``wanted``
    is None."""
    fitting = sum(gpus is None or node.gpus >= gpus for node in nodes)
    enough = fitting >= wanted if wanted is not None else fitting == len(nodes)
    if enough:
        return ""
    with_devices = "" if gpus is None else f" with {gpus} GPUs"
    asked = f"{wanted} machines{with_devices} (cluster.nodes)" if wanted is not None else f"machines{with_devices} each"
    there = ", ".join(map(str, nodes[:8])) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return f"{asked} are wanted, and there are {fitting} of {len(nodes)}: {there}"


def await_machines(
    look: Callable[[], list[Node]],
    wanted: int | None,
    gpus: int | None,
    patience: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Node]:
    """Wait for the machines of a cluster and return them; looks once a second.

    Args:
        look: gives those that are there.
        wanted: how many; None: as many as there are.
        gpus: devices of each; None: any number.
        patience: seconds.
        clock, pause: of a test's.

    Raises:
        ClusterError: they have not come.
    """
    until = clock() + patience
    while why := missing(nodes := look(), wanted, gpus):
        if wanted is None or clock() >= until:
            waited = f" after {patience:g} s (cluster.start_timeout)" if wanted is not None else ""
            raise ClusterError(f"the Ray cluster is not complete{waited}: {why}")
        pause(1.0)
    return nodes


def plan_places(
    ranks: Sequence[str],
    engines: Sequence[str],
    *,
    cpus: float,
    rank_gpus: int = 0,
    engine_gpus: int = 0,
    colocate: bool,
    environments: Sequence[str] = (),
) -> Plan:
    """Return the bundles of a run.

    Args:
        ranks: names of the learner's ranks that live on the cluster.
        engines: names of its engines.
        cpus: processors of a bundle.
        rank_gpus: devices of a rank, 0 or 1.
        engine_gpus: devices of an engine.
        colocate: ranks and engines share bundles, as they work in turns: as many ranks as an engine has devices, in
            their order, and one engine. Else each host has its own.
        environments: names of the hosts that play environments, each in a bundle of its own without a device.
    """
    plan = _plan_computing(ranks, engines, cpus, rank_gpus, engine_gpus, colocate)
    first = len(plan.bundles)
    more = {name: Place(first + number, cpus, 0.0) for number, name in enumerate(environments)}
    return Plan((*plan.bundles, *(Bundle(cpus, 0.0) for _ in environments)), {**plan.places, **more})


def _plan_computing(
    ranks: Sequence[str], engines: Sequence[str], cpus: float, rank_gpus: int, engine_gpus: int, colocate: bool
) -> Plan:
    """Return the bundles of ranks and engines."""
    places: dict[str, Place] = {}
    if not colocate:
        bundles = [Bundle(cpus, rank_gpus) for _ in ranks] + [Bundle(cpus, engine_gpus) for _ in engines]
        for number, name in enumerate([*ranks, *engines]):
            places[name] = Place(number, cpus, bundles[number].gpus)
        return Plan(tuple(bundles), places)
    if engine_gpus > 1:
        return _wide_places(ranks, engines, cpus, engine_gpus)
    both = min(len(ranks), len(engines))
    for names, gpus in ((ranks, rank_gpus), (engines, engine_gpus)):
        for number, name in enumerate(names):
            share = _SHARE if number < both else 1.0
            places[name] = Place(number, cpus * share, gpus * share)
    count, gpus = max(len(ranks), len(engines)), max(rank_gpus, engine_gpus)
    return Plan((Bundle(cpus, gpus),) * count, places)


def _wide_places(ranks: Sequence[str], engines: Sequence[str], cpus: float, width: int) -> Plan:
    """Return bundles of ``width`` devices each. No host asks for a part of one: two halves may be of one device."""
    count = max(-(-len(ranks) // width), len(engines))
    places = {
        name: Place(n // width, cpus * (_SHARE if n // width < len(engines) else 1.0), 0, (n % width,))
        for n, name in enumerate(ranks)
    }
    for n, name in enumerate(engines):
        beside = min(width, max(0, len(ranks) - n * width))
        places[name] = Place(n, cpus * (width - beside * _SHARE), 0, tuple(range(width)))
    return Plan((Bundle(cpus * width, width),) * count, places)


def misfit(plan: Plan, nodes: Sequence[Node]) -> str:
    """Return why the plan cannot be placed on these machines, even if they were idle; "" if it can.

    Largest bundles go first, each to the machine that has least left and takes it: what cannot be placed is always
    seen, and with bundles of one kind only that.
    """
    has_cpus, has_gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    left = [[node.gpus, node.cpus] for node in nodes]
    wants = f"{_counted(len(plan.bundles), 'bundle')} of {_kinds(plan)}"
    has = f"{amounts(has_cpus, has_gpus, always=True)} on {_counted(len(nodes), 'machine')}"
    if nodes:
        has += f" ({'; '.join(map(str, nodes[:4]))}{'; ...' if len(nodes) > 4 else ''})"
    if plan.cpus > has_cpus or plan.gpus > has_gpus:
        return f"{wants}, {amounts(plan.cpus, plan.gpus)} in all, and there are {has}"
    for bundle in sorted(plan.bundles, key=lambda bundle: (bundle.gpus, bundle.cpus), reverse=True):
        fitting = [one for one in left if one[0] >= bundle.gpus and one[1] >= bundle.cpus]
        if not fitting:
            return f"{wants}, each on one machine, and there are {has}"
        chosen = min(fitting)
        chosen[0] -= bundle.gpus
        chosen[1] -= bundle.cpus
    return ""


def too_small(why: str, address: str) -> str:
    """Return the next move for a plan that does not fit (``misfit``) the cluster at ``address``."""
    return (
        f"the Ray cluster at {address} is too small for this recipe: it wants {why}. Add machines, ask for fewer "
        "(learner.ranks, rollout.engines), or let them share processors (cluster.cpus_per_host)"
    )


def late(plan: Plan, cpus: float, gpus: float, patience: float, address: str) -> str:
    """Why a plan that the machines of the cluster at ``address`` could take is not placed; so much is free there."""
    return (
        f"{amounts(plan.cpus, plan.gpus)} in {_counted(len(plan.bundles), 'bundle')} did not become free within "
        f"{patience:g} s (cluster.start_timeout) on the Ray cluster at {address}: it has as much, and at present "
        f"{amounts(cpus, gpus, always=True)} are free; `ray status` shows who has the rest"
    )


def by_machine(bundles: Sequence[Bundle], machines: Sequence[str]) -> list[int]:
    """Which of the bundles that were granted stands for which of the plan's.

    Bundles of one kind can stand for each other, and a cluster spreads them as it likes. Ranks that follow each other
    shall be on one machine, so that copies of the model (``learner.replicas``) gather their layers within it.

    Args:
        bundles: of the plan; the granted ones are the same, in the same order.
        machines: of each granted one.
    """
    granted = {kind: [n for n, bundle in enumerate(bundles) if bundle == kind] for kind in set(bundles)}
    first = {machine: n for n, machine in reversed(list(enumerate(machines)))}
    for numbers in granted.values():
        numbers.sort(key=lambda n: (first[machines[n]], n))
    taken = {kind: iter(numbers) for kind, numbers in granted.items()}
    return [next(taken[bundle]) for bundle in bundles]


def amounts(cpus: float, gpus: float, *, always: bool = False) -> str:
    """``2 CPUs and 1 GPU``; without GPUs only the processors, unless ``always``."""
    said = _counted(cpus, "CPU")
    return f"{said} and {_counted(gpus, 'GPU')}" if gpus or always else said


def _kinds(plan: Plan) -> str:
    kinds = dict.fromkeys(plan.bundles)
    if len(kinds) == 1:
        return str(plan.bundles[0])
    return " or ".join(f"{bundle} ({plan.bundles.count(bundle)} of them)" for bundle in kinds)


def _counted(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"
