"""The entropy coefficient that follows the entropy, by hand."""

from __future__ import annotations

import math

import pytest

from dapo.algorithms.entropy import EntropyControl


def test_up_below_the_target_down_above_it_and_silent_above_it() -> None:
    """Skywork-OR1: c moves by 0.005, and is applied only after an entropy at or below the target."""
    control = EntropyControl(0.0, target=0.2, step=0.005, high=0.012)
    taken = []
    for entropy in (0.1, 0.15, 0.1, 0.3, 0.25, 0.1):
        taken.append(control.now)
        control.update(entropy)
    assert taken == pytest.approx([0.0, 0.005, 0.010, 0.012, 0.0, 0.0])
    assert control.coefficient == pytest.approx(0.007)
    assert control.now == pytest.approx(0.007)


def test_with_a_lower_bound_below_zero_entropy_is_taxed_above_the_target() -> None:
    control = EntropyControl(0.0, target=0.2, step=0.01, low=-0.015)
    for entropy, expected in ((0.5, -0.01), (0.5, -0.015), (0.1, 0.0), (0.1, 0.005)):
        control.update(entropy)
        assert control.now == pytest.approx(expected)


def test_a_step_without_loss_tokens_changes_nothing_and_a_checkpoint_everything() -> None:
    control = EntropyControl(0.0, target=0.2)
    control.update(0.1)
    control.update(math.nan)
    assert control.coefficient == 0.005
    again = EntropyControl(0.0, target=0.2)
    again.load(control.state())
    assert again == control
    narrower = EntropyControl(0.0, target=0.2, high=0.001)
    narrower.load(control.state())
    assert narrower.coefficient == 0.001
    narrower.load([])  # of a run whose coefficient was fixed
    assert narrower.coefficient == 0.001
