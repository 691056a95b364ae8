"""Environments on hosts of a transport: the same answers as from workers of this machine, also when a host is lost."""

from __future__ import annotations

import pytest
from inline_transport import InlineTransport
from test_environments_pool import ask, load, question, said

from dapo.environments import cluster
from dapo.environments.cluster import HostedPlayers
from dapo.environments.pool import EnvironmentPool
from dapo.errors import EpisodeError
from dapo.processes.local import ProcessTransport
from dapo.types.environment import Abilities

ABLE = Abilities(opens=True, ends=False, restores=False, role="user")


@pytest.fixture
def players():
    made = []

    def make(what, count=2, transport=None, **more):
        names = [f"environment-{n}" for n in range(count)]
        subject = HostedPlayers(transport or InlineTransport(), names, what, ABLE, **more)
        made.append(subject)
        return subject

    yield make
    for one in made:
        for member in one._members:
            thing = getattr(member.host, "thing", None)
            if thing is not None:
                thing._pool.close()
        one.close()


def test_hosts_answer_as_workers_of_this_machine_do(players):
    subject, here = players(load("guess")), EnvironmentPool(load("guess"))
    try:
        rounds = [
            [question(n) for n in range(4)],
            [question(n, turn="6") for n in range(4)],
            [question(n, past=["6"], turn="7" if n % 2 else "5") for n in range(4)],
        ]
        for asked in rounds:
            ours, theirs = ask(subject, *asked), ask(here, *asked)
            assert [(a.reply, a.replayed, a.failure) for a in ours] == [
                (a.reply, a.replayed, a.failure) for a in theirs
            ]
    finally:
        here.close()
    assert subject._homes.counts() == {0: 2, 1: 2}
    assert subject.counters() == {"replayed": 0.0, "timeouts": 0.0}


@pytest.mark.whole
def test_episodes_of_a_host_that_is_lost_are_played_again(players):
    transport = InlineTransport()
    subject = players(load("guess"), transport=transport)
    first = ask(subject, *(question(n) for n in range(4)))
    ask(subject, *(question(n, turn="6") for n in range(4)))
    lost = subject._members[0].host
    lost.thing._pool.close()
    transport.kill(lost)
    again = ask(subject, *(question(n, past=["6"], turn="5") for n in range(4)))
    assert [said(answer) for answer in again] == [["no"]] * 4
    replayed = [answer.replayed for answer in again]
    assert sum(each is not None for each in replayed) == 2
    for answer, opening in zip(again, first, strict=True):
        if answer.replayed is not None:
            assert answer.replayed[0] == opening.reply
    assert subject.counters()["replayed"] == 2.0


@pytest.mark.whole
def test_a_dropped_question_is_never_answered(players):
    subject = players(load("guess"), count=1)
    subject.ask(question(0))
    subject.drop(question(0).key)
    (answer,) = ask(subject, question(1))
    assert answer.key.group == 1
    assert subject.poll(0.1) == []


@pytest.mark.whole
def test_a_bad_environment_costs_its_own_response_in_a_process_too(players, tmp_path):
    subject = players(load("Bad", timeout=20.0), transport=ProcessTransport(None), output=tmp_path / "environment.txt")
    bad, fine = ask(subject, question(0, turn="a", answer="exit"), question(1, turn="a", answer="good"))
    assert bad.failure.startswith("crash: the process ended")
    assert said(fine) == ["fine 0"]
    assert {path.name for path in tmp_path.iterdir()} <= {"environment-0.txt", "environment-1.txt"}


@pytest.mark.whole
def test_hosts_that_do_not_start_end_the_run_with_the_reason(players):
    subject = players(load("nothing"))
    subject.ask(question())
    with pytest.raises(EpisodeError, match=r"hosts for environments do not start: RecipeError: .*cannot load"):
        subject.poll(None)


@pytest.mark.whole
def test_a_host_that_stands_still_is_replaced(players, monkeypatch):
    transport = InlineTransport()
    subject = players(load("guess"), count=1, transport=transport)
    ask(subject, question())
    stuck, wait = subject._members[0].host, transport.wait
    worker = stuck.thing._pool

    def waited(calls, **how):
        monkeypatch.setattr(cluster, "PATIENCE", 300.0 if stuck.lost else -1.0)
        return wait(calls, **how) if stuck.lost else []

    monkeypatch.setattr(transport, "wait", waited)
    (answer,) = ask(subject, question(turn="6"))
    assert said(answer) == ["no"]
    assert subject._members[0].host is not stuck
    worker.close()
