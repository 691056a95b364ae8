"""Warning signs in a run: what each rule saw, why it matters and what to do, the worst first.

Each rule is a small function of ``Facts``; its bounds are constants at the top of its file, with their reason. The
table of docs/warnings.md is made by ``python tests/helpers/warnings_page.py``.
"""

from __future__ import annotations

from dapo.links import addressed
from dapo.report.page_data import Advice
from dapo.report.reader import RunContents
from dapo.report.rules import cost, dynamic_sampling, learning, policy, responses
from dapo.report.rules.course import RANK, Facts, Rule

__all__ = ["RULES", "Facts", "Rule", "advice_of"]

_OF_FILES = (
    one
    for module in (learning, policy, dynamic_sampling, responses, cost)
    for one in vars(module).values()
    if isinstance(one, Rule)
)
RULES: tuple[Rule, ...] = tuple(dict.fromkeys((*dynamic_sampling.FIRST, *_OF_FILES)))
"""In order of importance among those of equal severity."""


def advice_of(run: RunContents) -> list[Advice]:
    """Return the findings of the rules, the worst first. A number that was not measured lets its rule be silent."""
    facts = Facts(run)
    found = [advice for rule in RULES for advice in rule.advice(facts)]
    for advice in found:
        advice["move"] = addressed(advice["move"])
    return sorted(found, key=lambda advice: RANK[advice["severity"]])  # stable
