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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """Return the whole script of a job that ``check_job`` accepts."""
    joins = " launch.backend=ray cluster.address=$RAY_ADDRESS" if slurm.nodes > 1 else ""
    again = f'$container python -m dapo train --resume "$run"{joins}'
    start = f'$container python -m dapo train "$job/{job.recipe}"{joins}'
    if job.resume:
        start = " ".join([again, *map(shlex.quote, job.overrides)])
    return "\n".join(
        [
            _HEAD.format(run=job.run, said=job.said, script=_quoted(job.folder / SCRIPT)),
            *_options(job, slurm),
            _SIGNALS,
            *_environment(job, slurm),
            *([_RAY.replace("NODES", str(slurm.nodes))] if slurm.nodes > 1 else []),
            _TRAIN.replace("AGAIN", again).replace("START", start),
            *([_REQUEUE] if slurm.requeue else []),
            "exit $code\n",
        ]
    )


def _options(job: Job, slurm: Slurm) -> Iterator[str]:
    """Yield the ``#SBATCH`` lines, in the order in which one reads a job."""
    values = {
        "job-name": "dapo-" + re.sub(r"[^\w.+-]", "-", job.name),
        "nodes": slurm.nodes,
        "ntasks-per-node": 1,
        **slurm.options,
        "signal": f"B:USR1@{slurm.signal_seconds}",
        "output": str(job.folder).replace("%", "%%") + "/job-%j.txt",
        "open-mode": "append",
    }
    for name, value in values.items():
        yield f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={_option(str(value))}"
    yield "#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue"
    yield ""


def _option(value: str) -> str:
    """Quote a value as sbatch reads it: a backslash escapes, also in quotes, and ``#`` outside begins a comment."""
    if not re.search(r"[\s\"'\\#]", value):
        return value
    return '"' + re.sub(r"([\"\\])", r"\\\1", value) + '"'


def _environment(job: Job, slurm: Slurm) -> Iterator[str]:
    yield f"run={_quoted(job.run)}"
    yield f"job={_quoted(job.folder)}"
    yield f"cd {_quoted(job.directory)} || exit 2"
    if slurm.container is None:
        yield f"export PATH={_quoted(job.programs)}:$PATH"
    yield from slurm.setup
    if slurm.setup:
        yield "set +e   # the lines above may have set it, and what follows reads exit codes itself"
    yield f"container={shlex.quote(slurm.container or '')}   # stands before each command, split at its spaces"
    yield ""


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


_HEAD = """\
#!/bin/bash
# Trains {run}. Written by `dapo launch`.
# {said}.
# Submitted with: sbatch {script}"""

_SIGNALS = """\
# First of all: Slurm's signal may come at any moment, and a script without a trap dies of it.
driver= asked=0 again=
stop() { asked=$((asked + 1)) again=$1; echo "$(date +%FT%T) $2: the run finishes its step, saves and ends"
  [ -z "$driver" ] || kill -TERM "$driver" 2>/dev/null; }
trap 'stop yes "the job has little time left"' USR1   # Slurm, before the end
trap 'stop "" "the job was asked to end"' USR2        # you: scancel --batch --signal=USR2 JOB
trap 'asked=$((asked + 1))' TERM                      # scancel JOB: Slurm tells every process of the job itself
set -uo pipefail
"""

_RAY = """\
# A Ray cluster of this job alone: a head here, a worker on each other machine.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0   # hosts have the priority of processes without Ray
export RAY_task_events_report_interval_ms=0   # else the head keeps some KiB of each call
export RAY_gcs_rpc_server_reconnect_timeout_s=86400   # without a head a step is finished and saved, not given up
ip=$(hostname -I | cut -d' ' -f1); export RAY_ADDRESS=$ip:$((20000 + SLURM_JOB_ID % 10000))
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST")) steps=()
on() { local node=$1; shift   # a command on one machine, with all that the job has there
  srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" -w "$node" "$@" \\
    < /dev/null > "$job/ray-$node.txt" 2>&1 & steps+=($!); }
leave() { kill "${steps[@]}" 2>/dev/null; wait "${steps[@]}" 2>/dev/null; }
trap leave EXIT
on "${nodes[0]}" $container ray start --head --node-ip-address="$ip" --port="${RAY_ADDRESS##*:}" \\
  --num-cpus="$SLURM_CPUS_ON_NODE" --temp-dir="${TMPDIR:-/tmp}/ray-$SLURM_JOB_ID" --include-dashboard=false --block
for node in "${nodes[@]:1}"; do   # until the head answers
  on "$node" bash -c "until $container ray start --address=$RAY_ADDRESS \\
    --num-cpus=$SLURM_CPUS_ON_NODE --block; do sleep 2; done"
done
until [ "$($container python -c '
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))' 2>/dev/null | tail -n 1)" = NODES ]; do
  for step in "${steps[@]}"; do
    kill -0 "$step" 2>/dev/null || { echo "Ray ended on a machine; see $job/ray-*.txt"; exit 1; }
  done
  [ $asked = 0 ] || exit 1
  sleep 2
done
echo "$(date +%FT%T) Ray is up on NODES machines: ${nodes[*]}"
"""

_TRAIN = """\
# A run that this very job began is continued when the job starts again.
begun=$job/begun-$SLURM_JOB_ID
newest() { ls -d "$run"/checkpoints/step_[0-9]* 2>/dev/null | tail -n 1; }
had=$(newest)
if [ -e "$begun" ] && [ "$run/recipe.resolved.yaml" -nt "$begun" ]; then
  AGAIN < /dev/null & driver=$!
else
  [ -e "$begun" ] || touch "$begun"
  START < /dev/null & driver=$!
fi
[ $asked = 0 ] || kill -TERM "$driver"   # it was asked before there was a run
while :; do   # a signal ends the waiting, and not the run
  before=$asked; wait "$driver"; code=$?
  [ $asked = "$before" ] && break
done
echo "$(date +%FT%T) dapo train ended with $code"
"""

_REQUEUE = """\
# 130: stopped and saved. 143: it was asked before there was anything to save.
# 75: trainer.max_hours or the loss of the Ray cluster ended it, saved.
if [ $code = 75 ] || { [ -n "$again" ] && { [ $code = 130 ] || [ $code = 143 ]; }; }; then
  if [ "$(newest)" = "$had" ]; then
    echo "no step was finished in this job's time, so it is not put back into the queue: raise slurm.options.time"
    exit 1
  fi
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
"""
