"""Bundles of a run, and whether machines have them: worked by hand."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from dapo.processes.placement import Bundle, Node, Place, Plan, by_machine, late, misfit, plan_places

RANKS, ENGINES = ["rank-0", "rank-1"], ["engine-0", "engine-1", "engine-2"]


def test_rank_and_engine_of_a_number_share_a_bundle():
    plan = plan_places(RANKS, ENGINES, cpus=4.0, rank_gpus=1, engine_gpus=1, colocate=True)
    assert plan.bundles == (Bundle(4.0, 1),) * 3
    assert plan.places == {
        "rank-0": Place(0, 2.0, 0.5),
        "rank-1": Place(1, 2.0, 0.5),
        "engine-0": Place(0, 2.0, 0.5),
        "engine-1": Place(1, 2.0, 0.5),
        "engine-2": Place(2, 4.0, 1.0),
    }
    assert (plan.cpus, plan.gpus) == (12.0, 3.0)


def test_apart_each_has_its_own():
    plan = plan_places(RANKS, ENGINES[:2], cpus=2.0, rank_gpus=1, engine_gpus=4, colocate=False)
    assert plan.bundles == (Bundle(2.0, 1), Bundle(2.0, 1), Bundle(2.0, 4), Bundle(2.0, 4))
    assert [(place.bundle, place.cpus, place.gpus) for place in plan.places.values()] == [
        (0, 2.0, 1),
        (1, 2.0, 1),
        (2, 2.0, 4),
        (3, 2.0, 4),
    ]


def test_as_many_ranks_as_an_engine_has_devices_share_its_bundle():
    """Three engines of two devices, five ranks: the third bundle has one rank. Nobody asks for a part of a device."""
    ranks, engines = [f"rank-{n}" for n in range(5)], ["engine-0", "engine-1", "engine-2"]
    plan = plan_places(ranks, engines, cpus=4.0, rank_gpus=1, engine_gpus=2, colocate=True)
    assert plan.bundles == (Bundle(8.0, 2),) * 3
    assert plan.places == {
        "rank-0": Place(0, 2.0, 0, (0,)),
        "rank-1": Place(0, 2.0, 0, (1,)),
        "rank-2": Place(1, 2.0, 0, (0,)),
        "rank-3": Place(1, 2.0, 0, (1,)),
        "rank-4": Place(2, 2.0, 0, (0,)),
        "engine-0": Place(0, 4.0, 0, (0, 1)),
        "engine-1": Place(1, 4.0, 0, (0, 1)),
        "engine-2": Place(2, 6.0, 0, (0, 1)),
    }
    more = plan_places(ranks, engines[:1], cpus=1.0, rank_gpus=1, engine_gpus=4, colocate=True)
    assert more.bundles == (Bundle(4.0, 4),) * 2
    assert more.places["rank-4"] == Place(1, 1.0, 0, (0,))


@given(st.integers(0, 9), st.integers(0, 4), st.integers(2, 4))
def test_devices_of_a_shared_bundle_have_one_rank_and_one_engine_at_most(ranks, engines, width):
    names = [f"r{n}" for n in range(ranks)], [f"e{n}" for n in range(engines)]
    plan = plan_places(*names, cpus=3.0, rank_gpus=1, engine_gpus=width, colocate=True)
    assert plan.gpus >= max(ranks, engines * width)
    assert plan.gpus - max(ranks, engines * width) < width
    for kind in "re":
        taken = [(one.bundle, device) for name, one in plan.places.items() if name[0] == kind for device in one.shared]
        assert len(taken) == len(set(taken)) == (ranks if kind == "r" else engines * width)
    for number, bundle in enumerate(plan.bundles):
        assert sum(place.cpus for place in plan.places.values() if place.bundle == number) <= bundle.cpus
        assert all(device < bundle.gpus for p in plan.places.values() if p.bundle == number for device in p.shared)


@pytest.mark.parametrize("colocate", [True, False])
def test_environments_have_bundles_of_their_own_without_a_device(colocate):
    names = ["environment-0", "environment-1"]
    both = {"cpus": 2.0, "rank_gpus": 1, "engine_gpus": 1, "colocate": colocate}
    plan = plan_places(RANKS, ENGINES[:2], **both, environments=names)
    without = plan_places(RANKS, ENGINES[:2], **both)
    count = len(without.bundles)
    assert plan.bundles == (*without.bundles, Bundle(2.0, 0), Bundle(2.0, 0))
    assert dict(plan.places) == {**without.places, names[0]: Place(count, 2.0, 0), names[1]: Place(count + 1, 2.0, 0)}


@each("colocate", [True, False])
@each(("ranks", "engines"), [(0, 1), (2, 0), (3, 3), (1, 4), (4, 1)])
def test_no_bundle_is_given_out_twice(ranks, engines, colocate):
    plan = plan_places(
        [f"r{n}" for n in range(ranks)], [f"e{n}" for n in range(engines)], cpus=3.0, rank_gpus=1, engine_gpus=1,
        colocate=colocate,
    )  # fmt: skip
    assert len(plan.places) == ranks + engines
    for number, bundle in enumerate(plan.bundles):
        own = [place for place in plan.places.values() if place.bundle == number]
        assert sum(place.cpus for place in own) == bundle.cpus
        assert sum(place.gpus for place in own) == bundle.gpus


def test_ranks_that_follow_each_other_are_on_one_machine():
    """Worked by hand: what was granted in turns is taken machine by machine, each kind by itself."""
    small, wide = Bundle(1.0, 1), Bundle(1.0, 2)
    assert by_machine([small] * 4, ["b", "a", "b", "a"]) == [0, 2, 1, 3]
    assert by_machine([small] * 4, ["a", "a", "b", "b"]) == [0, 1, 2, 3]
    assert by_machine([small, small, wide, small, wide], ["a", "b", "b", "a", "a"]) == [0, 3, 4, 1, 2]
    assert by_machine([], []) == []


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from("abc")), max_size=12))
def test_every_granted_bundle_is_taken_once_by_its_kind(granted):
    bundles, machines = [Bundle(float(kind), 0) for kind, _ in granted], [machine for _, machine in granted]
    taken = by_machine(bundles, machines)
    assert sorted(taken) == list(range(len(granted)))
    assert [bundles[n] for n in taken] == bundles
    for kind in set(bundles):
        along = [machines[n] for n, bundle in zip(taken, bundles, strict=True) if bundle == kind]
        changes = sum(one != other for one, other in pairwise(along))
        assert changes == max(0, len(set(along)) - 1)  # never back to a machine that was left


def plan(*bundles):
    return Plan(tuple(Bundle(*one) for one in bundles), {})


def test_what_is_too_much_names_both():
    said = misfit(plan((1.0, 1), (1.0, 1), (1.0, 1)), [Node("a", 8.0, 1), Node("b", 8.0, 1)])
    assert said == (
        "3 bundles of 1 CPU and 1 GPU, 3 CPUs and 3 GPUs in all, and there are 16 CPUs and 2 GPUs on 2 machines "
        "(a: 8 CPUs and 1 GPU; b: 8 CPUs and 1 GPU)"
    )
    assert (
        misfit(plan((1.0, 0)), []) == "1 bundle of 1 CPU, 1 CPU in all, and there are 0 CPUs and 0 GPUs on 0 machines"
    )


def test_a_bundle_does_not_stretch_over_machines():
    nodes = [Node("a", 8.0, 2), Node("b", 8.0, 2)]
    assert misfit(plan((1.0, 2), (1.0, 2)), nodes) == ""
    assert "each on one machine" in misfit(plan((1.0, 3)), nodes)
    assert "(1 of them)" in misfit(plan((1.0, 3), (1.0, 1)), nodes)
    assert misfit(plan((1.0, 1), (8.0, 0)), [Node("a", 1.0, 1), Node("b", 8.0, 0)]) == ""


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from([(1.0, 1), (1.0, 0), (2.0, 1)]),
    st.sampled_from([(1.0, 1), (1.0, 2), (1.0, 0)]),
)
def test_every_assignment_is_looked_at(nodes, some, others, one, other):
    """Against trying all ways of putting bundles on machines."""
    machines = [Node(str(n), float(cpus), float(gpus)) for n, (cpus, gpus) in enumerate(nodes)]
    wanted = [one] * min(some, 3) + [other] * min(others, 2)
    possible = any(
        all(
            sum(wanted[b][0] for b, at in enumerate(ways) if at == n) <= machine.cpus
            and sum(wanted[b][1] for b, at in enumerate(ways) if at == n) <= machine.gpus
            for n, machine in enumerate(machines)
        )
        for ways in product(range(len(machines)), repeat=len(wanted))
    )
    if misfit(plan(*wanted), machines) == "":
        assert possible
    elif one == other or not some or not others:  # of one kind the answer is exact
        assert not possible


def test_who_waited_too_long_is_told_what_was_wanted_and_what_is_free():
    assert late(plan((1.0, 1), (1.0, 1)), 0.5, 0, 30.0, "head:6379") == (
        "2 CPUs and 2 GPUs in 2 bundles did not become free within 30 s (cluster.start_timeout) on the Ray cluster at "
        "head:6379: it has as much, and at present 0.5 CPUs and 0 GPUs are free; `ray status` shows who has the rest"
    )
    assert late(plan((1.0, 0)), 0, 0, 1.0, "head:1").startswith("1 CPU in 1 bundle did not become free within 1 s")
