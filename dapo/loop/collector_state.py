"""What a collector holds, to and from a plain tree of numbers, strings and arrays.

Between two steps that is the groups it carries. In the middle of one, where engines worked on it while the one before
was learnt from, it is also what was judged and counted so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dapo.loop.open_group import load_open_group, open_group_state
from dapo.loop.state import group_state, load_group
from dapo.types.batch import Group

if TYPE_CHECKING:
    from dapo.loop.collector import StreamingCollector


def collector_state(collector: StreamingCollector) -> dict[str, Any]:
    """Everything the next batch depends on."""
    return {
        "next_group": collector.next_group,
        "estimate": collector.refill.state(),
        **collector.selector.state(),
        "kept": [group_state(group) for group in collector.kept],
        "open": [open_group_state(group) for group in collector.open.values()],
        "account": collector.account.state(),
        **({"begun": _begun_state(collector)} if collector.begun else {}),
    }


def load_collector(collector: StreamingCollector, state: Mapping[str, Any]) -> None:
    """Take over what ``collector_state`` gave."""
    collector.next_group = state["next_group"]
    collector.refill.load(state["estimate"])
    collector.selector.load(state)
    collector.kept = [load_group(tree) for tree in state["kept"]]
    collector.open = {tree["id"]: load_open_group(tree) for tree in state["open"]}
    collector.account.load(state["account"])
    if begun := state.get("begun"):
        _load_begun(collector, begun)


def _begun_state(collector: StreamingCollector) -> dict[str, Any]:
    """Of a step in its middle: it is to end with the batch and the counts that it would have had."""
    account = collector.account
    kept = {group.id for group in collector.kept}
    others = {g.id: g for g in [*account.groups, *account.settled, *collector.rejected] if g.id not in kept}
    return {
        "step": collector.step,
        "carried": collector.carried,
        "skipped": collector.selector.skipped,
        "groups": [group_state(group) for group in others.values()],
        "rejected": _ids(collector.rejected),
        "judged": _ids(account.groups),
        "settled": _ids(account.settled),
        "account": account.step_state(collector.engine.stats()),
        "refill": collector.refill.begins,
    }


def _load_begun(collector: StreamingCollector, state: Mapping[str, Any]) -> None:
    """Go on in the middle of the step; ``collector`` has loaded the rest. Every group is one object, as it was."""
    account = collector.account
    groups = {group.id: group for group in [*collector.kept, *map(load_group, state["groups"])]}
    collector.step, collector.begun, collector.carried = state["step"], True, state["carried"]
    collector.selector.skipped, collector.refill.begins = state["skipped"], state["refill"]
    collector.rejected = [groups[number] for number in state["rejected"]]
    account.groups = [groups[number] for number in state["judged"]]
    account.settled = [groups[number] for number in state["settled"]]
    account.load_step(state["account"], collector.engine.stats())


def _ids(groups: Iterable[Group]) -> list[int]:
    return [group.id for group in groups]
