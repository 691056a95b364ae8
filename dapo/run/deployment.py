"""Decide once where the parts of a run are: the learner, the engines, and how weights get from one to the other.

driver (the loop) --turns--> engines      here: in the driver's process, one engine
    |                           ^         threads: clients of servers; processes: of this machine; ray: of a cluster
    | rows                      | weights, by the route
    v                           |
  learner ----------------------+         here: in the driver's process; apart: in its own; ranks: in several
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dapo.config.deployment import (
    EngineKind,
    LearnerPlace,
    engine_devices,
    engine_kind,
    engine_slots,
    engines_on_ray,
    is_colocated,
    is_lockstep,
    is_pool,
    learner_place,
    server_urls,
    weight_route,
)
from dapo.config.schema import Recipe
from dapo.words import counted

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import Route

Transport = Literal["here", "threads", "processes", "ray"]

_PLACES: dict[Transport, str] = {
    "here": "in this process",
    "threads": "that run as servers",
    "processes": "in processes of this machine",
    "ray": "on a Ray cluster",
}


@dataclass(frozen=True, slots=True)
class Deployment:
    """Places of the parts of one run. Example: two ranks on this machine, and two embedded engines with them::

    Deployment("ranks", 2, False, "embedded", (None, None), "processes", "folder", True, 0, 1)
    """

    learner: LearnerPlace
    ranks: int
    on_ray: bool  # a learner that is not here is on a Ray cluster, otherwise on this machine
    kind: EngineKind | Literal["given", "none"]  # given: an object of the caller; none: a supervised run
    slots: tuple[int | None, ...]  # responses that decode at once, one number an engine; None: the engine chooses
    transport: Transport  # how the driver reaches the engines
    route: Route  # how weights reach the engines; shared: the engine finds the learner's tensors in this process
    lockstep: bool  # engines of a pool take turns of equal length, so that a run repeats its digits
    staleness: int  # versions of weights that generation may be behind; 0: learner and engines take turns
    engine_devices: int  # devices that one engine uses, if the machine has devices
    colocated: bool = False  # ranks and engines share places on a Ray cluster
    turn_steps: int = 0  # decode steps of a turn of a pool
    overlap_turns: int | None = None  # turns of generation beside a learning step; None: until that step ends
    urls: tuple[str, ...] = ()  # of servers
    environments: int = 0  # hosts that play environments on a Ray cluster; 0: workers of this machine do, or none

    @property
    def engines(self) -> int:
        """The number of engines."""
        return len(self.slots)

    @property
    def pool(self) -> bool:
        """Whether the driver hands out turns to a pool of engines."""
        return self.transport != "here"

    @property
    def overlaps(self) -> bool:
        """Whether engines generate while the learner works."""
        return self.staleness > 0

    @property
    def model_here(self) -> bool:
        """Whether the driver's process loads the model, for its learner or for its one engine that computes with it."""
        return self.learner == "here" or (self.kind in ("embedded", "given") and not self.pool)

    @property
    def learner_hosts(self) -> list[str]:
        """The names of the learner's processes; none if it is in the driver's."""
        return {"here": [], "apart": ["learner"], "ranks": [f"rank-{n}" for n in range(self.ranks)]}[self.learner]

    @property
    def engine_hosts(self) -> list[str]:
        """The names of the engines that have a process of their own."""
        return [f"engine-{n}" for n in range(self.engines)] if self.transport in ("processes", "ray") else []

    @property
    def environment_hosts(self) -> list[str]:
        """The names of the hosts that play environments on a Ray cluster."""
        return [f"environment-{n}" for n in range(self.environments)]

    def pool_line(self) -> str:
        """Return how the engines of a pool work together; "" without a pool."""
        if not self.pool:
            return ""
        how = "in lockstep: repeatable" if self.lockstep else "each at its own pace: not repeatable"
        if self.transport == "threads":
            where = "servers"
        elif self.transport == "ray":
            where = "engine on a Ray cluster" if self.engines == 1 else "engines on a Ray cluster"
        else:
            where = "engine in a process of its own" if self.engines == 1 else "engines in processes of this machine"
        return f"{self.engines} {where}, turns of {self.turn_steps} decode steps, {how}"

    def lines(self) -> list[str]:
        """Return the sentences that ``dapo check`` prints: learner, engines, weights, order and devices."""
        learner = {
            "here": "in this process",
            "apart": f"in a process of its own{' on a Ray cluster' if self.on_ray else ''}",
            "ranks": f"{self.ranks} ranks {_PLACES['ray' if self.on_ray else 'processes']}",
        }[self.learner]
        if self.kind == "none":
            return [f"learner: {learner}; no engine generates"]
        engine = f"{self.kind}, in this process"
        if self.kind == "given":
            engine = "an object of the program, in this process"
        elif self.pool:
            engine = f"{self.kind}, {self.pool_line()}"
        elif self.urls:
            engine = f"{self.kind}, one server"
        if self.learner == "here" and self.route == "shared":
            weights = "copied within this process" if self.kind == "vllm" else "the learner's own tensors, not copied"
        else:
            weights = f"sent by {self.route.replace('_', ' ')}"
        order = "learner and engines take turns"
        if self.overlaps:
            until = "until the learning step ends: not repeatable"
            if self.overlap_turns is not None:
                until = f"for {counted(self.overlap_turns, 'turn')} in each step"
            order = f"engines generate while the learner works, at most {self.staleness} versions behind, {until}"
        lines = [f"learner: {learner}", f"engine: {engine}", f"weights: {weights}", f"order: {order}"]
        if self.engine_devices > 1:
            lines.append(f"devices: {self.engine_devices} for each engine")
        if self.colocated:
            width = self.engine_devices
            shared = "rank n and engine n share one" if width == 1 else f"{width} ranks and an engine share {width}"
            lines.append(f"devices: {shared}")
        if self.environments:
            lines.append(f"environments: {counted(self.environments, 'actor')} on the Ray cluster")
        return lines


def deployment_of(recipe: Recipe, *, engine_given: bool = False, training: bool = True) -> Deployment:
    """Return who runs where in a run of ``recipe``.

    Args:
        recipe: the recipe. Supervised training places only the learner; its evaluation by samples has an engine.
        engine_given: the caller made the engine, which may compute with the learner's tensors.
        training: False: nothing is learned, so nothing has to wait for the learner.
    """
    on_ray = recipe.launch.backend == "ray"
    if recipe.run.stage == "sft" and training:
        ranks, rest = recipe.learner.ranks, (False, 0, 0)
        if ranks > 1:
            return Deployment("ranks", ranks, False, "none", (), "here", "folder", *rest)
        return Deployment("here", ranks, False, "none", (), "here", "shared", *rest)
    learner, rollout, kind = learner_place(recipe), recipe.rollout, engine_kind(recipe)
    if learner == "apart" and (engine_given or not training):
        learner = "here"
    route: Route = weight_route(recipe)
    if learner == "here":
        route = "folder" if is_pool(recipe) or kind == "vllm_server" else "shared"
    transport: Transport = "here"
    if is_pool(recipe) and not engine_given:
        transport = "threads" if kind == "vllm_server" else "ray" if engines_on_ray(recipe) else "processes"
    return Deployment(
        learner=learner,
        ranks=recipe.learner.ranks,
        on_ray=on_ray,
        kind="given" if engine_given else kind,
        slots=(None,) if engine_given else tuple(engine_slots(recipe)),
        transport=transport,
        route=route,
        lockstep=transport != "here" and is_lockstep(recipe),
        staleness=rollout.max_staleness,
        engine_devices=1 if engine_given else engine_devices(recipe),
        colocated=transport == "ray" and learner == "ranks" and is_colocated(recipe),
        turn_steps=rollout.turn_steps,
        overlap_turns=rollout.overlap_turns,
        urls=() if engine_given else tuple(server_urls(recipe)),
        environments=_environment_hosts(recipe),
    )


def _environment_hosts(recipe: Recipe) -> int:
    """Return how many hosts of a Ray cluster play environments: as many as there are engines unless the recipe says."""
    settings = recipe.environment
    if recipe.launch.backend != "ray" or settings.kind is None:
        return 0
    return settings.workers or recipe.run.reward_workers or len(engine_slots(recipe))
