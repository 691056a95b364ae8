"""What is scripted keeps the contract of what it stands for: else the loop's tests prove nothing."""

from __future__ import annotations

import pytest
import scorer_contract
from engine_contract import CHECKS, Subject
from scripted import ScriptedEngine, ScriptedScorer

from dapo.types.batch import Ticket


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_engine(check):
    subject = Subject(lambda slots: ScriptedEngine(lambda g, i: 1000, slots), lambda n: Ticket(n, "shared", "", ()))
    subject.bad = {"empty prompt": subject.request(5, prompt_ids=()), "token -1": subject.request(5, prompt_ids=(-1,))}
    subject.stops = subject.keeps = False  # lengths are scripted; a response carries one version
    check(subject)


@pytest.mark.parametrize("check", scorer_contract.CHECKS, ids=lambda check: check.__name__)
def test_the_scorer(check):
    accuracy = {"right": 1.0, "wrong": 0.0, "fails": "timeout"}
    scorer = ScriptedScorer(lambda *key: accuracy[scorer_contract.kind_of(key)])
    scorer.slow = {scorer_contract.GATED}
    subject = scorer_contract.Subject(lambda: scorer, lambda: scorer, lambda kind: (None, None))
    subject.gated, subject.open_gate = lambda: (None, None), scorer.slow.clear
    check(subject)
