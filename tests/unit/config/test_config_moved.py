"""Old names of settings: each is refused with its new name, and explained by it."""

from __future__ import annotations

import pytest

from dapo.config import recipe_from_dict
from dapo.config.explain import explain
from dapo.config.moved import MOVED, NOTES
from dapo.config.settings import settings
from dapo.errors import RecipeError
from tests.unit.config.test_config_resume import SMALL


def test_new_names_exist_and_old_ones_do_not() -> None:
    assert {new for new in MOVED.values() if new} <= settings().keys()
    assert MOVED.keys() & settings().keys() == set()
    assert NOTES.keys() <= MOVED.keys()
    assert {old for old, new in MOVED.items() if not new} <= NOTES.keys()


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_refused_and_explained_with_the_new_one(old: str) -> None:
    said = f"`{old}` is `{MOVED[old]}` now" if MOVED[old] else f"`{old}` is gone: "
    with pytest.raises(RecipeError) as refused:
        recipe_from_dict(SMALL, [f"{old.replace('.N', '.0')}=1"])
    assert f"{said}{': ' + NOTES[old] if MOVED[old] and old in NOTES else ''}" in str(refused.value)
    first, *rest = explain(old)
    assert first.startswith(said)
    assert bool(rest) == bool(MOVED[old])
    assert MOVED[old] in "\n".join(rest)
