"""``dapo launch``: run a recipe as a Slurm job."""

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapo.cli.arguments import RecipeArguments, ResumeOption, only_overrides, recipe_and_overrides
from dapo.errors import RecipeError, SchedulerError
from dapo.words import counted

if TYPE_CHECKING:
    from dapo.config.load import LoadedRecipe
    from dapo.config.schema import Recipe
    from dapo.run.slurm import Job


def launch(
    arguments: RecipeArguments = None,
    resume: ResumeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the script; write and submit nothing.")] = False,
) -> int:
    """Submit a run to Slurm, such as with slurm.options.time=12:00:00. The job saves before its time is up."""
    if resume is not None:
        return launch_again(resume, only_overrides(resume, arguments), dry_run=dry_run)
    return launch_new(*recipe_and_overrides(arguments), dry_run=dry_run)


def launch_new(recipe: str, overrides: Sequence[str], *, dry_run: bool) -> int:
    """Submit a new run; with ``dry_run`` only show the script. Returns the exit code.

    Raises:
        RecipeError: the recipe is refused, holds a secret, or its run exists.
        SchedulerError: Slurm is not here, or did not take the job.
    """
    from dapo.config.load import load_recipe
    from dapo.config.shipped import short_name
    from dapo.config.yaml_files import RESOLVED
    from dapo.observe.run_name import with_free_name

    loaded, changes = load_recipe(recipe, overrides), [*overrides]
    for more in (_needs, _over_machines):
        changes += more(loaded.recipe)
        loaded = load_recipe(recipe, changes)
    loaded = with_free_name(loaded)
    settings = loaded.recipe
    run = (Path(settings.run.dir) / settings.run.name).absolute()
    if (run / RESOLVED).is_file() and settings.run.if_exists == "refuse":
        raise RecipeError(
            f"{run} exists already. Continue it with `dapo launch --resume {shlex.quote(str(run))}`, choose another "
            "run.name, or set run.if_exists=backup to move it aside."
        )
    _check_secrets(loaded, overrides)
    called = short_name(loaded.path) if loaded.path else recipe
    said = f"From {called} with {shlex.join(loaded.overrides) or 'no changes'}"
    job = _job(settings, run, said)
    return _print_only(job, settings) if dry_run else _submit(job, settings, f"# {said}\n{loaded.resolved}")


def launch_again(run: Path, overrides: Sequence[str], *, dry_run: bool) -> int:
    """Submit a job that goes on with the run in a folder; otherwise as ``launch_new``."""
    from dapo.config.resume import load_for_resume

    loaded, changes = load_for_resume(run, overrides)[0], [*overrides]
    for more in (_needs, _over_machines):
        changes += more(loaded.recipe)
        loaded, _ = load_for_resume(run, changes)
    _check_secrets(loaded, overrides)
    settings = loaded.recipe
    kept = [change for change in changes if not change.startswith(("slurm.", "launch.backend="))]
    job = _job(settings, run.absolute(), "Goes on with that run", resume=True, overrides=kept)
    return _print_only(job, settings) if dry_run else _submit(job, settings, None)


def _check_secrets(loaded: LoadedRecipe, overrides: Sequence[str]) -> None:
    """Raise RecipeError for a secret of the recipe or of an override: a job's recipe and its script are files."""
    from dapo.config.secrets import hidden_in, redact_override
    from dapo.config.yaml_files import parse_yaml
    from dapo.run.slurm import RECIPE

    hidden = list(hidden_in(parse_yaml(loaded.resolved, RECIPE)[0]))
    hidden += [override.partition("=")[0] for override in overrides if redact_override(override) != override]
    for path in hidden:
        move = f"a job's files hold no secrets: take {path} out of the recipe and the command, and set"
        raise RecipeError(f"{move} the environment variable that its library reads, before you submit")


def _needs(recipe: Recipe) -> list[str]:
    """Return the GPUs and cores of a machine that a job needs, where the recipe names none."""
    from dapo.config.counts import job_needs

    return [f"slurm.options.{name}={number}" for name, number in job_needs(recipe).items()]


def _over_machines(recipe: Recipe) -> list[str]:
    """Return what several machines in a job mean for its run."""
    from dapo.config.check_slurm import gpus_per_option

    slurm, cluster = recipe.slurm, recipe.cluster
    if slurm.nodes == 1:  # of a run that had more
        return ["cluster.nodes=1"] if cluster.nodes is not None and cluster.nodes > 1 else []
    wanted = ["launch.backend=ray", f"cluster.nodes={slurm.nodes}"]
    return [*wanted, f"cluster.gpus_per_node={gpus}"] if (gpus := gpus_per_option(slurm.options)) else wanted


def _job(recipe: Recipe, run: Path, said: str, *, resume: bool = False, overrides: Sequence[str] = ()) -> Job:
    from dapo.run.slurm import Job, check_job, job_folder

    job = Job(
        name=recipe.run.name,
        run=run,
        folder=job_folder(run),
        directory=Path.cwd(),
        programs=Path(sys.executable).parent,
        said=" ".join(said.split()),
        resume=resume,
        overrides=overrides,
    )
    check_job(job, recipe.slurm)
    return job


def _print_only(job: Job, recipe: Recipe) -> int:
    from dapo.run.slurm import job_script

    print(job_script(job, recipe.slurm), end="")
    return 0


def _submit(job: Job, recipe: Recipe, text: str | None) -> int:
    """Write the job's files and hand it to Slurm. ``text``: the recipe of a new run."""
    from dapo.run.slurm import SCRIPT, job_script

    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise SchedulerError(
            "sbatch is not on this machine: call `dapo launch` where jobs are submitted, or show the script with "
            "--dry-run. Without Slurm, `dapo train` trains here"
        )
    script = job.folder / SCRIPT
    try:
        _make_private(job.folder)
        if text is not None:
            job = replace(job, recipe=_kept(job.folder, text))
        script.write_text(job_script(job, recipe.slurm), encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{job.folder} cannot be written: {error.strerror or error}. Change run.dir") from None
    done = subprocess.run(
        [sbatch, "--parsable", str(script)], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise SchedulerError(
            f"Slurm did not take the job: {said}. The script is {script}; correct slurm.* and try again"
        )
    number = done.stdout.strip().partition(";")[0]
    print(f"submitted job {number}: {recipe.slurm.nodes} x {_machine(recipe)}, {_limit(recipe)}")
    print(f"  script    {script}")
    print(f"  output    {job.folder / f'job-{number}.txt'}")
    print(f"  run       {job.run}")
    print(f"  state     squeue --job {number}")
    print(f"  stop      scancel --batch --signal=USR2 {number}   # saves first; plain scancel may not have the time")
    return 0


def _make_private(folder: Path) -> None:
    """Make a job's folder, and the one around it, for their owner alone: mode 700, also of folders made before.

    Raises:
        OSError: one cannot be made, or belongs to another user.
    """
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for private in (folder.parent, folder):
        private.mkdir(mode=0o700, exist_ok=True)
        private.chmod(0o700)


def _kept(folder: Path, text: str) -> str:
    """Return the name of a file in the folder that holds the text. An earlier job's file stays as it is: that job may
    be waiting in the queue, or be requeued."""
    from dapo.run.slurm import RECIPE

    file = folder / RECIPE
    for number in itertools.count(1):
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(text)
            return file.name
        except FileExistsError:
            if file.read_text("utf-8", errors="replace") == text:
                return file.name
        file = file.with_stem(f"{Path(RECIPE).stem}.{number}")
    raise AssertionError("numbers do not end")


def _machine(recipe: Recipe) -> str:
    from dapo.config.check_slurm import gpus_per_option

    gpus, cores = gpus_per_option(recipe.slurm.options), recipe.slurm.options.get("cpus-per-task")
    has = [counted(gpus, "GPU")] * bool(gpus)
    has += [f"{cores} core{'s' * (str(cores) != '1')}"] * bool(cores)
    return f"machine with {' and '.join(has)}" if has else "machine"


def _limit(recipe: Recipe) -> str:
    time = recipe.slurm.options.get("time")
    limit = f"at most {time}" if time else "the partition's own time limit"
    again = "then back into the queue" if recipe.slurm.requeue else "and not again"
    return f"{limit}, asked to save {recipe.slurm.signal_seconds} s before, {again}"
