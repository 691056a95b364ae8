"""What a recipe takes of a Ray cluster; the cluster itself is a stand-in."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future

import pytest
import torch

from dapo.config.deployment import deployment_of
from dapo.config.load import recipe_from_dict
from dapo.errors import ClusterEnded, ClusterError, EngineError, ModelError, RecipeError
from dapo.observe.console import Console
from dapo.processes.placement import Bundle, Node
from dapo.run import places as module
from dapo.run import reinforcement
from dapo.run.given import Given
from dapo.run.places import Places, describe_place, describe_plan, missing_ray, wants_devices
from dapo.types.evidence import ClusterLost

SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}


def recipe(*overrides):
    return recipe_from_dict(SMALL, ["launch.backend=ray", *overrides]).recipe


def plan_of(found, *, cuda, **options):
    return module.plan_of(found, deployment_of(found, **options), cuda=cuda)


def places_of(cluster, found, **options):
    return Places(cluster, found, deployment_of(found, **options))


def open_places(found):
    return module.open_places(found, deployment_of(found))


class Cluster:
    """Stands in for ``dapo.processes.ray.RayCluster``."""

    address = here = "a:1"

    def __init__(self, *nodes):
        self.machines, self.placed = list(nodes), None
        self.one_machine = len(nodes) == 1
        self.lost = Future()
        self.dies = None  # and how, when it is asked

    def nodes(self):
        if self.dies is not None:
            self.lost.set_result(self.dies)
            raise ClusterError("it is gone")
        return self.machines

    def place(self, plan, patience):
        self.placed = (plan, patience)


def names(plan):
    return {name: place.bundle for name, place in plan.places.items()}


def test_ranks_and_engines_share_bundles_on_processors():
    plan = plan_of(recipe("learner.ranks=2", "rollout.engines=3", "run.threads=4"), cuda=False)
    assert plan.bundles == (Bundle(4.0, 0),) * 3
    assert names(plan) == {"rank-0": 0, "rank-1": 1, "engine-0": 0, "engine-1": 1, "engine-2": 2}
    assert describe_plan(plan) == (
        "5 hosts in 3 bundles, 12 CPUs (3 of 4 CPUs; 2 of them for a rank and an engine in turns)"
    )


def test_beside_each_other_a_single_learner_has_a_place_too():
    beside = recipe("rollout.max_staleness=2", "cluster.cpus_per_host=0.5")
    assert names(plan_of(beside, cuda=False)) == {"learner": 0, "engine-0": 1}
    assert plan_of(beside, cuda=False).bundles == (Bundle(0.5, 0),) * 2
    assert names(plan_of(beside, cuda=False, training=False)) == {"engine-0": 0}
    assert names(plan_of(recipe(), cuda=False)) == {"engine-0": 0}


def test_an_engine_of_several_devices_shares_a_bundle_with_as_many_ranks():
    own = ("learner.ranks=4", "rollout.engine=vllm", "rollout.engines=2", "rollout.vllm.tensor_parallel_size=2")
    wide = recipe(*own)
    plan = plan_of(wide, cuda=True)
    assert plan.bundles == (Bundle(2.0, 2),) * 2
    assert names(plan) == {"rank-0": 0, "rank-1": 0, "rank-2": 1, "rank-3": 1, "engine-0": 0, "engine-1": 1}
    assert describe_plan(plan).endswith("2 of them for ranks and an engine in turns)")
    assert plan_of(wide, cuda=False).gpus == 0
    apart = recipe(*own, "cluster.colocate=false")
    assert plan_of(apart, cuda=True).bundles == (Bundle(1.0, 1),) * 4 + (Bundle(1.0, 2),) * 2


@pytest.mark.parametrize(
    ("device", "gpus", "wanted"), [("auto", 0, False), ("auto", 2, True), ("cpu", 2, False), ("cuda", 0, True)]
)
def test_devices_are_the_clusters(device, gpus, wanted):
    assert wants_devices(recipe(f"model.device={device}"), [Node("a", 8.0, gpus)]) is wanted


def test_what_is_asked_for_is_placed_with_the_recipes_patience():
    cluster = Cluster(Node("a", 8.0, 0), Node("b", 8.0, 0))
    places = places_of(cluster, recipe("learner.ranks=2", "cluster.start_timeout=7"))
    assert cluster.placed == (places.plan, 7.0)
    assert not places.one_machine
    line = places.sentence()
    assert line.startswith("Ray cluster at a:1 (a: 8 CPUs and 0 GPUs, b: 8 CPUs and 0 GPUs): 3 hosts in 2 bundles")


def test_a_loss_is_told_and_looked_for():
    cluster, told = Cluster(Node("a", 2.0, 0)), []
    places = places_of(cluster, recipe())
    places.tell(told.append)
    assert (places.lost(), told) == (None, [])
    cluster.dies = ClusterLost("head", "a:1")
    assert (places.lost(), told) == (cluster.dies, [cluster.dies])
    places.tell(told.append)  # late
    assert told == [cluster.dies] * 2


def test_what_fails_because_the_cluster_was_lost_says_so_and_what_to_do():
    cluster = Cluster(Node("a", 2.0, 0))
    places = places_of(cluster, recipe())
    with pytest.raises(EngineError, match="too slow"), places.told_if_lost():
        raise EngineError("too slow")
    cluster.dies = ClusterLost("head", "a:1")
    with pytest.raises(ClusterEnded) as raised, places.told_if_lost():
        raise EngineError("engine-0 did not start.")
    assert raised.value.evidence == cluster.dies
    assert str(raised.value) == (
        "the head of the Ray cluster at a:1 (its gcs_server) is gone, and nothing can be started there: engine-0 did "
        "not start. Give the command again on a cluster that lives (cluster.address=HOST:PORT, or null for one of this "
        "machine alone) or with launch.backend=local"
    )
    with pytest.raises(ClusterEnded) as again, places.told_if_lost():  # by what is within
        raise raised.value
    assert again.value is raised.value


def test_beside_an_engine_of_the_callers_own_only_the_learner_takes_places():
    cluster = Cluster(Node("a", 2.0, 0))
    places = places_of(cluster, recipe("learner.ranks=2", "rollout.engines=8"), engine_given=True)
    assert cluster.placed == (places.plan, 600.0)
    assert names(places.plan) == {"rank-0": 0, "rank-1": 1}
    assert len(places.plan.bundles) == 2


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], r"launch\.backend=ray: nothing .* learner\.ranks above 1"),
        (["rollout.max_staleness=2"], r"launch\.backend=ray: nothing .* launch\.backend=local"),
        (["learner.ranks=2", "rollout.weight_transfer=object_store"], r"weight_transfer=object_store: .* use auto"),
        (["learner.ranks=2"], None),
    ],
)
def test_what_cannot_be_beside_an_engine_of_the_callers_own(overrides, said, monkeypatch):
    """Told before anything is looked for; what can be is asked of the cluster without engines."""
    asked = []

    def asking(recipe, deployment):
        asked.append(deployment)
        raise ClusterError("far enough")

    monkeypatch.setattr(reinforcement, "open_places", asking)
    few = "[{task: signed_sum, size: 5}]"
    wanted = recipe("model.path=builtin/signed-sum", f"data.train={few}", "data.validation=[]", *overrides)
    with pytest.raises(ClusterError if said is None else RecipeError, match=said), Console("quiet") as console:
        reinforcement.reward_session(wanted, console, given=Given(engine=object()))
    assert asked == ([deployment_of(wanted, engine_given=True)] if said is None else [])


def test_a_device_that_the_cluster_does_not_know_of_is_refused():
    with pytest.raises(ClusterError, match=r"learner\.ranks"):
        places_of(Cluster(Node("a", 8.0, 4)), recipe())
    assert places_of(Cluster(Node("a", 8.0, 4)), recipe("learner.ranks=2")).cuda
    assert places_of(Cluster(Node("a", 8.0, 4)), recipe("rollout.max_staleness=2")).cuda


def test_graphs_without_a_card_are_refused_before_anything_is_placed():
    wanted, plain = recipe("rollout.embedded.cuda_graphs=true", "learner.ranks=2"), Cluster(Node("a", 8.0, 0))
    with pytest.raises(ClusterError, match=r"cuda_graphs is true, and no machine .* \(a: 8 CPUs and 0 GPUs\): take"):
        places_of(plain, wanted)
    assert plain.placed is None
    places_of(plain, wanted, engine_given=True)  # the caller's own engine has settings of its own
    places_of(Cluster(Node("a", 8.0, 0), Node("b", 8.0, 4)), wanted)


def test_without_the_package_the_next_move_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install 'ray>=[\d.]+'.*launch\.backend: local"):
        open_places(recipe())
    assert missing_ray(recipe_from_dict(SMALL, []).recipe) == ""


def test_a_cluster_that_nobody_answers_for_is_not_asked_by_ray(monkeypatch):
    monkeypatch.setattr(module, "unanswered", lambda address: f"nobody answered at {address}")
    with pytest.raises(ClusterError, match=r"the Ray cluster at c:6379 cannot be joined: nobody answered at c:6379"):
        open_places(recipe("cluster.address=c:6379"))


def test_which_cluster_it_is(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert describe_place(recipe()) == "a Ray cluster of this machine, which is started for the run"
    monkeypatch.setenv("RAY_ADDRESS", "b:6379")
    assert describe_place(recipe()) == "the Ray cluster at b:6379 (RAY_ADDRESS)"
    assert describe_place(recipe("cluster.address=c:6379")) == "the Ray cluster at c:6379"
    assert open_places(recipe_from_dict(SMALL, []).recipe) is None


@pytest.mark.parametrize("learner", ["learner.ranks=2", "rollout.max_staleness=2"])
def test_the_devices_of_a_cluster_need_not_be_where_the_run_is_started(monkeypatch, learner):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wanted = recipe("model.device=cuda", learner)
    reinforcement._check_here(wanted, deployment_of(wanted))


def test_a_learner_in_this_process_needs_its_device_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="'cuda', but torch sees no CUDA device here"):
        reinforcement._check_here(recipe("model.device=cuda"), deployment_of(recipe("model.device=cuda")))
