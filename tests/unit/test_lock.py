"""constraints/ci.lock has what the tests need, in the versions of constraints/cpu.txt; site.lock is for the site.

`make lock` writes both anew.
"""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file):
    return {plain(name): version for name, version in PIN.findall((ROOT / "constraints" / file).read_text())}


def needed():
    """Names of everything that the project and its extra dev ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, found, open_ = project["optional-dependencies"], set(), [*project["dependencies"], "dapo-rl[dev]"]
    while open_:
        requirement = open_.pop()
        name = plain(re.match(r"[\w.-]+", requirement)[0])
        if name != "dapo-rl":
            found.add(name)
            continue
        for extra in re.search(r"\[(.*?)\]", requirement)[1].split(","):
            open_ += extras[extra.strip()]
    return found


def test_the_lock_has_every_requirement_of_the_tests():
    missing = sorted(needed() - pins("ci.lock").keys())
    assert not missing, f"run `make lock`: {missing} are not in constraints/ci.lock"


def test_the_lock_has_the_pinned_versions():
    lock, pinned = pins("ci.lock"), pins("cpu.txt")
    other = {name: (version, lock[name]) for name, version in pinned.items()
             if name in lock and lock[name].partition("+")[0] != version}  # fmt: skip
    assert not other, f"run `make lock`: pinned and locked differ: {other}"
    assert {"torch", "transformers", "numpy", "cloudpickle"} <= lock.keys() & pinned.keys()


def test_the_site_has_a_lock_of_its_own():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["docs"]
    assert {plain(re.match(r"[\w.-]+", line)[0]) for line in asked} <= pins("site.lock").keys()
    assert "mkdocs" not in pins("ci.lock")
    assert not {"torch", "transformers"} & pins("site.lock").keys()


@pytest.mark.parametrize("lock", ["ci.lock", "site.lock"])
def test_every_package_of_the_lock_has_hashes(lock):
    text = (ROOT / "constraints" / lock).read_text()
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text.strip()):
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
