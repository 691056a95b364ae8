"""The batch script of a training job, as text for people: what Slurm is asked for, and what the job does.

The script, and not the trainer, knows of Slurm. It asks the trainer for two things that every run has: SIGTERM finishes
the step and saves (exit 130), and ``--resume`` goes on from the last checkpoint.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dapo.config.schema import Slurm
from dapo.errors import RecipeError
from dapo.observe.run_folder import JOBS

SCRIPT, RECIPE = "job.sh", "recipe.yaml"
"""Files of a job's folder."""


@dataclass(frozen=True, slots=True)
class Job:
    """Facts of a Slurm script besides the section ``slurm``. Every path is absolute."""

    name: str  # of the run
    run: Path  # its folder
    folder: Path  # of the job: its script, its recipe, and what it prints
    directory: Path  # where it was submitted: modules of the user's are found there
    programs: Path  # the folder with the python that submitted it
    said: str = ""  # where the recipe came from, in words, on one line
    recipe: str = RECIPE  # in its folder; another one where that is of a job of the same name
    resume: bool = False  # the run is there already
    overrides: Sequence[str] = ()  # key=value of a resume


def job_folder(run: Path) -> Path:
    """Beside the run, and hidden: the run's own folder is made by the run."""
    return run.parent / JOBS / run.name


def check_job(job: Job, slurm: Slurm) -> None:
    """Raise RecipeError for what no script can hold, before anything is written.

    Raises:
        RecipeError: a path with characters that end a line of the script or mean something to sbatch, or lines of
            ``slurm.setup`` that take in what follows them.
    """
    paths = {
        "run.dir or run.name": job.run,
        "the working directory": job.directory,
        "the folder of python": job.programs,
    }
    for what, path in paths.items():
        odd = sorted({character for character in str(path) if not character.isprintable()})
        odd += ["\\"] * (path == job.run and "\\" in str(path))  # sbatch then reads %j as it stands
        odd += [":"] * (path == job.programs and ":" in str(path))  # PATH would be split there
        if odd:
            raise RecipeError(
                f"a job cannot use the path {str(path)!r} ({what}): it contains {', '.join(map(repr, odd))}. Rename "
                "the folder, or choose another one"
            )
    if shutil.which("bash") is None:
        return
    if said := _swallows(slurm.setup):
        alone = [f"slurm.setup.{n}: {line!r}" for n, line in enumerate(slurm.setup) if _swallows([line])]
        raise RecipeError(
            f"{', '.join(alone) or 'slurm.setup'}: bash cannot read this by itself ({said}), so it would take in or "
            "break the rest of the job's script. Close each quote, here-document and block within slurm.setup"
        )
    if said := _wrong(job_script(job, slurm)):
        raise RecipeError(f"the job's script is no script ({said}): look at it with `dapo launch RECIPE --dry-run`")


def _swallows(lines: Sequence[str]) -> str:
    """Return why lines of shell would take in what follows them, in bash's words; "" if they do not."""
    return _wrong("\n".join(["{", ":", *lines, "}", ""])) if lines else ""


def _wrong(script: str) -> str:
    """Return the first complaint of ``bash -n``, which runs nothing; a warning counts: a here-document without end."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    done = subprocess.run(
        ["bash", "--norc", "-n"],
        input=script.encode("utf-8", "surrogateescape"),
        capture_output=True,
        env=environment,
        check=False,
    )
    lines = done.stderr.decode(errors="replace").splitlines()
    return (
        re.sub(r"^bash: (line \d+: )?", "", lines[0])
        if lines
        else f"exit code {done.returncode}" * bool(done.returncode)
    )


def job_script(job: Job, slurm: Slurm) -> str:
    """Return the whole script of a job that ``check_job`` accepts: ``job.sh`` beside this file, filled in.

    ``@{name}`` stands for a value there, and a line ``#: part`` begins a part, which some jobs leave out.
    """
    wanted = {
        "options": slurm.options,
        "requeue": slurm.requeue,
        "no requeue": not slurm.requeue,
        "without a container": slurm.container is None,
        "setup": slurm.setup,
        "several machines": slurm.nodes > 1,
        "new": not job.resume,
        "resume": job.resume,
    }
    values = {
        "run": job.run,
        "said": job.said,
        "script": _quoted(job.folder / SCRIPT),
        "name": "dapo-" + re.sub(r"[^\w.+-]", "-", job.name),
        "nodes": slurm.nodes,
        "options": "\n".join(f"#SBATCH --{name}{_value(value)}" for name, value in slurm.options.items()),
        "seconds": slurm.signal_seconds,
        "output": _option(str(job.folder).replace("%", "%%") + "/job-%j.txt"),
        "run_path": _quoted(job.run),
        "job": _quoted(job.folder),
        "directory": _quoted(job.directory),
        "programs": _quoted(job.programs),
        "setup": "\n".join(slurm.setup),
        "container": shlex.quote(slurm.container or ""),
        "joins": " launch.backend=ray cluster.address=$RAY_ADDRESS" * (slurm.nodes > 1),
        "recipe": job.recipe,
        "overrides": "".join(f" {shlex.quote(override)}" for override in job.overrides),
    }
    _, *parts = re.split(r"^#: (.*)\n", resources.files(__package__).joinpath("job.sh").read_text("utf-8"), flags=re.M)
    text = "".join(body for name, body in zip(parts[::2], parts[1::2], strict=True) if wanted.get(name, True))
    return re.sub(r"@\{(\w+)\}", lambda found: str(values[found[1]]), text)


def _value(value: str | int | bool) -> str:
    return "" if value is True else f"={_option(str(value))}"


def _option(value: str) -> str:
    """Quote a value as sbatch reads it: a backslash escapes, also in quotes, and ``#`` outside begins a comment."""
    if not re.search(r"[\s\"'\\#]", value):
        return value
    return '"' + re.sub(r"([\"\\])", r"\\\1", value) + '"'


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
