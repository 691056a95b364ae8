"""``dapo launch`` without a Slurm: what it shows, writes, hands over and refuses."""

from __future__ import annotations

import json
import shlex
import subprocess

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
    assert (
        main(["launch", "mine.yaml", "learner.ranks=8", "slurm.options.time=60", "slurm.options.gpus-per-node=8"]) == 0
    )
    said = capsys.readouterr().out
    job = here / "runs" / ".jobs" / "mine"
    assert (here / "called").read_text() == f"--parsable {job}/job.sh\n"
    assert said.startswith(
        "submitted job 42: 1 x machine with 8 GPUs and 64 cores, at most 60, asked to save 600 s before"
    )
    assert f"{job}/job-42.txt" in said
    script = (job / "job.sh").read_text()
    assert "#SBATCH --time=60\n" in script
    given = "learner.ranks=8 slurm.options.time=60 slurm.options.gpus-per-node=8"
    assert f"# From mine.yaml with {given} slurm.options.cpus-per-task=64.\n" in script
    # what the job will read is what was asked for, whatever becomes of the file
    (here / "mine.yaml").unlink()
    as_submitted = load_recipe(job / "recipe.yaml").recipe
    assert (as_submitted.learner.ranks, as_submitted.slurm.options["gpus-per-node"]) == (8, 8)


def test_a_job_that_waits_keeps_its_recipe_when_another_of_that_name_is_submitted(here):
    """Both are for the same run folder: the one that starts later is refused, and the first is what it was."""
    job = here / "runs" / ".jobs" / "mine"
    found = []
    for steps in (7, 8, 7):
        assert main(["launch", "mine.yaml", f"trainer.steps={steps}", "run.name=mine"]) == 0
        (line,) = [line for line in (job / "job.sh").read_text().splitlines() if " train " in line and "$job" in line]
        name = line.partition("$job/")[2].partition('"')[0]
        found.append((name, load_recipe(job / name).recipe.trainer.steps))
    assert found == [("recipe.yaml", 7), ("recipe.1.yaml", 8), ("recipe.yaml", 7)]


def test_a_second_job_without_a_name_has_a_run_of_its_own(here):
    """The name is settled when the job is submitted, so that its script resumes the very run that it started."""
    for name in ("mine", "mine-2"):
        assert main(["launch", "mine.yaml"]) == 0
        job = here / "runs" / ".jobs" / name
        assert load_recipe(job / "recipe.yaml").recipe.run.name == name
        script = (job / "job.sh").read_text()
        assert f"run={here}/runs/{name}\n" in script.replace("'", "").replace('"', "")
        assert f"#SBATCH --job-name=dapo-{name}\n" in script


def test_a_dry_run_shows_the_script_and_leaves_nothing(here, capsys):
    assert main(["launch", "mine.yaml", "--dry-run", "run.name=mine"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n# Trains ")
    assert sorted(path.name for path in here.iterdir()) == ["bin", "mine.yaml"]


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ([], {"cpus-per-task": 1}),  # a built-in model gains nothing from a GPU
        (["model.device=cuda"], {"gpus-per-node": 1, "cpus-per-task": 8}),
        (["model.device=cuda", "learner.ranks=8", "rollout.engines=4"], {"gpus-per-node": 8, "cpus-per-task": 64}),
        (["model.path=org/model"], {"gpus-per-node": 1, "cpus-per-task": 8}),
        (["model.path=org/model", "rollout.max_staleness=1"], {"gpus-per-node": 2, "cpus-per-task": 16}),
        (["model.path=org/model", "model.device=cpu", "run.threads=4"], {"cpus-per-task": 4}),
        (["learner.ranks=3", "run.threads=2"], {"cpus-per-task": 6}),
        (["model.device=cuda", "slurm.options.gres=gpu:a100:1"], {"gres": "gpu:a100:1", "cpus-per-task": 8}),
        (["model.device=cuda", "slurm.options.exclusive=true"], {"gpus-per-node": 1, "exclusive": True}),
        (
            ["model.device=cuda", "slurm.nodes=2", "learner.ranks=6", "cluster.colocate=true"],
            {"gpus-per-node": 3, "cpus-per-task": 24},
        ),
    ],
)
def test_a_job_asks_for_what_its_ranks_and_engines_use(here, asked, options):
    assert main(["launch", "mine.yaml", *asked]) == 0
    recipe = load_recipe(here / "runs" / ".jobs" / "mine" / "recipe.yaml").recipe
    assert recipe.slurm.options == options
    script = (here / "runs" / ".jobs" / "mine" / "job.sh").read_text()
    assert all(f"#SBATCH --{name}" in script for name in options)


def test_a_resume_asks_for_what_its_ranks_use_then(here):
    run = run_that_is_there(here)
    assert main(["launch", "--resume", str(run), "learner.ranks=2", "run.threads=3"]) == 0
    assert "#SBATCH --cpus-per-task=6\n" in (run.parent / ".jobs" / run.name / "job.sh").read_text()


def test_what_slurm_says_is_told(here, capsys, monkeypatch):
    monkeypatch.setenv("REFUSES", "gpus")
    assert main(["launch", "mine.yaml", "slurm.options.partition=gpus"]) == 1
    assert "Slurm did not take the job: sbatch: error: invalid partition specified: gpus" in capsys.readouterr().err


def test_without_slurm_it_says_where_to_go(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    assert main(["launch", "mine.yaml"]) == 1
    assert "sbatch is not on this machine" in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_a_run_that_is_there_is_not_begun_again(here, capsys):
    run = here / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "recipe.resolved.yaml").write_text(load_recipe("mine.yaml").resolved)
    assert main(["launch", "mine.yaml", "run.name=mine"]) == 2
    assert f"dapo launch --resume {run}" in capsys.readouterr().err
    assert main(["launch", "--resume", str(run), "trainer.steps=9", "slurm.options.time=60", "--dry-run"]) == 0
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


def run_that_is_there(here):
    run = here / "runs" / "run"
    run.mkdir(parents=True)
    (run / "recipe.resolved.yaml").write_text(load_recipe("mine.yaml", ["rollout.engine=vllm"]).resolved)
    return run


@pytest.mark.parametrize("later", [[], ["rollout.vllm.engine_args={}"]], ids=["given", "taken back"])
def test_a_resume_refuses_secrets_too(here, capsys, later):
    run = run_that_is_there(here)
    secret = "rollout.vllm.engine_args.hf_token=hf_abcdefghijklmnopqrst"
    for more in ([], ["--dry-run"]):
        assert main(["launch", "--resume", str(run), secret, *later, *more]) == 2
        said = capsys.readouterr()
        assert "take rollout.vllm.engine_args.hf_token out" in said.err
        assert "hf_abc" not in said.err + said.out
    assert not (here / "runs" / ".jobs").exists()


def test_a_resume_refuses_a_secret_in_lines_of_the_script(here, capsys):
    run = run_that_is_there(here)
    assert main(["launch", "--resume", str(run), f"slurm.setup=['export A=hf_{34 * 'a'}']"]) == 2
    assert "take slurm.setup.0 out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("slurm.setup=['export WANDB_API_KEY=0123456789abcdef']", "slurm.setup.0"),
        ("slurm.options.export=ALL,HF_TOKEN=0123456789abcdef", "slurm.options.export"),
        ("slurm.setup=['export HF_TOKEN=$(cat ~/.token) TOKENIZERS_PARALLELISM=0']", ""),
    ],
)
def test_a_secret_that_lines_of_shell_set_is_refused(here, capsys, setting, key):
    assert main(["launch", "mine.yaml", setting, "--dry-run"]) == 2 * bool(key)
    said = capsys.readouterr()
    assert "0123456789abcdef" not in said.err + said.out
    assert ("out of the recipe" in said.err) == bool(key)
    assert (f"take {key} out" in said.err) == bool(key)


def test_files_of_jobs_are_their_owners_alone(here):
    (here / "runs" / ".jobs" / "mine").mkdir(parents=True)
    for folder in (here / "runs" / ".jobs", here / "runs" / ".jobs" / "mine"):
        folder.chmod(0o755)
    for name in ("run", "other"):
        assert main(["launch", "mine.yaml", f"run.name={name}"]) == 0
        for folder in (here / "runs" / ".jobs", here / "runs" / ".jobs" / name):
            assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", ["directory", "resume"])
def test_a_path_of_two_lines_is_refused(here, capsys, monkeypatch, part):
    two = "a\ntouch ran\nb"
    command = ["launch", "mine.yaml"]
    if part == "directory":
        (here / two).mkdir()
        (here / "mine.yaml").rename(here / two / "mine.yaml")
        monkeypatch.chdir(here / two)
    else:
        command = ["launch", "--resume", str(run_that_is_there(here).rename(here / two))]
    for more in ([], ["--dry-run"]):
        assert main([*command, *more]) == 2
        said = capsys.readouterr()
        assert "it contains '\\n'. Rename the folder" in " ".join(said.err.split())
        assert said.out == ""
    assert not list(here.rglob(".jobs"))


def test_other_odd_paths_stay_one_word_for_the_shell_and_for_sbatch(here, monkeypatch):
    odd = "it's; touch ran #\"$(touch ran)`touch ran`& --mail-user=me %j {run} START AGAIN NODES"
    (here / odd).mkdir()
    (here / "mine.yaml").rename(here / odd / "mine.yaml")
    monkeypatch.chdir(here / odd)
    assert main(["launch", "mine.yaml", "slurm.options.partition=a'b\"#c"]) == 0
    folder = here / odd / "runs" / ".jobs" / "mine"
    script = (folder / "job.sh").read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=True).stderr == ""
    set_up = [line for line in script.splitlines() if line.startswith(("run=", "job=", "cd "))]
    assert len(set_up) == 3
    shown = subprocess.run(
        ["bash", "-c", "\n".join([*set_up, 'printf "%s\\n" "$run" "$job" "$PWD"'])], capture_output=True, text=True
    )
    assert shown.stdout.splitlines() == [str(here / odd / "runs" / "mine"), str(folder), str(here / odd)]
    options = dict(words[0][2:].partition("=")[::2] for line in script.splitlines() if (words := sbatch_words(line)))
    assert options["partition"] == "a'b\"#c"
    assert options["output"] == str(folder).replace("%", "%%") + "/job-%j.txt"
    assert not list(here.rglob("ran"))


def sbatch_words(line):
    """Words of an ``#SBATCH`` line as sbatch reads them; exactly one."""
    if not line.startswith("#SBATCH "):
        return []
    words = shlex.split(line.removeprefix("#SBATCH "), comments=True)
    assert len(words) == 1, words
    return words


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["module load cuda", "cat <<EOF"], "slurm.setup.1: 'cat <<EOF'"),
        (["echo 'open"], "slurm.setup.0"),
        (['echo "open'], "slurm.setup.0"),
        (["echo $(open"], "slurm.setup.0"),
        (["if true; then"], "slurm.setup.0"),
        (["while :; do", "true"], "slurm.setup.0"),
        (["f() {"], "slurm.setup.0"),
        (["case x in"], "slurm.setup.0"),
        (["module load \\"], "slurm.setup.0"),
        (["true &&"], "slurm.setup.0"),
        (["}", "true {"], "slurm.setup.0: '}'"),
    ],
)
def test_lines_that_take_in_the_rest_of_the_script_are_refused_by_name(here, capsys, lines, named):
    (here / "setup.yaml").write_text(RECIPE + "slurm: " + json.dumps({"setup": lines}) + "\n")
    assert main(["launch", "setup.yaml"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert named in said, said
    assert not (here / "runs").exists()


def test_lines_that_are_whole_together_are_taken(here):
    lines = ["if [ -d /x ]; then", "  module load \\", "    cuda", "fi  # done", "cat <<EOF", "it's", "EOF", "# end"]
    (here / "setup.yaml").write_text(RECIPE + "slurm: " + json.dumps({"setup": lines}) + "\n")
    assert main(["launch", "setup.yaml"]) == 0
    assert "\n".join(lines) in (here / "runs" / ".jobs" / "setup" / "job.sh").read_text()


def test_several_machines_are_a_ray_cluster_of_as_many(here, capsys):
    over = ["slurm.nodes=2", "slurm.options.gpus-per-node=8", "learner.ranks=auto", "rollout.engines=auto"]
    assert main(["launch", "mine.yaml", *over]) == 0
    job = here / "runs" / ".jobs" / "mine"
    recipe = load_recipe(job / "recipe.yaml").recipe
    assert (recipe.launch.backend, recipe.cluster.nodes, recipe.cluster.gpus_per_node) == ("ray", 2, 8)
    assert (recipe.learner.ranks, recipe.rollout.engines) == (16, 16)
    assert "launch.backend=ray cluster.address=$RAY_ADDRESS" in (job / "job.sh").read_text()
