"""Where built-in models are kept: in the user's cache, under a name that changes with whatever makes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from small_recipe import small_recipe

from dapo.models.builtin import find_builtin_model
from dapo.models.cached import cache_folder
from dapo.models.tiny import make_tiny_model
from dapo.observe.console import Console
from dapo.run.model import model_path

NAME = "builtin/signed-sum-test"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DAPO_CACHE": "/big/dapo"}, "/big/dapo/models"),
        ({"DAPO_CACHE": "/big/dapo", "XDG_CACHE_HOME": "/cache"}, "/big/dapo/models"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/dapo/models"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/dapo/models"),
        ({}, "/home/me/.cache/dapo/models"),
    ],
)
def test_the_cache_is_the_users(variables, expected, monkeypatch):
    for name in ("DAPO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path(expected)


def test_tests_leave_the_users_cache_alone():
    assert Path(os.environ["DAPO_CACHE"]).name.startswith("dapo-test-cache-")


@pytest.fixture
def made(monkeypatch):
    """Make models at once, and count them."""
    names = []

    def make(settings, seed, folder, progress):
        names.append(seed)
        make_tiny_model(folder, hidden=16, layers=1, heads=2, ffn=16)

    monkeypatch.setattr("dapo.models.builtin._make", make)
    return names


def path_of(folder, **settings):
    recipe = small_recipe(run={"dir": str(folder)}, model={"path": NAME}, **settings)
    with Console("quiet") as console:
        return Path(model_path(NAME, recipe, console))


def test_two_folders_of_runs_share_one_base_model(tmp_path, monkeypatch, made):
    monkeypatch.setenv("DAPO_CACHE", str(tmp_path / "cache"))
    first = path_of(tmp_path / "a")
    assert first.is_relative_to(tmp_path / "cache/models")
    assert path_of(tmp_path / "b") == first
    assert made == [1]


def test_runs_of_other_seeds_share_a_base_model_unless_another_is_asked_for(tmp_path, monkeypatch, made):
    monkeypatch.setenv("DAPO_CACHE", str(tmp_path / "cache"))

    def of(seed, builtin_seed=1):
        run = {"dir": str(tmp_path), "seed": seed}
        recipe = small_recipe(run=run, model={"path": NAME, "builtin_seed": builtin_seed})
        with Console("quiet") as console:
            return Path(model_path(NAME, recipe, console))

    assert of(seed=1) == of(seed=2)
    assert of(seed=1) != of(seed=1, builtin_seed=2)
    assert made == [1, 2]


def test_another_torch_makes_its_own(tmp_path, monkeypatch, made):
    monkeypatch.setenv("DAPO_CACHE", str(tmp_path / "cache"))
    first = path_of(tmp_path)
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert find_builtin_model(NAME, cache_folder()) is None
    assert path_of(tmp_path) != first
    assert made == [1, 1]


def test_a_cache_that_cannot_be_made_is_beside_the_runs(tmp_path, monkeypatch, made):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DAPO_CACHE", str(tmp_path / "file"))
    assert path_of(tmp_path / "runs").is_relative_to(tmp_path / "runs/.models")


def test_machines_of_a_ray_cluster_find_it_beside_the_runs(tmp_path, monkeypatch, made):
    monkeypatch.setenv("DAPO_CACHE", str(tmp_path / "cache"))
    found = path_of(tmp_path / "runs", launch={"backend": "ray"}, learner={"ranks": 2})
    assert found.is_relative_to(tmp_path / "runs/.models")
