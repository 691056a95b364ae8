"""The batch script: its text, and what it does with signals, where programs of the test's stand for Slurm and us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dapo.config.schema import Slurm
from dapo.run.slurm import Job, job_folder, job_script

HERE = Path(__file__).parent
RUN = Path("/shared/runs/math 7b")
JOB = Job(
    name="math 7b",
    run=RUN,
    folder=job_folder(RUN),
    directory=Path("/shared/project"),
    programs=Path("/shared/project/.venv/bin"),
    said="From math.yaml with slurm.nodes=2",
)
SCRIPTS = {
    "one_machine.sh": (
        JOB,
        Slurm(options={"cpus-per-task": 64, "gpus-per-node": 8, "time": "12:00:00"}, setup=["module load cuda"]),
    ),
    "two_machines.sh": (
        JOB,
        Slurm(
            nodes=2,
            options={
                "cpus-per-task": 64,
                "gpus-per-node": 8,
                "partition": "gpu",
                "account": "lab",
                "qos": "long",
                "constraint": "h100",
                "time": "2-00:00:00",
                "mem": 0,
                "exclusive": True,
            },
            container="apptainer exec --nv /images/dapo.sif",
            signal_seconds=1800,
            requeue=False,
        ),
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_golden_file(name):
    """After a change that is meant: DAPO_WRITE_GOLDEN=1 pytest tests/unit/run/test_run_slurm.py"""
    text, golden = job_script(*SCRIPTS[name]), HERE / "golden" / name
    if os.environ.get("DAPO_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_names_cannot_break_out_of_the_script():
    run = Path("/shared/a'b; touch x $(date) \"%j")
    job = Job(name=run.name, run=run, folder=job_folder(run), directory=Path("/a b"), programs=Path("/p q"), said="x")
    text = job_script(job, Slurm(container="run 'er"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    lines = text.split("\n\n")[2].splitlines()
    assert lines[0].startswith("run=")
    told = subprocess.run(
        ["bash", "-c", f'{lines[0]}\nprintf %s "$run"'], capture_output=True, text=True, check=True
    ).stdout
    assert told == str(run)
    assert "#SBATCH --job-name=dapo-a-b-" in text
    assert "%%j" in text


# ---------------------------------------------------------------------- what it does

PYTHON = f"""#!{sys.executable} -SE
import os, signal, sys
from pathlib import Path

told = os.environ.get
test = Path(told("TEST"))
with open(test / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
run = test / "runs" / "run"
(run / "checkpoints").mkdir(parents=True, exist_ok=True)
(run / "recipe.resolved.yaml").touch()
later = (test / "calls").stat().st_mtime + 3600
os.utime(run / "recipe.resolved.yaml", (later, later))

def save():
    if told("SAVES"):
        (run / "checkpoints" / f"step_00000{{told('SAVES')}}").mkdir(exist_ok=True)

if told("AT_ONCE"):
    if told("AT_ONCE") == "75":
        save()
    sys.exit(int(told("AT_ONCE")))
# Blocked before anything is said: a signal that comes between the word and the waiting is not lost.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
print("trains", flush=True)
signal.sigwait({{signal.SIGTERM}})
save()
sys.exit(int(told("ENDS", "130")))
"""
SCONTROL = """#!/bin/bash
echo "$*" >> "$TEST/scontrol"
"""


@pytest.fixture
def job(tmp_path):
    """Files of a job whose python and scontrol are the test's; starts it with other variables each time."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("python", PYTHON), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    run = tmp_path / "runs" / "run"
    made = Job("run", run, job_folder(run), tmp_path, programs, "x")
    made.folder.mkdir(parents=True)

    def start(slurm=None, **variables):
        script = made.folder / "job.sh"
        script.write_text(job_script(made, slurm or Slurm()))
        given = {**os.environ, "TEST": str(tmp_path), "SLURM_JOB_ID": "7", **variables}
        return subprocess.Popen(["bash", script], env=given, stdout=subprocess.PIPE, text=True)

    start.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    start.queued = lambda: (tmp_path / "scontrol").read_text().split() if (tmp_path / "scontrol").exists() else []
    return start


def asked(process, *numbers):
    """Send signals once the run trains; what was said, and the exit code."""
    assert process.stdout.readline() == "trains\n"
    for number in numbers:
        process.send_signal(number)
    said = process.stdout.read()
    process.stdout.close()
    return said, process.wait()


def test_set_e_of_the_users_lines_ends_no_job(job):
    said, code = asked(job(Slurm(setup=["set -euo pipefail"]), SAVES="1"), signal.SIGUSR1)
    assert "ended with 130" in said
    assert (code, job.queued()) == (0, ["requeue", "7"])


def test_little_time_left_saves_and_goes_back_into_the_queue(job):
    said, code = asked(job(SAVES="1"), signal.SIGUSR1)
    assert "little time left" in said
    assert "ended with 130" in said
    assert (code, job.queued()) == (0, ["requeue", "7"])
    said, code = asked(job(SAVES="2"), signal.SIGUSR2)  # its second start
    assert (code, job.queued()) == (130, ["requeue", "7"])
    first, second = job.calls()
    assert first.startswith("-m dapo train /")
    assert first.endswith("/.jobs/run/recipe.yaml")
    assert second.endswith("dapo train --resume " + first.split()[3].replace(".jobs/run/recipe.yaml", "run"))


def test_a_run_that_ends_itself_in_time_goes_back_too(job):
    """``trainer.max_hours``: saved, and exit code 75."""
    process = job(SAVES="1", AT_ONCE="75")
    process.communicate()
    assert (process.returncode, job.queued()) == (0, ["requeue", "7"])


def test_a_job_without_progress_is_not_started_for_ever(job):
    asked(job(SAVES="1"), signal.SIGUSR1)
    said, code = asked(job(SAVES="1"), signal.SIGUSR1)
    assert "no step was finished in this job's time" in said
    assert (code, job.queued()) == (1, ["requeue", "7"])


@pytest.mark.parametrize(
    ("numbers", "ends", "code"),
    [
        ([signal.SIGUSR2], "130", 130),
        ([signal.SIGUSR1], "1", 1),  # the run failed while it was asked
        ([signal.SIGUSR1], "0", 0),  # it was its last step
    ],
)
def test_only_what_was_stopped_for_its_time_goes_back(job, numbers, ends, code):
    assert asked(job(SAVES="1", ENDS=ends), *numbers)[1] == code
    assert not job.queued()


def test_without_requeue_the_job_ends_saved(job):
    assert asked(job(Slurm(requeue=False), SAVES="1"), signal.SIGUSR1)[1] == 130
    assert not job.queued()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_runs(job, code):
    process = job(AT_ONCE=str(code))
    process.communicate()
    assert process.returncode == code


def test_another_job_knows_nothing_of_this_run(job):
    asked(job(SAVES="1"), signal.SIGUSR1)
    job(AT_ONCE="2", SLURM_JOB_ID="8").communicate()
    assert "--resume" not in job.calls()[1]
