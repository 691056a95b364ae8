"""The pages of the algorithm name functions that exist, and all of them; their examples do what they say."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from each import each

import dapo.algorithms
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import LossInputs
from dapo.config.schema.kinds import Advantage, Loss
from dapo.config.section import kinds_of
from dapo.types.enums import Verdict

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / f"{name}.md").read_text() for name in ("algorithm", "losses", "correction", "hooks"))
QUOTED = sorted(set(re.findall(r"`(dapo\.[\w.]+)`", PAGE)) - {"dapo.algorithms", "dapo.algorithms.kl"})
MODULES = [importlib.import_module(m.name) for m in pkgutil.walk_packages(dapo.algorithms.__path__, "dapo.algorithms.")]
HOOKS = {}
for block in re.findall(r"```python\n(.*?)```", PAGE + (DOCS / "own_algorithm.md").read_text(), flags=re.DOTALL):
    exec(block, HOOKS)


@each("name", QUOTED)
def test_quoted_name_exists(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_every_public_function_is_on_the_page():
    """Except what binds formulas to a run, and what belongs to a registered kind: docs/configuration.md has that."""
    made = {kind.function for union in (Loss, Advantage) for kind in kinds_of(union.__origin__).values()}
    elsewhere = {name.partition(":")[0] for name in made if ".variants." in name}
    elsewhere |= {f"dapo.algorithms.{name}" for name in ("algorithm", "entropy", "hook_checks")}
    public = {
        f"{module.__name__}.{name}"
        for module in MODULES
        for name, value in vars(module).items()
        if not name.startswith("_")
        and module.__name__ not in elsewhere
        and f"{module.__name__}:{name}" not in made
        and value.__class__.__module__ != "typing"
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    }
    assert public
    assert public <= set(QUOTED)


def test_keep_example():
    keep, everyone = HOOKS["keep_middling"], np.ones(6, dtype=bool)
    for correct, verdict in [
        (0, Verdict.ALL_WRONG),
        (1, Verdict.OUT_OF_BAND),
        (3, Verdict.KEPT),
        (6, Verdict.ALL_CORRECT),
    ]:
        values = np.array([1.0] * correct + [0.0] * (6 - correct))
        assert keep(values, everyone) is verdict
    values = np.array([np.nan, 0.0, 1.0, 1.0])
    assert keep(values, ~np.isnan(values)) is judge_group(values, ~np.isnan(values), metric_is_accuracy=True)
    assert keep(values, np.array([False, False, False, True])) is Verdict.TOO_FEW_SCORED


def test_shaping_example():
    shaped, penalties = HOOKS["punish_truncation"](
        np.array([1.0, 0.0, np.nan]), np.arange(3), np.array([True, False, True])
    )
    np.testing.assert_array_equal(shaped, [0.5, -1.0, np.nan])
    assert penalties.tolist() == [-0.5, 0.0, -0.5]


def test_advantage_example():
    rewards = [np.array([1.0, -1.0, np.nan, -1.0]), np.array([2.0, 2.0])]
    advantages = HOOKS["advantage"](rewards, [~np.isnan(values) for values in rewards])
    assert [values.tolist() for values in advantages] == [[2.0, 0.0, 0.0, 0.0], [0.0, 0.0]]


def test_whole_loss_example():
    logprobs, old = torch.tensor([2.0, 0.5, 0.5]).log().requires_grad_(), torch.zeros(3)
    mask, rows = torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
    inputs = LossInputs(logprobs, old, torch.tensor([1.0, 1.0, -1.0]), mask, rows, 1)
    loss, flags = HOOKS["loss"](inputs, wrong=0.5)
    assert loss.tolist() == pytest.approx([-1.28, -0.5, 0.4])  # clipped above; whole; half of 0.8
    assert flags["outside"].tolist() == [True, True, True]
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5, 0.0])


def test_loss_example():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    mask = torch.tensor([True, True])
    inputs = LossInputs(
        logprobs,
        torch.zeros(2),
        torch.tensor([1.0, 0.0]),
        mask,
        torch.zeros(2, dtype=torch.int64),
        1,
        entropy=torch.tensor([0.5, 2.0]),
    )
    loss, flags = HOOKS["bold_loss"](inputs)
    assert loss.tolist() == pytest.approx([1.0 - 0.005, -0.02])  # -log p A - 0.01 H
    assert flags == {}
