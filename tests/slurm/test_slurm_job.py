"""Jobs of a real Slurm: two nodes on this host (`make test-slurm`)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_here
from small_run import assert_none_lost_or_doubled, command, environment, write_recipe

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(slurm_here.why_not()), reason=slurm_here.why_not() or "Slurm is here"),
    pytest.mark.timeout(900),
]

PACE = """
import os, time

def reward(prompt, completion):
    "Slow in the job's first start, so that its time ends in the middle of the run; the value is the same."
    time.sleep(0 if os.environ.get("SLURM_RESTART_COUNT") else 0.1)
    return 1.0 if len(completion.text) <= 40 else 0.0
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_here.running(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables | environment() | {"PYTHONPATH": str(ROOT), "SLURM_CONF": variables["SLURM_CONF"]}


def launch_paced(slurm, folder, *arguments):
    """A job that is slow enough for something to happen to it before its end."""
    recipe = write_recipe(folder)
    (folder / "pace.py").write_text(PACE)
    return launch(
        slurm,
        folder,
        recipe,
        "rewards.1={name: short, kind: function, function: 'pace:reward', weight: 0.1}",
        "run.reward_workers=1",
        "algorithm.dynamic_sampling.mode=off",
        "validation.every=0",
        *arguments,
    )


def launch(slurm, folder, *arguments):
    """Submit as a person does; the job's number and its output, line by line, from the beginning."""
    done = subprocess.run(
        command("launch", *arguments), env=slurm, cwd=folder, capture_output=True, text=True, check=True
    )
    number = re.search(r"submitted job (\d+)", done.stdout)[1]
    output = Path(re.search(r"output +(\S+)", done.stdout)[1])
    return number, output


class Output:
    """What a job prints, as it comes."""

    def __init__(self, path):
        self.said = []
        self.tail = subprocess.Popen(
            ["tail", "-n", "+1", "-F", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def until(self, word):
        for line in self.tail.stdout:
            self.said.append(line)
            if re.search(word, line):
                return line
            if "dapo train ended with 1\n" in line or "dapo train ended with 2\n" in line:
                break
        raise AssertionError("".join(self.said)[-3000:])

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.tail.kill()
        self.tail.wait()
        self.tail.stdout.close()


def ended(slurm, number):
    """Wait for the job's end, in the queue behind it; what Slurm says of it."""
    subprocess.run(
        ["srun", "--quiet", f"--dependency=afterany:{number}", "true"], env=slurm, stdin=subprocess.DEVNULL, check=True
    )
    said = subprocess.run(["scontrol", "show", "job", number], env=slurm, capture_output=True, text=True, check=True)
    return dict(word.partition("=")[::2] for word in said.stdout.split())


def assert_each_step_once(run, steps):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))


def test_a_job_saves_before_its_time_is_up_is_put_back_and_goes_on(slurm, tmp_path):
    """Slurm's own clock and signal; its second start ends the run. A step trained twice or left out would be seen."""
    steps = 80  # 16 rewards of 0.1 s each: more than the two minutes after which Slurm has asked for sure
    times = ("slurm.options.time=3", "slurm.signal_seconds=60")
    number, output = launch_paced(slurm, tmp_path, f"trainer.steps={steps}", "checkpoint.every=1000", *times)
    saved = []
    with Output(output) as told:
        while "ended with 0" not in told.until("dapo train ended with (0|130)"):  # a slow machine takes more starts
            assert any("the job has little time left: the run saves and ends" in line for line in told.said)
            saved.append(int(re.search(r"resuming after step (\d+)", told.until("resuming after step"))[1]))
    print(f"saved after step {saved} of {steps}, gone on from there")
    assert saved == sorted(set(saved))  # each start got further
    assert 1 <= saved[0] < steps
    job = ended(slurm, number)
    assert (job["JobState"], job["Restarts"], job["ExitCode"]) == ("COMPLETED", str(len(saved)), "0:0")
    assert_each_step_once(tmp_path / "run", steps)


def test_who_stops_a_job_gets_a_saved_run_and_goes_on_with_it(slurm, tmp_path):
    recipe = write_recipe(tmp_path)
    (tmp_path / "setup.sh").write_text("export SEEN=setup\n")
    number, output = launch(
        slurm,
        tmp_path,
        recipe,
        "trainer.steps=100000",
        "checkpoint.every=1000",
        "learner.learning_rate=1e-12",  # what it solves would end it before Slurm's signal comes
        "slurm.setup=['. ./setup.sh']",
        f"slurm.container=env PATH={Path(sys.executable).parent}:/usr/bin:/bin",
    )
    run = tmp_path / "run"
    with Output(output) as told:
        told.until(r"step +2/")
        subprocess.run(["scancel", "--batch", "--signal=USR2", number], env=slurm, check=True)
        told.until("the job was asked to end")
        told.until("dapo train ended with 130")
    job = ended(slurm, number)
    assert (job["JobState"], job["Restarts"], job["ExitCode"]) == ("FAILED", "0", "130:0")
    done = int(sorted(run.glob("checkpoints/step_*"))[-1].name[5:])
    number, output = launch(slurm, tmp_path, "--resume", run, f"trainer.steps={done + 2}")
    assert ended(slurm, number)["JobState"] == "COMPLETED"
    assert f"resuming after step {done}" in output.read_text()
    assert_none_lost_or_doubled(run, done + 2)


def test_a_preempted_job_goes_on_from_what_it_has_saved(slurm, tmp_path):
    """Its processes are ended and it starts again, as Slurm does it for another job's sake (PreemptMode=REQUEUE)."""
    steps = 40
    number, output = launch_paced(slurm, tmp_path, f"trainer.steps={steps}", "checkpoint.every=1")
    with Output(output) as told:
        told.until(r"step +3/")
        subprocess.run(["scontrol", "requeue", number], env=slurm, check=True)
        saved = int(re.search(r"resuming after step (\d+)", told.until("resuming after step"))[1])
        told.until("dapo train ended with 0")
    print(f"saved after step {saved} of {steps}, gone on from there")
    assert 2 <= saved < steps
    job = ended(slurm, number)
    assert (job["JobState"], job["Restarts"], job["ExitCode"]) == ("COMPLETED", "1", "0:0")
    assert_each_step_once(tmp_path / "run", steps)


def test_two_machines_are_a_ray_cluster_of_the_job(slurm, tmp_path):
    """Head, worker and driver by the script; ranks and engines find their places; nothing of Ray is left."""
    pytest.importorskip("ray")
    recipe = write_recipe(tmp_path)
    number, output = launch(
        slurm | {"RAY_worker_niceness": "0"},
        tmp_path,
        recipe,
        "slurm.nodes=2",
        "slurm.options.cpus-per-task=1",
        "learner.ranks=2",
        "rollout.engines=2",
        "trainer.steps=2",
        "validation.every=0",
    )
    with Output(output) as told:
        told.until("Ray is up on 2 machines: n1 n2")
        told.until("Ray cluster at .* 4 hosts in 2 bundles")
        told.until("dapo train ended with 0")
    assert ended(slurm, number)["JobState"] == "COMPLETED"
    assert_each_step_once(tmp_path / "run", 2)
