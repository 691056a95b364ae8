"""The scorer contract: rewards in the driver, in worker processes, in both at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scorer_contract import CHECKS, Subject
from scoring import completion, prompt

from dapo.config.schema import Reward
from dapo.rewards.compose import build_scorer

FUNCTION = "verifiers_for_tests:obey"
TEXTS = {"right": "one", "wrong": "zero", "fails": "fail"}
REWARDS = {
    "driver": [Reward(kind="exact", sources=["set"])],
    "workers": [Reward(kind="function", function=FUNCTION)],
    "both": [
        Reward(kind="function", function=FUNCTION),
        Reward(name="long", kind="regex", pattern="..", weight=0.5),
        Reward(name="same", kind="exact", weight=0.25),
    ],
}


@pytest.fixture(scope="module", params=REWARDS)
def subject(request, tmp_path_factory):
    """Worker processes are shared by the checks, but for those that close them."""
    gate, made = tmp_path_factory.mktemp("gate") / "gate", []
    os.mkfifo(gate)

    def fresh():
        made.append(build_scorer(REWARDS[request.param], workers=2))
        return made[-1]

    def ask(kind):
        if request.param == "driver":  # no reward applies to another source, so the accuracy is unknown
            return prompt("one", source="other" if kind == "fails" else "set"), completion(TEXTS[kind])
        return prompt("one"), completion(TEXTS[kind])

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        shared = fresh()
        subject = Subject(lambda: shared, fresh, ask)
        if request.param != "driver":
            subject.gated = lambda: (prompt("one", gate=str(gate)), completion("gate"))
            subject.open_gate = lambda: gate.open("w").close()  # waits until the verifier stands at it
        yield subject
        for scorer in made:
            scorer.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rewards(subject, check):
    check(subject)
