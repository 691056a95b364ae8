"""What a recipe says of several engines."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from each import each

from dapo.config.check_teacher import teacher_paths
from dapo.config.deployment import Deployment
from dapo.config.load import recipe_from_dict
from dapo.config.schema.rollout import ENGINES, Rollout
from dapo.errors import RecipeError

SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}

TWO = "rollout.server.url=[http://a:1,http://b:2]"
VLLM = ("rollout.engine=vllm", "rollout.engines=2")


def recipe(*overrides):
    return recipe_from_dict(SMALL, list(overrides)).recipe


def placed(*overrides):
    return Deployment(recipe(*overrides))


def test_each_engine_of_the_schema_has_its_facts():
    names, _ = get_args(Rollout.model_fields["engine"].annotation)
    assert {*get_args(names), "own"} == set(ENGINES)


def test_one_engine_is_no_pool():
    one, server = placed(), placed("rollout.engine=vllm_server", "rollout.server.url=http://a:1")
    assert (one.engines, one.pool, one.slots) == (1, False, (None,))
    assert (server.engines, server.pool, server.urls) == (1, False, ("http://a:1",))


def test_a_run_repeats_its_digits_unless_an_engine_or_teacher_on_a_server_has_its_own_order():
    server = ("rollout.engine=vllm_server", "rollout.server.url=http://a:1")
    assert [placed(*one).repeats for one in ((), server)] == [True, False]
    assert [placed(f"algorithm.teacher.path={path}").repeats for path in ("a/b", "http://a:1")] == [True, False]


def test_a_server_that_teaches_several_sources_is_one():
    sources = [{"task": "signed_sum", "name": name, "seed": seed} for seed, name in enumerate("abc", start=2)]
    own = "algorithm.teacher.by_source={a: 'http://s:1', b: 'http://s:1/', c: someone/teacher}"
    made = recipe(f"data.train={json.dumps(sources)}", own)
    assert teacher_paths(made, served=True) == ["http://s:1"]
    assert teacher_paths(made, served=False) == ["someone/teacher"]


def test_engines_and_servers_are_counted():
    three = placed("rollout.engines=3", "rollout.slots=8")
    assert (three.engines, three.pool, three.slots) == (3, True, (8, 8, 8))
    assert placed("rollout.engines=2", "rollout.slots=[8, 32]").slots == (8, 32)
    servers = placed("rollout.engine=vllm_server", TWO, "rollout.slots=[64, 256]")
    assert (servers.urls, servers.slots) == (("http://a:1", "http://b:2"), (64, 256))


def test_on_a_ray_cluster_also_a_single_engine_lives_elsewhere():
    one = placed("launch.backend=ray")
    assert (one.pool, one.engines_on_ray, one.shares_places) == (True, True, True)
    servers = placed("launch.backend=ray", "rollout.engine=vllm_server", TWO, "learner.ranks=2")
    assert (servers.pool, servers.engines_on_ray) == (True, False)
    assert not placed("rollout.engines=2").engines_on_ray


@pytest.mark.parametrize(
    ("overrides", "colocated"),
    [
        ([], True),
        (["rollout.max_staleness=2"], False),
        (["cluster.colocate=false"], False),
        ([*VLLM, "rollout.vllm.tensor_parallel_size=2"], True),
        ([*VLLM], True),
    ],
)
def test_ranks_and_engines_share_places_where_they_take_turns(overrides, colocated):
    assert placed("launch.backend=ray", *overrides).shares_places is colocated


def test_settings_of_a_ray_cluster_are_not_read_without_one():
    named = ["cluster.address=head:6379", "cluster.cpus_per_host=0.5"]
    loaded = recipe_from_dict(SMALL, ["rollout.engines=2", *named])
    unread = [line for line in loaded.warnings if "nothing reads it: launch.backend is local" in line]
    assert [line.split(" ")[0] for line in unread] == ["cluster.address", "cluster.cpus_per_host"]
    loaded = recipe_from_dict(SMALL, ["rollout.engines=2", "launch.backend=ray", *named])
    assert not [line for line in loaded.warnings if "nothing reads it" in line]


_WAITS = {
    "cluster.address": "head:6379",
    "cluster.start_timeout": "60",
    "cluster.engine_timeout": "60",
    "cluster.max_engine_restarts": "1",
    "cluster.max_learner_restarts": "1",
    "learner.timeout": "60",
}
_OF_RAY, _START = {"cluster.address"}, {"cluster.start_timeout"}
_OF_A_POOL = {"cluster.engine_timeout", "cluster.max_engine_restarts"}
_OF_A_LEARNER = {"cluster.max_learner_restarts", "learner.timeout"}


@each(
    ("overrides", "unread"),
    [
        ([], set(_WAITS)),
        (["rollout.engines=2"], _OF_RAY | _OF_A_LEARNER),
        (["learner.ranks=2"], _OF_RAY | _START | _OF_A_POOL),  # ranks are started again, beside one engine too
        (["learner.ranks=2", "rollout.engines=2"], _OF_RAY),
        (["rollout.max_staleness=2"], _OF_RAY | {"learner.timeout"}),
        (["rollout.max_staleness=2", "rollout.weight_transfer=broadcast"], _OF_RAY),  # its members wait for each other
        (["launch.backend=ray"], _OF_A_LEARNER),
        (
            ["launch.backend=ray", "learner.ranks=2", "rollout.engine=vllm_server", "rollout.server.url=http://a:1"],
            _OF_A_POOL,  # the ranks alone live there
        ),
    ],
)
def test_each_setting_of_processes_is_read_where_there_are_such(overrides, unread):
    loaded = recipe_from_dict(SMALL, [*overrides, *(f"{key}={value}" for key, value in _WAITS.items())])
    told = [line.split(" ")[0] for line in loaded.warnings if "nothing reads it" in line]
    assert sorted(told) == sorted(unread)  # each once


@pytest.mark.parametrize(
    ("overrides", "lockstep"),
    [
        (["rollout.engines=2"], True),
        (["rollout.engines=2", "rollout.engine=generate"], True),
        (["rollout.engines=2", "rollout.engine=vllm"], False),
        (["rollout.engines=2", "rollout.lockstep=false"], False),
        (["rollout.engine=vllm_server", TWO, "rollout.lockstep=true"], True),
    ],
)
def test_lockstep_is_for_engines_that_repeat_themselves(overrides, lockstep):
    assert placed(*overrides).lockstep is lockstep


@each(
    ("overrides", "words"),
    [
        (["launch.backend=ray", "rollout.engine=vllm_server", TWO], ["launch.backend", "nothing", "learner.ranks"]),
        (["launch.backend=ray", "cluster.address=ray://a:10001"], ["cluster.address", "HOST:PORT"]),
        (["launch.backend=ray", "cluster.colocate=true", "rollout.max_staleness=2"], ["cluster.colocate", "same time"]),
        (["cluster.cpus_per_host=0"], ["cluster.cpus_per_host", "above 0"]),
        (["rollout.engines=2", "rollout.slots=[4,4,4]"], ["rollout.slots", "3 numbers for 2 engines"]),
        (["rollout.engines=2", "rollout.slots=[4,0]"], ["rollout.slots", "from 1 to 65,536"]),
        (["rollout.engine=vllm_server", "rollout.server.url=[http://a:1,http://a:1/]"], ["a server twice"]),
        (["rollout.engine=vllm_server", "rollout.server.url=[]"], ["needs the address"]),
        (["rollout.engine=vllm_server", TWO, "rollout.engines=3"], ["rollout.engines", "are the engines (2)"]),
        (["rollout.engine=vllm_server", "rollout.server.url=[http://a:1,b:2]"], ["http://HOST:PORT", "b:2"]),
        (["rollout.engines=0"], ["rollout.engines", "from 1"]),
        (["cluster.engine_timeout=0"], ["cluster.engine_timeout", "from 1"]),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, words):
    with pytest.raises(RecipeError) as refused:
        recipe(*overrides)
    for word in words:
        assert word in str(refused.value)


RANKS = ("learner.ranks=2", "rollout.engines=2")
BESIDE = ("rollout.engine=vllm", "rollout.max_staleness=2")
ON_RAY = ("launch.backend=ray", *RANKS)
WIDE = ("rollout.engine=vllm", "rollout.vllm.tensor_parallel_size=2")


@each(
    ("route", "over"),
    [
        ("auto", ()),
        ("folder", RANKS),
        ("folder", ("rollout.engine=vllm_server", TWO)),
        ("broadcast", RANKS),
        ("broadcast", BESIDE),
        ("broadcast", ON_RAY),
        ("ipc", RANKS),
        ("ipc", ON_RAY),
        ("object_store", ON_RAY),
        ("object_store", (*BESIDE, "launch.backend=ray")),
    ],
)
def test_a_route_that_leads_to_the_engines(route, over):
    found = placed(*over, f"rollout.weight_transfer={route}")
    assert found.route == ("shared" if route == "auto" else route)


@each(
    ("route", "over", "why"),
    [
        ("folder", (), "nothing travels"),
        ("broadcast", ("rollout.engines=2",), "a learner of one rank that takes turns"),
        ("broadcast", ("learner.ranks=2",), "the engine is in the program's own process"),
        ("broadcast", (*RANKS, "rollout.max_staleness=2", "rollout.overlap_turns=3"), "in lockstep a lost engine"),
        ("broadcast", (*ON_RAY, "model.device=cuda"), "NCCL wants a device for each member"),
        ("object_store", RANKS, "the object store is Ray's"),
        ("object_store", ("rollout.engine=vllm_server", TWO, "learner.ranks=2"), "a vLLM server reads new weights"),
        ("ipc", (*RANKS, "model.device=cpu"), "memory of a CUDA device is lent"),
        ("ipc", (*ON_RAY, "cluster.colocate=false"), "have to share a device"),
        ("ipc", (*RANKS, *WIDE), "would gather on one of the engine's devices"),
        ("broadcast", (*RANKS, *WIDE), "would gather on one of the engine's devices"),
    ],
)
def test_a_route_that_leads_nowhere_is_refused(route, over, why):
    with pytest.raises(RecipeError, match=rf"rollout\.weight_transfer: .?{route}.?[^\n]*\n?.*{why}"):
        recipe(*over, f"rollout.weight_transfer={route}")
