"""Who runs where: one value from a recipe, which everything else takes."""

from __future__ import annotations

import pickle

from each import each

from dapo.config import schema
from dapo.config.deployment import deployment_of
from dapo.config.load import recipe_from_dict
from dapo.engines.factory import EngineSpec, ServerAccess

SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}
TWO = ("rollout.engine=vllm_server", "rollout.server.url=[http://a:1,http://b:2]")


def placed(*overrides, **options):
    return deployment_of(recipe_from_dict(SMALL, list(overrides)).recipe, **options)


@each(
    ("overrides", "learner", "transport", "route", "model_here"),
    [
        ([], "here", "here", "shared", True),
        (["rollout.engine=vllm"], "here", "here", "shared", True),
        (["rollout.engines=2"], "here", "processes", "folder", True),
        (["rollout.engine=vllm_server", "rollout.server.url=http://a:1"], "here", "here", "folder", True),
        ([*TWO], "here", "threads", "folder", True),
        (["learner.ranks=2"], "ranks", "here", "folder", True),
        (["learner.ranks=2", "rollout.engines=2"], "ranks", "processes", "folder", False),
        (["rollout.max_staleness=2"], "apart", "processes", "folder", False),
        (["rollout.max_staleness=2", "rollout.weight_transfer=broadcast"], "apart", "processes", "broadcast", False),
        (["launch.backend=ray"], "here", "ray", "folder", True),
        (["launch.backend=ray", "learner.ranks=2", *TWO], "ranks", "threads", "folder", False),
    ],
)
def test_each_part_has_its_place(overrides, learner, transport, route, model_here):
    found = placed(*overrides)
    assert (found.learner, found.transport, found.route, found.model_here) == (learner, transport, route, model_here)


def test_nothing_waits_for_a_learner_that_learns_nothing():
    assert placed("rollout.max_staleness=2", training=False).learner == "here"
    assert placed("learner.ranks=2", training=False).learner == "ranks"


def test_beside_an_engine_of_the_caller_weights_travel_where_generation_overlaps():
    turns = placed(engine_given=True)
    beside = placed("rollout.max_staleness=2", engine_given=True)
    assert (turns.kind, turns.pool, turns.learner, turns.route) == ("given", False, "here", "shared")
    assert (beside.pool, beside.learner, beside.route, beside.overlaps) == (False, "here", "folder", True)


def test_a_supervised_run_has_a_learner_alone():
    recipe = recipe_from_dict(SMALL, ["learner.ranks=2"]).recipe
    found = deployment_of(recipe.model_copy(update={"run": recipe.run.model_copy(update={"stage": "sft"})}))
    assert (found.learner, found.kind, found.engines) == ("ranks", "none", 0)
    assert found.lines() == ["learner: 2 ranks in processes of this machine; no engine generates"]


def test_the_names_of_processes():
    found = placed("learner.ranks=2", "rollout.engines=2")
    assert found.learner_hosts + found.engine_hosts == ["rank-0", "rank-1", "engine-0", "engine-1"]
    assert placed().learner_hosts + placed().engine_hosts == []
    assert placed("rollout.max_staleness=2").learner_hosts == ["learner"]


def test_environments_are_actors_on_a_cluster_alone():
    plays = ("environment.kind=my_game:guess", "rewards=[{name: accuracy, kind: environment}]")
    assert placed(*plays).environment_hosts == []
    assert placed("launch.backend=ray").environment_hosts == []
    assert placed("launch.backend=ray", "rollout.engines=2", *plays).environments == 2
    assert placed("launch.backend=ray", "run.reward_workers=3", *plays).environments == 3
    found = placed("launch.backend=ray", "environment.workers=1", "run.reward_workers=3", *plays)
    assert found.environment_hosts == ["environment-0"]
    assert found.lines()[-1] == "environments: 1 actor on the Ray cluster"


@each(
    ("overrides", "said"),
    [
        (["rollout.engines=3"], "3 engines in processes of this machine, turns of 64 decode steps, in lockstep"),
        (
            ["rollout.max_staleness=2"],
            "1 engine in a process of its own, turns of 64 decode steps, each at its own pace",
        ),
        (["launch.backend=ray"], "1 engine on a Ray cluster"),
        (["launch.backend=ray", "rollout.engines=2"], "2 engines on a Ray cluster"),
        ([*TWO], "2 servers"),
        ([*TWO, "rollout.lockstep=true"], "in lockstep: repeatable"),
    ],
)
def test_a_pool_is_described(overrides, said):
    assert said in placed(*overrides).pool_line()


def test_the_check_prints_learner_engine_weights_and_order():
    assert placed().lines() == [
        "learner: in this process",
        "engine: embedded, in this process",
        "weights: the learner's own tensors, not copied",
        "order: learner and engines take turns",
    ]
    overlap = placed("rollout.max_staleness=2", "rollout.overlap_turns=3", "rollout.weight_transfer=folder").lines()
    assert overlap[0] == "learner: in a process of its own"
    assert overlap[2:] == [
        "weights: sent by folder",
        "order: engines generate while the learner works, at most 2 versions behind, for 3 turns in each step",
    ]


def test_a_specification_travels_and_keeps_the_servers_key_to_itself():
    server = ServerAccess("http://a:1", "runs/mine", "a secret")
    spec = EngineSpec(schema.Rollout(engine="vllm_server"), schema.Model(path="m"), None, 64, server=server)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "a secret" not in repr(spec)
