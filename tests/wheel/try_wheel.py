"""Build the wheel and the source distribution, install each outside of the checkout, and use them as a stranger would.

``make test-wheel`` runs it, and ``make test-pythons`` asks it to install with another Python (``--python``). One
environment holds the third-party packages, as the constraints have them; the wheel and the source distribution are each
installed into a fresh one on top of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
API = """
import dapo
loaded: dapo.LoadedRecipe = dapo.load_recipe("quickstart")
reveal_type(loaded.recipe.trainer.steps)
"""


def main() -> None:
    """Everything, in a temporary folder that is removed unless it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mypy", default=shutil.which("mypy"), help="a mypy that reads the installed package's types")
    parser.add_argument("--python", default=sys.executable, help="the Python that the installations are made with")
    arguments = parser.parse_args()
    asked = run(arguments.python, "-c", "import sys; print(sys.version.split()[0])").stdout.strip()
    said(f"Python {asked}")
    folder = Path(tempfile.mkdtemp(prefix="dapo-wheel-"))
    os.environ["DAPO_CACHE"] = str(folder / "cache")  # the base model is warmed up once
    wheel, sdist = build(folder / "dist")
    check_contents(wheel)
    base = folder / "base"
    packages, size = install_dependencies(make_environment(base, arguments.python), base, wheel)
    said(f"third-party packages of a plain installation: {packages} packages, {size / 1e9:.2f} GB")
    for kind, file in (("wheel", wheel), ("sdist", sdist)):
        python = install(make_environment(folder / kind, arguments.python), folder / kind, base, file)
        empty = folder / f"empty-{kind}"
        empty.mkdir()
        use(python, empty, steps=3 if kind == "wheel" else 1)
        if kind == "wheel" and arguments.mypy:
            check_types(python, str(Path(arguments.mypy).absolute()), folder)
    shutil.rmtree(folder)
    said("the wheel and the source distribution are good")


def build(out: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is made from it."""
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path) -> None:
    """What is not Python must be there as well, and nothing that is not the package's."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = run("git", "ls-files", "dapo", cwd=ROOT).stdout.split()
    missing = sorted(set(tracked) - names)
    assert not missing, f"not in the wheel: {missing}"
    strangers = [name for name in names if not re.match(r"dapo/|dapo_rl-[^/]+\.dist-info/", name)]
    assert not strangers, f"in the wheel, and not the package's: {strangers}"


def install_dependencies(python: Path, base: Path, wheel: Path) -> tuple[int, int]:
    """What a plain ``pip install`` brings along, without the project itself; how many, and their bytes."""
    pip(python, "install", "-q", "-c", ROOT / "constraints" / "cpu.txt", wheel)
    pip(python, "uninstall", "-q", "-y", "dapo-rl")
    new = list(site_packages(base).iterdir())
    size = sum(file.lstat().st_size for path in new for file in [path, *path.rglob("*")])
    return sum(path.name.endswith(".dist-info") for path in new), size


def install(python: Path, place: Path, base: Path, file: Path) -> Path:
    """The project alone, in an environment that sees the third-party packages of ``base``; its interpreter."""
    (site_packages(place) / "base.pth").write_text(f"{site_packages(base)}\n")
    pip(python, "install", "-q", "--no-deps", file)
    pip(python, "check")
    return python


def use(python: Path, empty: Path, steps: int) -> None:
    """The commands that a stranger types first, in a folder without a checkout."""
    dapo = python.with_name("dapo")
    version = run(dapo, "--version", cwd=empty).stdout.split()[-1]
    assert run(python, "-m", "dapo", "--version", cwd=empty).stdout.split()[-1] == version
    metadata = "import importlib.metadata as m, dapo; print(m.version('dapo-rl'), dapo.__version__, dapo.__file__)"
    installed, own, where = run(python, "-c", metadata, cwd=empty).stdout.split()
    assert installed == own == version
    assert not Path(where).is_relative_to(ROOT), where
    assert "quickstart" in run(dapo, "recipes", cwd=empty).stdout
    assert "0.28" in run(dapo, "explain", "algorithm.clip.high", cwd=empty).stdout
    assert "quickstart: good" in run(dapo, "check", "quickstart", cwd=empty).stdout
    settings = [f"trainer.steps={steps}", "validation.limit=16"]
    run(dapo, "train", "quickstart", *settings, cwd=empty)
    rows = [json.loads(line) for line in (empty / "runs/quickstart/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(steps + 1))


def check_types(python: Path, mypy: str, folder: Path) -> None:
    """A type checker finds the package's types (``py.typed``)."""
    (folder / "typed.py").write_text(API)
    # of other packages nothing is asked: to read torch's sources takes minutes
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nfollow_imports = skip\ndisallow_subclassing_any = False\n"
        "[mypy-dapo.*]\nfollow_imports = silent\n"
    )
    options = ["--config-file", folder / "mypy.ini", "--python-executable", python, "--cache-dir", folder / "mypy"]
    told = run(mypy, *options, folder / "typed.py", cwd=folder).stdout
    assert 'Revealed type is "int"' in told.replace("builtins.", ""), told


def make_environment(place: Path, python: str) -> Path:
    run(python, "-m", "venv", "--without-pip", place)
    return place / "bin" / "python"


def pip(python: Path, *arguments: str | Path) -> None:
    """This environment's pip, working on another one: a fresh one without its own is there in no time."""
    run(sys.executable, "-m", "pip", "--python", python, *arguments)


def site_packages(place: Path) -> Path:
    return next((place / "lib").glob("python3*")) / "site-packages"


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it; what it said is shown when it fails. The checkout is not on its path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    shown = " ".join([Path(command[0]).name, *map(str, command[1:])])
    said(f"{time.monotonic() - began:5.1f} s  {shown[:110]}")
    if done.returncode:
        sys.exit(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\nexit {done.returncode}: {shown}")
    return done


def said(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
