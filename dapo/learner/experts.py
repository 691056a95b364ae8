"""Experts in a learner's passes: what routers repeat (``learner.router_replay``), and how even their choices are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dapo.errors import LearnerError
from dapo.metrics.stats import Stats, stat
from dapo.models.context import Unit, stretch_of
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch
from dapo.models.routing import EXTRA, Routes, Routing, cut_out, lay_out, places_of
from dapo.types.batch import BoolArray, IntArray, Row

Replay = Literal["off", "learner", "sampler"]


def expert_routes(loaded: LoadedModel, replay: Replay) -> ExpertRoutes | None:
    """Return what follows the routers of a model; None: the model has none.

    Raises:
        LearnerError: routers are to repeat choices, and the model has none that can.
    """
    if loaded.routing is not None:
        return ExpertRoutes(loaded.routing, replay, loaded.unit)
    if replay != "off":
        raise LearnerError(
            f"learner.router_replay is {replay!r}, and {loaded.name} ({type(loaded.model).__name__}) has no routers of "
            "experts that can repeat a choice; set learner.router_replay=off"
        )
    return None


class ExpertRoutes:
    """Expert choices in the passes of one rank during a training step.

    With ``learner`` the first pass over a row decides, which is the pass that computes its old log-probabilities, and
    every later one repeats it. With ``sampler`` all passes repeat what the engine did.

    Args:
        routing: the routers.
        replay: what they repeat.
        unit: ranks that share each row.
    """

    def __init__(self, routing: Routing, replay: Replay, unit: Unit | None) -> None:
        self._routing, self._replay, self._unit = routing, replay, unit
        self._kept: dict[tuple[int, int, int], tuple[Routes, IntArray]] = {}  # by group, sample and part
        self._loads = torch.zeros(routing.count, routing.experts, dtype=torch.int64)
        self._tokens = self._repeated = 0
        self._changed = 0  # choices

    @contextmanager
    def following(self, batch: PackedBatch, *, training: bool) -> Iterator[None]:
        """Follow the routers in one pass over rows of the training step.

        Args:
            batch: the rows, on all ranks of a unit whole.
            training: whether the pass counts; otherwise it only computes log-probabilities.
        """
        part = stretch_of(batch.input_ids.numel(), self._unit)
        wanted = self._wanted(batch)
        own = None if wanted is None else cut_out(wanted, part)
        given = None if own is None else torch.from_numpy(own).to(batch.input_ids.device)
        with self._routing.following(given) as made:
            yield
        if self._replay == "off" and not training:
            return
        routes = made.routes()
        counted = cut_out(_of_responses(batch), part)
        there = torch.from_numpy(counted).to(routes.device)
        if training:
            self._count(routes[there])
            self._tokens += int(counted.sum())
        if training and own is not None:
            self._repeated += int((own[counted] != 0).all(axis=(1, 2)).sum())
            self._changed += int(made.changed()[there].sum())
        if self._replay == "learner":
            self._keep(batch, routes, part)

    def finish(self, *, shared: bool) -> Stats:
        """Return the metrics of a training step, of all ranks together, and forget what was kept.

        Args:
            shared: whether other ranks have rows of the step; all call it together.
        """
        counts = torch.cat([self._loads.flatten(), torch.tensor([self._tokens, self._repeated, self._changed])])
        if shared:
            dist.all_reduce(counts)
        loads, (tokens, repeated, changed) = counts[:-3].view_as(self._loads), counts[-3:].tolist()
        stats = load_stats(loads) if tokens else {}
        if tokens and self._replay != "off":
            stats |= stat("train/routes_replayed", repeated, tokens)
        if repeated:
            stats |= stat("train/routes_changed", changed, repeated * len(loads))
        self._kept.clear()
        self._loads.zero_()
        self._tokens = self._repeated = self._changed = 0
        return stats

    def _wanted(self, batch: PackedBatch) -> Routes | None:
        """Return the choices to repeat [tokens of the batch, routers, k]."""
        if self._replay == "off":
            return None
        find = self._of_sampler if self._replay == "sampler" else self._of_first_pass
        rows = [find(row) if isinstance(row, Row) else None for row in batch.rows]
        return lay_out(batch, rows, self._routing.none(batch.input_ids.numel()))

    def _of_first_pass(self, row: Row) -> Routes | None:
        if (row.group, row.sample, row.part) not in self._kept:
            return None
        routes, places = self._kept[row.group, row.sample, row.part]
        return routes[places]

    def _of_sampler(self, row: Row) -> Routes | None:
        """Return what the engine did for a row, as far as the weights that made its last token did it.

        Weights that changed under a response routed the tokens before them anew, which no engine recorded.
        """
        if EXTRA not in row.extra:
            raise LearnerError(
                f"learner.router_replay is 'sampler', and response {row.sample} of group {row.group} has no array "
                f"{EXTRA!r} of its engine; set learner.router_replay=off, or an engine that records routes"
            )
        given = row.extra[EXTRA]
        found = self._routing.none(len(row.prompt_ids) + len(row.token_ids))
        if given.shape[1:] != found.shape[1:] or given.max(initial=0) > self._routing.experts:
            raise LearnerError(
                f"the engine's routes of response {row.sample} of group {row.group} have the shape "
                f"{list(given.shape)}, and the model has {found.shape[1]} routers that choose {found.shape[2]} of "
                f"{self._routing.experts} experts: engine and learner run different models"
            )
        found[len(found) - len(given) :] = given
        newest = row.versions == row.versions[-1:]
        found[len(row.prompt_ids) :][~newest] = 0
        if not newest.all():
            found[: len(row.prompt_ids)] = 0
        return found[:-1]

    def _keep(self, batch: PackedBatch, routes: Tensor, part: slice) -> None:
        whole = self._routing.none(batch.input_ids.numel())
        own = whole[part]
        own[:] = routes[: len(own)].cpu().numpy()
        for row, places in zip(batch.rows, places_of(batch), strict=True):
            if isinstance(row, Row):
                self._kept.setdefault((row.group, row.sample, row.part), (whole, places))

    def _count(self, routes: Tensor) -> None:
        """Add the choices [tokens, routers, k] to the loads."""
        routers, experts = self._loads.shape
        flat = routes.long() - 1 + torch.arange(routers, device=routes.device)[:, None] * experts
        self._loads += torch.bincount(flat.flatten(), minlength=routers * experts).view(routers, experts).cpu()


def load_stats(loads: Tensor) -> Stats:
    """Return how evenly a training step's tokens went to the experts, from [routers, experts] counts of choices."""
    each = loads.sum(1, keepdim=True).clamp_min(1) / loads.shape[1]
    return stat("train/expert_load_max", float((loads / each).max())) | stat(
        "train/experts_unused", float((loads == 0).sum()), loads.numel()
    )


def _of_responses(batch: PackedBatch) -> BoolArray:
    """Return which tokens of a batch are of responses, bool [tokens]: prompts are computed as often as passes want."""
    found = np.zeros(batch.input_ids.numel(), np.bool_)
    for row, places in zip(batch.rows, places_of(batch), strict=True):
        found[places[len(row.prompt_ids) :]] = True
    return found
