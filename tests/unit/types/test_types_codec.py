"""What checkpoints have of a run's dataclasses: any value comes back as it was, and damage is named."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from each import each
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dapo.algorithms.variants.greso import Greso
from dapo.checkpoint.tree import as_damage, load_tree, save_tree
from dapo.errors import CheckpointError
from dapo.loop.best import Best
from dapo.loop.method import Counters
from dapo.loop.sampling.account import Account
from dapo.loop.sampling.groups import OpenGroup
from dapo.loop.sampling.prompts import Refill
from dapo.loop.sync_check import Healthy
from dapo.types.batch import Group, Prompt, Response, Score, Turn
from dapo.types.codec import NOT_SAVED, fill, from_tree, to_tree
from dapo.types.enums import FinishReason

SAVED = [Prompt, Turn, Response, Score, Group, OpenGroup]
FILLED = [Greso, Refill, Account, Best, Healthy, Counters]
FEW = settings(max_examples=20, deadline=None, phases=[Phase.generate])  # a smaller example takes minutes to find
DTYPES = [np.dtype(name) for name in ("i1", "i4", "i8", "f4", "f8", "?")]


@cache
def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Draw values of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        types = get_type_hints(kind)
        given_here = [one for one in fields(kind) if one.init]
        drawn = {one.name: anything(types[one.name]) for one in given_here if one.metadata != NOT_SAVED}
        unsaved = [one for one in given_here if one.metadata == NOT_SAVED and one.default is MISSING]
        return st.builds(kind, **drawn, **{one.name: st.none() for one in unsaved if one.default_factory is MISSING})
    if kind is Any:
        leaf = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5)
        return st.recursive(
            leaf, lambda t: st.lists(t, max_size=2) | st.dictionaries(st.text(max_size=5), t, max_size=2)
        )
    if origin is UnionType:
        return st.one_of([st.none() if one is type(None) else anything(one) for one in inner])
    if origin is np.ndarray:
        (dtype,) = get_args(inner[1])
        dtypes = st.sampled_from(DTYPES if dtype is Any else [np.dtype(dtype)])
        return dtypes.flatmap(lambda one: hnp.arrays(one, hnp.array_shapes(max_dims=2, min_side=0, max_side=3)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    if origin is not None and issubclass(origin, Mapping):
        values = anything(int if origin is Counter else inner[1])
        made = st.dictionaries(st.text(max_size=5), values, max_size=2)
        return made.map(Counter) if origin is Counter else made
    if origin is not None and issubclass(origin, Sequence):
        return st.lists(anything(inner[0]), max_size=2).map(origin)
    return {int: st.integers(-(2**60), 2**60), float: st.floats(), str: st.text(max_size=5), bool: st.booleans()}[kind]


def same(a: Any, b: Any) -> bool:
    """Whether two values are of one type and equal in each bit and saved field."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if is_dataclass(a):
        return all(same(getattr(a, one.name), getattr(b, one.name)) for one in fields(a))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def differing(a: Any, b: Any) -> list[str]:
    return [one.name for one in fields(a) if not same(getattr(a, one.name), getattr(b, one.name))]


def saved(tree: Any, folder: Any) -> Any:
    save_tree({"tree": tree}, folder, "state")
    return load_tree(folder, "state")["tree"]


@each("kind", SAVED)
@FEW
@given(data=st.data())
def test_every_saved_class_comes_back_as_it_was(kind, data, tmp_path_factory):
    value = data.draw(anything(kind))
    assert differing(from_tree(kind, saved(to_tree(value), tmp_path_factory.mktemp("codec"))), value) == []


@each("kind", FILLED)
@FEW
@given(data=st.data())
def test_every_part_of_a_run_goes_on_from_what_was_saved(kind, data, tmp_path_factory):
    value, target = data.draw(anything(kind)), data.draw(anything(kind))
    fill(target, saved(to_tree(value), tmp_path_factory.mktemp("codec")))
    assert differing(target, value) == []


@dataclass(slots=True)
class Inner:
    words: tuple[str, ...]
    at: dict[str, int | None]


@dataclass(slots=True)
class Outer:
    inner: Inner
    numbers: np.ndarray
    finish: FinishReason | None = None
    recent: deque[float] = field(default_factory=deque)
    limit: int = field(default=3, metadata=NOT_SAVED)
    made: int = field(init=False, default=0)


OUTER = Outer(Inner(("a",), {"x": 1, "y": None}), np.arange(2), FinishReason.STOP, deque([0.5]), limit=5)


def test_a_tree_has_the_saved_fields_alone_and_nothing_that_changes_with_the_value():
    value = from_tree(Outer, to_tree(OUTER))
    tree = to_tree(value)
    value.inner.at["x"] = 2
    value.recent.append(1.0)
    assert tree["inner"] == {"words": ["a"], "at": {"x": 1, "y": None}}
    assert (tree["finish"], tree["recent"]) == ("stop", [0.5])
    assert sorted(tree) == ["finish", "inner", "numbers", "recent"]
    assert type(tree["finish"]) is str
    assert value.limit == 3


def test_a_missing_field_gets_its_default_where_it_has_one():
    tree = to_tree(OUTER)
    del tree["finish"], tree["recent"]
    value = from_tree(Outer, tree)
    assert (value.finish, value.recent) == (None, deque())


def test_fill_sets_saved_fields_alone_or_nothing():
    tree, target = to_tree(OUTER), Outer(Inner((), {}), np.zeros(0), limit=7)
    fill(target, tree)
    assert (target.inner, target.finish, target.recent, target.limit) == (OUTER.inner, "stop", deque([0.5]), 7)
    before = to_tree(target)
    with pytest.raises(ValueError, match=r"Outer\.finish"):
        fill(target, {**tree, "recent": [], "finish": "odd"})
    assert same(to_tree(target), before)
    fill(target, {"recent": []})
    assert same(to_tree(target), {**before, "recent": []})


@each(
    "place, damage, said",
    [
        ("finish", "odd", "Outer.finish: 'odd' is not a valid FinishReason"),
        ("finish", None, None),
        ("numbers", [1, 2], r"Outer.numbers: found '\[1, 2\]', expected ndarray"),
        ("recent", {"0": 1.0}, "Outer.recent: found .*, expected list"),
        ("recent", ["x"], "Outer.recent: found 'x', expected int | float"),
        ("inner", [], r"Outer.inner: found '\[\]', expected dict"),
        ("inner", {"words": "ab", "at": {}}, "Outer.inner: Inner.words: found 'ab', expected list"),
        ("inner", {"words": [1], "at": {}}, "Outer.inner: Inner.words: found '1', expected str"),
        ("inner", {"words": [], "at": {"x": 1.5}}, "Outer.inner: Inner.at: found '1.5', expected int"),
        ("inner", {"words": []}, "Inner.*missing.*'at'"),
        ("inner", {"words": [], "at": {}, "more": 1}, "Outer.inner: Inner has no more"),
        ("limit", 4, "Outer has no limit"),
        ("made", 4, "Outer has no made"),
    ],
)
def test_damage_is_refused_by_the_name_of_its_field(place, damage, said, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    tree = saved({**to_tree(OUTER), place: damage}, folder)
    if said is None:
        assert from_tree(Outer, tree).finish is None
        return
    with pytest.raises(CheckpointError, match=f"damaged: state.json does not hold .*{said}"), as_damage(folder):
        from_tree(Outer, tree)


def test_what_no_file_holds_is_refused_when_it_is_saved(tmp_path):
    for value in (b"ab", {1}, range(2)):
        with pytest.raises(TypeError):
            save_tree(to_tree({"a": value}), tmp_path, "state")


@each("kind", [set, tuple[int, str], int | str | None])
def test_a_type_that_a_tree_does_not_tell_is_an_error_of_the_program(kind):
    with pytest.raises(TypeError, match="tree"):
        from_tree(kind, [])
