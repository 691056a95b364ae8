"""The attack list against the sandbox, as this user and as one without rights; what the kernel refuses is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import attacks
import pytest
from quick import quick

ROOT = Path(__file__).resolve().parents[3]
WALLS = {
    "full": ("namespaces", "landlock", "seccomp"),
    "without-landlock": ("namespaces", "seccomp"),
    "files": ("landlock", "seccomp"),
    "seccomp-alone": ("seccomp",),  # its deny list replaces what a younger Landlock would refuse
}
CLOSES = {"namespaces": {"files", "network", "processes", "disk"}, "Landlock": {"files"}, "seccomp": {"network"}}
NOBODY = 65534


def interpreter(user: str) -> str:
    """Return a Python that the user can start."""
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if user != "root" and os.geteuid() == 0:
        for found in filter(None, (sys.executable, shutil.which("python3", path="/usr/bin:/bin"))):
            recent = [found, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            with suppress(OSError):
                if subprocess.run(recent, user=NOBODY, capture_output=True).returncode == 0:
                    return found
        pytest.skip("no Python 3.11 that a user without rights can start")
    return sys.executable


@lru_cache
def outcome(user: str, walls: str) -> dict[str, Any]:
    """Run all attacks in a process of that user; ``refused`` instead says why there is no sandbox."""
    given: dict[str, Any] = {}
    if os.geteuid() == 0 and user != "root":
        given = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    python = interpreter(user)
    done = subprocess.run(
        [python, attacks.__file__, *WALLS[walls]],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd="/",
        timeout=250,
        **given,
    )
    if done.returncode != 0 and "SandboxError" in done.stderr:
        return {"refused": done.stderr.strip().splitlines()[-1], "holds": [], "found": {}}
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's facilities")
each_walls = pytest.mark.parametrize("walls", quick(WALLS, ["full"]))
each_user = pytest.mark.parametrize("user", quick(["root", "unprivileged"], ["unprivileged"]))


@linux
@each_walls
@each_user
def test_what_the_kernel_grants_leaves_nothing_open(user: str, walls: str) -> None:
    """Otherwise a wall with a hole would skip its own attacks. A limit of processes needs no grant; root has none."""
    found = outcome(user, walls)
    if "refused" in found:
        pytest.skip(found["refused"])
    granted = found["line"].partition(";")[0]
    closed = set() if user == "root" else {"forks"}
    assert closed.union(*(what for wall, what in CLOSES.items() if wall in granted)) <= {*found["holds"]}


@linux
@pytest.mark.parametrize("name", list(attacks.ATTACKS))
@each_walls
@each_user
def test_an_attack_achieves_nothing(user: str, walls: str, name: str) -> None:
    found = outcome(user, walls)
    needs = attacks.ATTACKS[name][1]
    if needs and needs not in found["holds"]:
        pytest.skip(
            f"{needs}: not closed here with {', '.join(WALLS[walls])}: {found.get('refused', found.get('line'))}"
        )
    if "refused" in found:
        pytest.skip(found["refused"])
    assert found["found"][name] is None
