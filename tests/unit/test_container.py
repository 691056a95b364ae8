"""The container file for CUDA: what it copies is there, what it installs is what is pinned and what pip can resolve."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "containers" / "cuda.Dockerfile").read_text()
PINS = ROOT / "constraints" / "vllm-cuda.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(name):
    joined = re.sub(r"\\\n\s*", "", FILE)
    return re.findall(rf"^{name} (.+)$", joined, re.M)


def test_its_python_is_one_that_the_project_takes():
    (image,) = instructions("FROM")
    version = re.match(r"python:(\d+\.\d+)-", image)[1]
    assert version in SpecifierSet(PROJECT["requires-python"])


def test_what_it_copies_is_there():
    for line in instructions("COPY"):
        source = line.split()[0]
        assert (ROOT / source).exists(), source


def test_every_installation_keeps_to_the_pins():
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert len(installs) == 2
    assert all("-c constraints/vllm-cuda.txt" in line for line in installs)
    pinned = PINS.read_text().splitlines()
    (alone,) = re.findall(r"vllm==\S+", installs[0])
    assert alone in pinned
    (extras,) = re.findall(r'"\.\[(.+)\]"', installs[1])
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()


def test_it_says_that_nobody_has_built_it():
    assert "Nobody has built it" in FILE
    assert "was not built" in " ".join((ROOT / "README.md").read_text().split())


def test_it_starts_what_the_makefile_has():
    (command,) = instructions("CMD")
    target = json.loads(command)[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pip_resolves_its_packages(tmp_path):
    """Asks the package index: ten minutes and gigabytes where it has no metadata by itself. Nothing is installed."""
    wanted = [*PROJECT["dependencies"], "vllm==0.32.0"]
    wanted += [line for extra in ("report", "data", "vllm_server") for line in PROJECT["optional-dependencies"][extra]]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--disable-pip-version-check", "-q",
         "--python-version", "3.12", "--only-binary=:all:", "--target", str(tmp_path / "nowhere"), "-c", str(PINS),
         "--report", str(tmp_path / "report.json"), *wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Could not find a version" in done.stderr and "from versions: none" in done.stderr:
        pytest.skip("no package index can be asked here")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    chosen = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}
    for line in PINS.read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.name in chosen:
                assert chosen[requirement.name] in requirement.specifier
    assert {"vllm", "torch", "transformers"} <= chosen.keys()
