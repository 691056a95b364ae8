"""Episodes and the processes that play them."""

from __future__ import annotations

import pytest

from dapo.environments.homes import Homes
from dapo.types.batch import Key


def key(group, sample, lane="train"):
    return Key(lane, group, sample)


@pytest.mark.parametrize("grouped", [False, True])
def test_an_episode_keeps_its_home_until_it_is_forgotten(grouped):
    homes = Homes(grouped=grouped)
    homes.put(key(0, 0), "a")
    homes.put(key(1, 0), "b")
    assert (homes.find(key(0, 0)), homes.find(key(1, 0)), homes.find(key(2, 0))) == ("a", "b", None)
    assert homes.counts() == {"a": 1, "b": 1}
    assert (homes.pop(key(0, 0)), homes.pop(key(0, 0)), homes.find(key(0, 0))) == ("a", None, None)


def test_a_group_has_one_home_until_the_last_of_it_is_forgotten():
    homes = Homes(grouped=True)
    homes.put(key(0, 0), "a")
    assert homes.find(key(0, 1)) == "a"
    assert homes.find(key(0, 1, "validation")) is None
    homes.put(key(0, 1), "a")
    homes.pop(key(0, 0))
    assert homes.find(key(0, 2)) == "a"
    homes.pop(key(0, 1))
    assert homes.find(key(0, 2)) is None
    assert homes._groups == {}


def test_without_groups_an_episode_has_a_home_of_its_own():
    homes = Homes()
    homes.put(key(0, 0), 0)
    assert homes.find(key(0, 0)) == 0
    assert homes.find(key(0, 1)) is None


def test_a_lost_home_has_no_episodes():
    homes = Homes(grouped=True)
    for group in range(4):
        homes.put(key(group, 0), group % 2)
    homes.lose(0)
    assert [homes.find(key(group, 1)) for group in range(4)] == [None, 1, None, 1]
    assert homes.counts() == {1: 2}
