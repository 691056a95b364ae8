"""A second reward that scaling clamps away: counted, said once, and without it no reward is lost."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_loop_parts import make_group

from dapo.algorithms.shaping import clamped
from dapo.config import recipe_from_dict
from dapo.loop.reinforcement import Notices
from dapo.observe.sentences import notice_said
from dapo.run.algorithm import make_algorithm
from dapo.types.batch import Score

MINE = {"name": "mine", "kind": "function", "function": "json:loads"}  # a function: the recipe passes with a warning


def advantages(weight, source_max=1.0, enabled=True):
    """[right + bonus, right, wrong + bonus, wrong] through the recipe's own scaling."""
    scaling = {"source_max": source_max, "enabled": enabled}
    given = {
        "model": {"path": "m"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rewards": [{}, MINE | {"weight": weight}],
        "algorithm": {"reward_scaling": scaling, "overlong_punishment": {"enabled": False}},
    }
    algorithm = make_algorithm(recipe_from_dict(given).recipe)
    group = make_group(0, [3, 3, 3, 3], [1.0, 1.0, 0.0, 0.0])
    pairs = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]
    group.scores_G = [Score({"accuracy": a, "mine": m}, a + weight * m) for a, m in pairs]
    algorithm.shape_group(group)
    algorithm.assign_advantages([group])
    return group, algorithm.sum_metrics([group])


def test_a_bonus_beyond_the_interval_is_counted_and_one_inside_it_teaches():
    group, metrics = advantages(weight=0.5)
    assert group.rewards_G.tolist() == [1.0, 1.0, 0.0, -1.0]  # the defect: both right answers alike
    assert metrics == {"reward/clamped": 0.25, "reward/raw_min": 0.0, "reward/raw_max": 1.5}
    group, metrics = advantages(weight=0.5, source_max=1.5)
    np.testing.assert_allclose(group.rewards_G, [1.0, 1 / 3, -1 / 3, -1.0])
    assert group.advantages_G[0] > group.advantages_G[1] + 0.5
    assert metrics["reward/clamped"] == 0.0
    group, metrics = advantages(weight=0.5, enabled=False)
    assert group.rewards_G.tolist() == [1.5, 1.0, 0.5, 0.0]
    assert metrics["reward/clamped"] == 0.0


def test_below_the_interval_counts_too_and_the_unscored_do_not():
    group, metrics = advantages(weight=-1.0)
    assert metrics == {"reward/clamped": 0.25, "reward/raw_min": -1.0, "reward/raw_max": 1.0}
    assert (
        clamped([0.1 + 0.2 + 0.7, 1.0 + 1e-12, np.nan, -1e-12], source_min=0.0, source_max=1.0).tolist() == [False] * 4
    )
    assert clamped([1.001, -0.001, 5.0], source_min=0.0, source_max=1.0).all()
    algorithm = make_algorithm(
        recipe_from_dict({"model": {"path": "m"}, "data": {"train": [{"task": "signed_sum"}]}}).recipe
    )
    group.scores_G[0] = Score(reason="timeout")
    assert algorithm.sum_metrics([group])["reward/clamped"] == pytest.approx(1 / 3)
    group.scores_G = [Score(reason="timeout")] * 4
    assert np.isnan(algorithm.sum_metrics([group])["reward/clamped"])


def test_the_first_clamped_step_is_told_once_with_the_range_that_was_seen():
    said = []
    metrics = advantages(weight=0.5)[1]
    recorder = SimpleNamespace(notice=lambda *told: said.append(notice_said(*told)))
    notices = Notices(recorder, SimpleNamespace(source_range=(0.0, 1.0)))
    notices.clamping(1, advantages(weight=0.0)[1])
    notices.clamping(2, {"reward/clamped": np.nan})
    assert said == []
    notices.clamping(3, metrics)
    notices.clamping(4, metrics)
    (warning,) = said
    assert warning.startswith("step 3: 25.0% of the rewards lie outside 0 .. 1")
    assert "from 0 to 1.5: algorithm.reward_scaling.source_min and source_max" in warning
