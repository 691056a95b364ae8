"""What becomes of kept groups when a batch is taken: they train, wait, are copied or go."""

from __future__ import annotations

from collections.abc import Sequence

from dapo.config.schema import DynamicSampling
from dapo.loop.account import Account
from dapo.types.batch import Group
from dapo.types.enums import Disposition


def divide(
    kept: Sequence[Group], prompts_per_step: int, settings: DynamicSampling, account: Account
) -> tuple[list[Group], list[Group]]:
    """The oldest P, which train, and those that are carried (none under ``surplus: discard``); each on the account."""
    ordered = sorted(kept, key=lambda group: group.id)  # in order of dispatch
    batch, rest = ordered[:prompts_per_step], ordered[prompts_per_step:]
    for group in batch:
        if group.disposition is not Disposition.FILLED:
            group.disposition = Disposition.TRAINED
            account.disposed(group, "trained")
    carried = settings.surplus == "carry"
    for group in rest:
        group.disposition = Disposition.CARRIED if carried else Disposition.DISCARDED
        account.disposed(group, None if carried else "discarded")
    return batch, rest if carried else []


def expired(kept: Sequence[Group], step: int, max_age: int, account: Account) -> list[Group]:
    """Kept groups that would be too old when they train in ``step``, now on the account as that."""
    old = [group for group in kept if step - group.born > max_age]
    for group in old:
        group.disposition = Disposition.EXPIRED
        account.disposed(group, "expired")
    return old
