"""Decide from a recipe where the parts of a run are: the learner, the engines, and how weights get between them.

driver (the loop) --turns--> engines      here: in the driver's process, one engine
    |                           ^         threads: clients of servers; processes: of this machine; ray: of a cluster
    | rows                      | weights, by the route
    v                           |
  learner ----------------------+         here: in the driver's process; apart: in its own; ranks: in several
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dapo.config.check_teacher import teacher_paths
from dapo.config.schema import Recipe
from dapo.config.schema.rollout import ENGINES, EngineFacts
from dapo.words import counted

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import Route

LearnerPlace = Literal["here", "apart", "ranks"]
Transport = Literal["here", "threads", "processes", "ray"]


@dataclass(frozen=True)
class Deployment:
    """Places of the parts of one run, and what follows from them. ``deployment_of`` makes that of a recipe's stage.

    Attributes:
        recipe: of the run.
        engine_given: the caller made the engine, which may compute with the learner's tensors.
        training: False: nothing is learned, so nothing has to wait for the learner.
        supervised: no engine generates.
    """

    recipe: Recipe
    engine_given: bool = False
    training: bool = True
    supervised: bool = False

    @property
    def engine(self) -> str:
        """The kind that ``rollout.engine`` names; ``own`` is a class of the user, ``package.module:Class``."""
        engine = self.recipe.rollout.engine
        return "own" if ":" in engine else engine

    @property
    def engine_facts(self) -> EngineFacts:
        """Facts of the kind that ``rollout.engine`` names."""
        return ENGINES[self.engine]

    @property
    def kind(self) -> str:
        """The kind of the engine that generates. given: an object of the caller; none: a supervised run."""
        return "none" if self.supervised else "given" if self.engine_given else self.engine

    @property
    def staleness(self) -> int:
        """Versions of weights that generation may be behind. 0: learner and engines take turns."""
        return 0 if self.supervised else self.recipe.rollout.max_staleness

    @property
    def overlaps(self) -> bool:
        """Whether engines generate while the learner works."""
        return self.staleness > 0

    @property
    def overlap_turns(self) -> int | None:
        """Turns of generation beside a learning step; None: until that step ends."""
        return self.recipe.rollout.overlap_turns

    @property
    def by_the_clock(self) -> bool:
        """Whether the wall clock decides how far generation gets beside learning."""
        return self.overlaps and self.overlap_turns is None

    @property
    def learner(self) -> LearnerPlace:
        """The place of a learner that trains.

        ``here``: in the process of the program. ``apart``: in a process of its own, because the program hands out the
        turns of engines that work at the same time. ``ranks``: in several processes, ``learner.ranks``.
        """
        if self.ranks > 1:
            return "ranks"
        return "apart" if self.overlaps and self.training and not self.engine_given else "here"

    @property
    def ranks(self) -> int:
        """Processes that the learner is spread over."""
        return self.recipe.learner.ranks

    @property
    def shards(self) -> int:
        """Parts that each copy of the model is cut into."""
        return self.ranks // self.recipe.learner.replicas

    @property
    def on_ray(self) -> bool:
        """Whether a learner that is not here is on a Ray cluster, and not on this machine."""
        return self.recipe.launch.backend == "ray" and not self.supervised

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of vLLM servers; other engines have none."""
        url = self.recipe.rollout.server.url
        if self.kind != "vllm_server" or url is None:
            return ()
        return (url,) if isinstance(url, str) else tuple(url)

    @property
    def engines(self) -> int:
        """The number of engines."""
        if self.kind == "vllm_server":
            return max(1, len(self.urls))
        return {"none": 0, "given": 1}.get(self.kind, self.recipe.rollout.engines)

    @property
    def slots(self) -> tuple[int | None, ...]:
        """Responses that decode at once, one number an engine; None: the engine chooses."""
        slots = self.recipe.rollout.slots if self.kind == self.engine else None
        return tuple(slots) if isinstance(slots, list) else (slots,) * self.engines

    @property
    def engine_devices(self) -> int:
        """Devices that one engine uses, if the machine has devices."""
        return self.recipe.rollout.vllm.tensor_parallel_size if self.kind == "vllm" else 1

    @property
    def keeps_8_bits(self) -> bool:
        """Whether the engine keeps keys and values in 8 bits."""
        return self.kind == "vllm" and self.recipe.rollout.vllm.kv_cache_dtype == "fp8"

    @property
    def engines_on_ray(self) -> bool:
        """Whether engines run on a Ray cluster; servers and an engine of the user do not."""
        return self.on_ray and self.engine_facts.on_ray

    @property
    def _pool_asked(self) -> bool:
        """Whether the recipe's own engines are a pool: several of them, or one that is elsewhere and no server."""
        several = len(self.urls) if self.engine == "vllm_server" else self.recipe.rollout.engines
        return several > 1 or ((self.overlaps or self.engines_on_ray) and self.engine != "vllm_server")

    @property
    def pool(self) -> bool:
        """Whether the driver hands out turns to a pool of engines, instead of one engine of its own process."""
        return self._pool_asked and self.kind not in ("given", "none")

    @property
    def transport(self) -> Transport:
        """How the driver reaches the engines."""
        if not self.pool:
            return "here"
        return "threads" if self.kind == "vllm_server" else "ray" if self.engines_on_ray else "processes"

    @property
    def turn_steps(self) -> int:
        """Decode steps of a turn of a pool."""
        return self.recipe.rollout.turn_steps

    @property
    def lockstep(self) -> bool:
        """Whether engines of a pool take turns of equal length, so that a run repeats its digits.

        By default they do if they repeat their digits and no clock hands out turns.
        """
        asked, repeats = self.recipe.rollout.lockstep, self.engine_facts.repeats
        return self.pool and (repeats and not self.by_the_clock if asked is None else asked)

    @property
    def repeats(self) -> bool:
        """Whether a run repeats its digits on a processor: no clock decides, and no engine or teacher of a server,
        whose order is its own."""
        served = teacher_paths(self.recipe, served=True)
        known = self.kind == self.engine and self.engine_facts.repeats and not served
        return known and not self.by_the_clock and (self.lockstep or not self.pool)

    @property
    def route(self) -> Route:
        """How weights reach the engines; shared: the engine finds the learner's tensors in this process."""
        if self.learner == "here":
            travel = not self.supervised and (self._pool_asked or self.engine == "vllm_server")
            return "folder" if travel else "shared"
        asked = self.recipe.rollout.weight_transfer
        return "folder" if asked == "auto" or self.supervised else asked

    @property
    def sends_adapter(self) -> bool:
        """Whether engines get an adapter by itself, and not merged into the weights."""
        lora = self.recipe.model.lora
        if lora.rank is None or lora.merge is not None:
            return lora.rank is not None and lora.merge is False
        return self.engine == "vllm" and self.recipe.model.dtype == "bfloat16" and not lora.modules_to_save

    @property
    def shares_places(self) -> bool:
        """Whether ranks and engines of a Ray cluster may share places (``cluster.colocate``)."""
        asked = self.recipe.cluster.colocate
        return not self.overlaps if asked is None else asked

    @property
    def colocated(self) -> bool:
        """Whether ranks and engines share places on a Ray cluster."""
        return self.transport == "ray" and self.learner == "ranks" and self.shares_places

    @property
    def several_machines(self) -> bool:
        """Whether the run may span machines."""
        return self.recipe.launch.backend == "ray" or self.recipe.slurm.nodes > 1

    @property
    def engines_apart(self) -> bool:
        """Whether engines have devices that no rank has: servers, those that work beside the learner, and on several
        machines those that share no places with ranks."""
        elsewhere = self.overlaps or self.kind == "vllm_server"
        return elsewhere or (self.several_machines and not self.shares_places)

    @property
    def model_here(self) -> bool:
        """Whether the driver's process loads the model, for its learner or for its one engine that computes with it."""
        shares = self.kind == "given" or (self.kind == self.engine and self.engine_facts.ours)
        return self.learner == "here" or (shares and not self.pool)

    @property
    def environments(self) -> int:
        """Hosts of a Ray cluster that play environments, as many as there are engines unless the recipe says; 0:
        workers of this machine do, or none."""
        settings = self.recipe.environment
        if not self.on_ray or settings.kind is None:
            return 0
        return settings.workers or self.recipe.run.reward_workers or self.engines

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
            "ranks": f"{self.ranks} ranks {'on a Ray cluster' if self.on_ray else 'in processes of this machine'}",
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
    """Return who runs where in a run of ``recipe``, which may be supervised. Arguments as for ``Deployment``."""
    return Deployment(recipe, engine_given, training, supervised=recipe.run.stage == "sft" and training)
