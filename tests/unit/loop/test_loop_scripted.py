"""The scripted engine keeps the contract of the engines that it stands for: else the loop's tests prove nothing."""

from __future__ import annotations

import pytest
from engine_contract import CHECKS, Subject
from scripted import ScriptedEngine


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    subject = Subject(lambda slots: ScriptedEngine(lambda g, i: 1000, slots), lambda number: None)
    subject.bad = {"empty prompt": subject.request(5, prompt_ids=()), "token -1": subject.request(5, prompt_ids=(-1,))}
    subject.stops = subject.keeps = False  # lengths are scripted; a response carries one version
    check(subject)
