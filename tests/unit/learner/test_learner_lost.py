"""What a group says and does when a rank fails, over stand-ins for ranks; and what a rank refuses of its model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from each import each
from exchanges import by_folder
from inline_transport import InlineTransport
from learner_here import learner_apart
from learner_rows import make_rows
from number_engine import GATE, NumberEngine

from dapo.config.deployment import deployment_of
from dapo.config.load import recipe_from_dict
from dapo.engines.host import EngineHost
from dapo.engines.pool import EnginePool
from dapo.errors import LearnerError, LearnerLost, ModelError, RecipeError
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import LearnerHosts
from dapo.learner.worker import WorkerFacts
from dapo.models.load import load_model
from dapo.models.read import check_buffers, give_memory
from dapo.models.skeleton import model_without_weights
from dapo.models.tiny import make_tiny_model
from dapo.models.weight_files import model_tensors, read_shapes, read_weights, write_part, write_weights
from dapo.processes.transport import HostSpec
from dapo.run import learners
from dapo.types.batch import LearnStep
from dapo.weights.exchange import WeightExchange


class StandIn:
    """A rank that fails as it is told."""

    def __init__(self, failure: Exception | None, *notes: str) -> None:
        self.failure, self.notes = failure, notes

    def describe(self) -> WorkerFacts:
        return WorkerFacts(1 << 20, True, True, 0.0, (), self.notes, 0)

    def learn(self, plan):
        if self.failure is not None:
            raise self.failure
        return {}, [[]]


def group_of(folder, *failures):
    specs = [HostSpec(f"rank-{n}", StandIn, (failure,)) for n, failure in enumerate(failures)]
    return LearnerDriver(LearnerHosts(InlineTransport(), specs, 600.0), by_folder(folder))


ECHO = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29093")


def test_the_cause_is_told_and_not_its_echo(tmp_path):
    group = group_of(tmp_path, ECHO, MemoryError("no room"), ECHO)
    step = LearnStep([make_rows()], [1e-3], 0)
    with pytest.raises(LearnerLost, match="rank 1 of 3 failed first in `learn`: MemoryError: no room"):
        group.learn(step).result()
    with pytest.raises(LearnerLost, match="rank 1 of 3"):  # and none of them is asked again
        group.learn(step)
    group.close()


def test_each_rank_tells_its_process_and_its_calls(tmp_path):
    group = group_of(tmp_path, None, None)
    first, second = group.processes()
    assert [(one.name, one.role, one.alive, len(one.starts), one.turns) for one in (first, second)] == [
        ("rank-0", "learner", True, 1, ()),
        ("rank-1", "learner", True, 1, ()),
    ]
    for _ in range(2):
        group.learn(LearnStep([make_rows()], [1e-3], 0)).result()
    for rank in group.processes():
        (began, _), (later, seconds) = rank.turns
        assert began <= later
        assert (rank.last_turn, rank.turn_seconds) == (later + seconds, seconds)
    assert [(one.turns, one.starts) for one in group.processes()] == [((), ())] * 2  # each is told once
    group.close()


class Publishes(StandIn):
    """A rank whose weights are one number."""

    def send(self, route, folder):
        write_weights(folder, [("w", torch.ones(1))])


def test_an_engine_of_a_pool_that_starts_slowly_finds_the_set_that_it_was_sent_to(tmp_path, monkeypatch):
    """However often the ranks publish meanwhile: the pool alone knows when nobody reads a set."""
    monkeypatch.setattr(learners, "start_worker", lambda recipe, place: Publishes(None))
    monkeypatch.setattr(learners, "transport_of", lambda run, places: InlineTransport())
    ranks = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}, "learner": {"ranks": 2}}
    recipe, facts = recipe_from_dict(ranks).recipe, SimpleNamespace(name="a/b")
    exchange, own = (by_folder(tmp_path / name) for name in ("sets", "own"))
    specs = [HostSpec("engine-0", EngineHost, (NumberEngine, 2))]
    pool = EnginePool(InlineTransport(), specs, GATE, exchange=exchange)
    group = learners.make_learner(recipe, deployment_of(recipe), facts, None, exchange=exchange, run=None)
    tickets = [group.publish(version) for version in range(4)]
    assert all(read_shapes(Path(ticket.address)) == {"w": [1]} for ticket in tickets)
    group.close()
    assert not (tmp_path / "sets").exists()
    pool.close()

    alone = learners.make_learner(recipe, deployment_of(recipe), facts, None, exchange=own, run=None)
    tickets = [alone.publish(version) for version in range(4)]
    assert [Path(ticket.address).exists() for ticket in tickets] == [False, False, True, True]
    alone.close()


def test_what_ranks_say_of_their_model_is_said_once(tmp_path, monkeypatch):
    """Not by each of them, nor again where the engine's model, in this process, said it."""
    said = iter([("rows are padded", "no end token"), ("rows are padded", "heads are tied")])
    monkeypatch.setattr(learners, "start_worker", lambda recipe, place: StandIn(None, *next(said)))
    monkeypatch.setattr(learners, "transport_of", lambda run, places: InlineTransport())
    recipe = recipe_from_dict(
        {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}, "learner": {"ranks": 2}}
    ).recipe
    heard = []
    engines = SimpleNamespace(notes=("no end token",))
    facts = SimpleNamespace(name="a/b")
    group = learners.make_learner(
        recipe, deployment_of(recipe), facts, engines, exchange=WeightExchange(), run=None, say=heard.append
    )
    assert group.notes == ("rows are padded", "no end token", "heads are tied")
    assert heard == ["rows are padded", "heads are tied"]


def test_a_learner_alone_is_told_of_as_what_it_is(tmp_path):
    """No word about ranks; what it refuses is no loss, and sets of weights that it left are deleted."""

    class Fails(StandIn):
        def send(self, route, folder):
            folder.mkdir()

    def learner(failure):
        return learner_apart(Fails, failure, weights=tmp_path)

    refuses, dies = learner(LearnerError("not finite")), learner(MemoryError("no room"))
    step = LearnStep([make_rows()], [1e-3], 0)
    for _ in range(2):
        with pytest.raises(LearnerError, match=r"^not finite$"):
            refuses.learn(step).result()
    dies.publish(0)
    said = r"^the learner's process failed in `learn`: MemoryError: no room\. It was ended$"
    with pytest.raises(LearnerLost, match=said):
        dies.learn(step).result()
    with pytest.raises(LearnerLost, match=said):
        dies.logprobs([])
    dies.close()
    assert not list(tmp_path.iterdir())


def test_what_all_ranks_refuse_is_no_loss(tmp_path):
    group = group_of(tmp_path, *[LearnerError("not finite")] * 2)
    for _ in range(2):
        with pytest.raises(LearnerError, match="not finite"):
            group.learn(LearnStep([make_rows()], [1e-3], 0)).result()
    assert group.workers.ranks == 2


def test_buffers_survive_and_garbage_in_them_is_found(tmp_path):
    folder = str(make_tiny_model(tmp_path, hidden=16, heads=2, ffn=24))
    model = model_without_weights(folder, torch.float32, False)
    give_memory(model, torch.device("cpu"))
    check_buffers(folder, model, torch.float32, trust_remote_code=False)
    assert not any(parameter.is_meta for parameter in model.parameters())
    model.model.rotary_emb.inv_freq.fill_(4e-41)  # what ``to_empty`` alone leaves there
    with pytest.raises(ModelError, match=r"rotary_emb\.inv_freq"):
        check_buffers(folder, model, torch.float32, trust_remote_code=False)


def test_parts_of_all_ranks_are_a_set_and_a_skipped_one_is_named(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path / "model", hidden=16, heads=2, ffn=24))
    tensors = model_tensors(loaded.model)
    write_part(tmp_path / "set", 0, 2, tensors, torch.float32)
    with pytest.raises(FileNotFoundError, match=r"rank-00001-of-00002.*has not published"):
        read_weights(tmp_path / "set")
    write_part(tmp_path / "set", 1, 2, {}, torch.float32)
    found = dict(read_weights(tmp_path / "set"))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert read_shapes(tmp_path / "set") == {name: list(tensor.shape) for name, tensor in tensors.items()}


@each(
    ("settings", "named"),
    [
        ({"learner": {"ranks": 4, "replicas": 3}}, "learner.replicas"),
        ({"learner": {"ranks": 8, "replicas": 2, "context_parallel": 3}}, "expected one of 1, 2, 4"),
        ({"learner": {"context_parallel": 2}}, "expected one of 1"),
        (
            {"learner": {"ranks": 2, "context_parallel": 2}, "model": {"path": "a/b", "attention": "padded"}},
            "cuts packed rows",
        ),
        ({"learner": {"cpu_offload": True}}, "learner.cpu_offload"),
        ({"learner": {"reshard_after_forward": "true"}}, "learner.reshard_after_forward"),
        ({"learner": {"ranks": 2}, "rollout": {"engine": "generate"}}, "rollout.engine"),
        (
            {"learner": {"ranks": 2, "cpu_offload": True}, "model": {"path": "a/b", "device": "cpu"}},
            "learner.cpu_offload",
        ),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings, named):
    given = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}
    recipe_from_dict(given | {"learner": {"ranks": 4, "replicas": 2}})
    with pytest.raises(RecipeError, match=named.replace(".", r"\.")):
        recipe_from_dict(given | settings)
