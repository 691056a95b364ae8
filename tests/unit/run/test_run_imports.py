"""What processes of a run import before they do anything. A module more is time and memory in each of hundreds.

Each list is what is needed: who adds a module to it says so here.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TYPES = {"dapo.types", *(f"dapo.types.{name}" for name in ("batch", "codec", "enums", "evidence", "extra", "sent"))}
COMMON = {"dapo", "dapo.errors", "dapo.hooks", "dapo.system", "dapo.metrics", "dapo.metrics.names", *TYPES}
REWARDS = (
    "amounts code code_runner function judges last_number latex marks math numbers question signatures simple symbolic "
    "task compared_text units worker",
    "dapo.processes dapo.processes.wire "
    "dapo.sandbox dapo.sandbox.bubblewrap dapo.sandbox.select dapo.sandbox.fork_server dapo.sandbox.runs",
)
MODULES = {
    "dapo.rewards.worker": COMMON
    | {"dapo.rewards", *(f"dapo.rewards.{name}" for name in REWARDS[0].split())}
    | set(REWARDS[1].split()),
    "dapo.processes.served": {
        "dapo",
        "dapo.system",
        "dapo.processes",
        "dapo.processes.large_messages",
        "dapo.processes.served",
    },
}
LIBRARIES = {"dapo.rewards.worker": {"numpy", "regex"}, "dapo.processes.served": {"numpy"}}
SLOW = {"asyncio", "http.client", "multiprocessing", "ssl", "urllib.request"}
"""Parts of the standard library that cost as much as a library does."""
ENGINE = "config engines errors hub metrics models processes system types weights words"
NO_ENGINE = {"math_verify", "matplotlib", "plotext", "pyarrow", "reasoning_gym", "rich", "typer", "vllm"}


def imported(module: str) -> set[str]:
    """Return the modules that a fresh interpreter has after importing one."""
    code = (
        f"import json, sys; before = set(sys.modules); import {module}; print(json.dumps([*set(sys.modules) - before]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def libraries(modules: set[str]) -> set[str]:
    """Return the libraries that modules are from."""
    return {name.partition(".")[0] for name in modules if name[0] != "_"} - set(sys.stdlib_module_names) - {"dapo"}


@pytest.mark.parametrize("module", MODULES)
def test_a_worker_imports_what_it_calls(module):
    found = imported(module)
    assert {name for name in found if name.partition(".")[0] == "dapo"} == MODULES[module]
    assert libraries(found) == LIBRARIES[module]
    assert not found & SLOW


@pytest.mark.whole
def test_an_engine_imports_nothing_of_the_driver():
    found = imported("dapo.engines.factory")
    own = {name.split(".")[1] for name in found if name.startswith("dapo.")}
    assert own == set(ENGINE.split())
    assert not libraries(found) & NO_ENGINE
