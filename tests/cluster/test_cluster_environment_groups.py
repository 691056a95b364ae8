"""Groups that are scored together, in actors of a Ray cluster: the digits of one machine, though a process is lost.

The library ``verifiers`` is stood in for (``helpers/classic``).
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from pool_runs import computed
from ray_processes import NEEDS_RAY, ancestors, command_of, descendants
from small_run import assert_every_token_has_a_fate, assert_none_lost_or_doubled, dapo, write_recipe
from test_run_environment import weights

from dapo.environments.cluster import HostedPlayers
from dapo.observe.metrics import read_metrics
from dapo.observe.rollouts import read_rollouts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]

TALK = '''
import verifiers as vf


def digit(completion):
    """The last turn begins with a digit."""
    return float(completion[-1]["content"].strip()[:1].isdigit())


def shortest(completions):
    """No response of the group has fewer characters."""
    said = [sum(len(each["content"]) for each in one if each["role"] == "assistant") for one in completions]
    return [float(count == min(said)) for count in said]


class Talk(vf.Environment):
    async def env_response(self, messages, state):
        said = messages[-1]["content"]
        if len(state["completion"]) == 5 or len(said) % 3 == 0:
            return None
        return [{"role": "user", "content": f"+{1 + len(said) % 9} ="}]


def load_environment():
    return Talk(vf.Rubric([digit, shortest], [0.5, 0.5]))
'''
SECTION = """
environment: {kind: verifiers, id: my-talk, max_turns: 4, max_turn_tokens: 6, workers: 2}
"""
SETTINGS = ("rewards=[{name: accuracy, kind: environment}]", "rollout.max_response_tokens=40", "validation.every=2",
            "rollout.stop_token_ids=[1, 5, 9]", "algorithm.reward_scaling.source_max=1.0", "trainer.steps=2",
            "algorithm.dynamic_sampling.cap.groups=40", "algorithm.dynamic_sampling.oversample=3",
            "rollout.slots=20", "rollout.engines=2", "rollout.turn_steps=4")  # fmt: skip
RAY = ("launch.backend=ray", "cluster.cpus_per_host=0.25")


def train(folder: Path, *over: str) -> list[dict[str, float]]:
    (folder / "my_talk.py").write_text(TALK)
    dapo("train", write_recipe(folder, SECTION).name, *SETTINGS, *over, cwd=folder)
    rows = computed(read_metrics(folder / "run" / "metrics.jsonl"))
    return [{key: value for key, value in row.items() if key != "environment/replayed"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on this machine, in which rewards depend on the others of a group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "helpers/classic")
        folder = tmp_path_factory.mktemp("whole")
        rows = train(folder)
        assert rows[-1]["environment/fact/shortest"] > 0
        assert any(len(row["turns"]) > 3 for row in read_rollouts(folder / "run/rollouts").to_pylist())
        yield folder, rows


class Watch:
    """Sees which groups of a host have an episode that ended and one that has not."""

    def __init__(self, monkeypatch, shoot):
        self.ended, self.shots = set(), []
        ask, poll = HostedPlayers.ask, HostedPlayers.poll

        def asking(players, question):
            home = players._homes.find(question.key)
            group = [key for key in self.ended if key[:2] == question.key[:2]]
            half = group and not question.members and question.key not in group
            if half and home is not None and len(self.ended) > 30 and len(self.shots) < 1:
                self.shots.append(players._members[home].host.started.process)
                shoot(self.shots[-1])
            ask(players, question)

        def polling(players, timeout=None):
            answers = poll(players, timeout)
            self.ended |= {one.key for one in answers if one.reply is not None and one.reply.done}
            return answers

        monkeypatch.setattr(HostedPlayers, "ask", asking)
        monkeypatch.setattr(HostedPlayers, "poll", polling)


def kill_host(process):
    os.kill(process, signal.SIGKILL)


def kill_worker(process):
    found = [one for one in descendants(process) if "environments.worker" in command_of(one)]
    os.kill(max(found, key=lambda one: len(ancestors(one))), signal.SIGKILL)  # its guard has the same words


@pytest.mark.parametrize("shoot", [kill_host, kill_worker])
def test_a_group_whose_process_is_lost_in_its_middle_is_scored_as_on_one_machine(whole, shoot, tmp_path, monkeypatch):
    here, theirs = whole
    watch = Watch(monkeypatch, shoot)
    ours = train(tmp_path, *RAY)
    assert len(watch.shots) == 1
    assert ours == theirs
    assert_none_lost_or_doubled(tmp_path / "run", 2)
    assert_every_token_has_a_fate([row for row in read_metrics(tmp_path / "run/metrics.jsonl") if row["step"]])
    one, other = weights(tmp_path / "run"), weights(here / "run")
    assert all(np.array_equal(one[name], other[name]) for name in other)
    log = (tmp_path / "run/log.txt").read_text()
    assert len(re.findall("environment-. is started again", log)) == (shoot is kill_host)
