"""All rules of a recipe whose types are right: combinations of settings that cannot mean what their author wants.

Each rule is refused with the remedy, and none rewritten: a small generator of keys and sentences over a recipe. What is
merely unusual is a warning (``dapo.config.unusual``).
"""

from __future__ import annotations

from typing import Any

from dapo.config.check_data import check_data, check_rewards
from dapo.config.check_environment import check_environment
from dapo.config.check_loss import RULES as OF_THE_LOSS
from dapo.config.check_places import RULES as OF_PLACES
from dapo.config.check_programs import check_programs
from dapo.config.check_sft import check_sft
from dapo.config.check_slurm import check_slurm
from dapo.config.check_stopping import check_stopping
from dapo.config.check_teacher import check_teacher
from dapo.config.checks import RULES as OF_ALL_SECTIONS
from dapo.config.counts import check_gpus
from dapo.config.faults import Problem
from dapo.config.schema import Recipe
from dapo.config.section import Section
from dapo.config.settings import REQUIRED, lookup, value_of
from dapo.config.staleness import check_staleness
from dapo.config.unread import check_unread

_RULES = (
    *OF_ALL_SECTIONS,
    *OF_THE_LOSS,
    check_rewards,
    check_programs,
    check_data,
    check_environment,
    *OF_PLACES,
    check_staleness,
    check_stopping,
    check_slurm,
    check_gpus,
    check_sft,
    check_teacher,
    check_unread,
)


def check(recipe: Recipe) -> list[Problem]:
    """Return everything that is wrong with a recipe across its settings, with the value that it has at each key."""
    return [Problem(key, said, _shown(recipe, key)) for rule in _RULES for key, said in rule(recipe)]


def _shown(recipe: Recipe, key: str) -> Any:
    """Return the value for a message; REQUIRED, which shows none, for null and sections."""
    try:
        value = value_of(recipe, key)
    except (AttributeError, LookupError):  # an option with a dot in its name
        return REQUIRED
    setting = lookup(key)
    section = isinstance(value, Section) or (setting is not None and setting.section)
    return REQUIRED if value is None or section else value
