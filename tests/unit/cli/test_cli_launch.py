"""``dapo launch`` without a Slurm: what it shows, writes, hands over and refuses."""

from __future__ import annotations

import pytest

from dapo.cli.main import main
from dapo.config.load import load_recipe

RECIPE = """
model: {path: builtin/signed-sum}
data: {train: [{task: signed_sum}], validation: [{task: signed_sum, seed: 1}]}
rewards: [{name: accuracy, kind: exact}]
"""
SBATCH = """#!/bin/sh
echo "$@" > called
[ -z "$REFUSES" ] || { echo "sbatch: error: invalid partition specified: $REFUSES" >&2; exit 1; }
echo "42;cluster"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a recipe, and a Slurm that only notes what it is given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path


def test_a_job_is_written_and_handed_over(here, capsys):
    assert main(["launch", "mine.yaml", "trainer.steps=7", "slurm.time=60", "slurm.gpus_per_node=8"]) == 0
    said = capsys.readouterr().out
    job = here / "runs" / ".jobs" / "run"
    assert (here / "called").read_text() == f"--parsable {job}/job.sh\n"
    assert said.startswith("submitted job 42: 1 x machine with 8 GPUs, at most 60, asked to save 600 s before")
    assert f"{job}/job-42.txt" in said
    script = (job / "job.sh").read_text()
    assert "#SBATCH --time=60\n" in script
    assert "# From mine.yaml with trainer.steps=7 slurm.time=60 slurm.gpus_per_node=8.\n" in script
    # what the job will read is what was asked for, whatever becomes of the file
    (here / "mine.yaml").unlink()
    as_submitted = load_recipe(job / "recipe.yaml").recipe
    assert (as_submitted.trainer.steps, as_submitted.slurm.gpus_per_node) == (7, 8)


def test_a_job_that_waits_keeps_its_recipe_when_another_of_that_name_is_submitted(here):
    """Both are for the same run folder: the one that starts later is refused, and the first is what it was."""
    job = here / "runs" / ".jobs" / "run"
    found = []
    for steps in (7, 8, 7):
        assert main(["launch", "mine.yaml", f"trainer.steps={steps}"]) == 0
        (line,) = [line for line in (job / "job.sh").read_text().splitlines() if " train " in line and "$job" in line]
        name = line.partition("$job/")[2].partition('"')[0]
        found.append((name, load_recipe(job / name).recipe.trainer.steps))
    assert found == [("recipe.yaml", 7), ("recipe.1.yaml", 8), ("recipe.yaml", 7)]


def test_a_dry_run_shows_the_script_and_leaves_nothing(here, capsys):
    assert main(["launch", "mine.yaml", "--dry-run", "run.name=mine"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n# Trains ")
    assert sorted(path.name for path in here.iterdir()) == ["bin", "mine.yaml"]


def test_what_slurm_says_is_told(here, capsys, monkeypatch):
    monkeypatch.setenv("REFUSES", "gpus")
    assert main(["launch", "mine.yaml", "slurm.partition=gpus"]) == 1
    assert "Slurm did not take the job: sbatch: error: invalid partition specified: gpus" in capsys.readouterr().err


def test_without_slurm_it_says_where_to_go(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    assert main(["launch", "mine.yaml"]) == 1
    assert "sbatch is not on this machine" in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_a_run_that_is_there_is_not_begun_again(here, capsys):
    run = here / "runs" / "run"
    run.mkdir(parents=True)
    (run / "recipe.resolved.yaml").write_text(load_recipe("mine.yaml").resolved)
    assert main(["launch", "mine.yaml"]) == 2
    assert f"dapo launch --resume {run}" in capsys.readouterr().err
    assert main(["launch", "--resume", str(run), "trainer.steps=9", "slurm.time=60", "--dry-run"]) == 0
    script = capsys.readouterr().out
    assert script.count('python -m dapo train --resume "$run"') == 2
    assert '--resume "$run" trainer.steps=9 < /dev/null' in script
    assert main(["launch", "--resume", str(run), "mine.yaml"]) == 2


def test_secrets_do_not_go_into_a_file(here, capsys):
    secret = "rollout.vllm.engine_args.hf_token=hf_abcdefghijklmnopqrst"
    assert main(["launch", "mine.yaml", "rollout.engine=vllm", secret]) == 2
    said = capsys.readouterr().err
    assert "take rollout.vllm.engine_args.hf_token out" in said
    assert "hf_abc" not in said
    assert not (here / "runs").exists()


def test_several_machines_are_a_ray_cluster_of_as_many(here, capsys):
    over = ["slurm.nodes=2", "slurm.gpus_per_node=8", "rollout.engines=4"]
    assert main(["launch", "mine.yaml", *over]) == 0
    job = here / "runs" / ".jobs" / "run"
    recipe = load_recipe(job / "recipe.yaml").recipe
    assert (recipe.launch.backend, recipe.cluster.nodes, recipe.cluster.gpus_per_node) == ("ray", 2, 8)
    assert "launch.backend=ray cluster.address=$RAY_ADDRESS" in (job / "job.sh").read_text()
