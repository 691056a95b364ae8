"""Launch commands: the configuration that a command names, and commands inside of a variable or a Slurm job."""

from __future__ import annotations

from pathlib import Path

import pytest
from each import each

from dapo.cli.main import main
from dapo.config.load import recipe_from_dict
from dapo.errors import RecipeError
from dapo.importing.convert import import_file, import_text
from dapo.importing.recipe_text import nested
from tests.unit.importing import configurations_for_tests as public

NEMO = "uv run examples/run_grpo_math.py --config examples/configs/recipes/llm/dapo-qwen2.5-7b.yaml {overrides}\n"
AREAL = "python3 -m areal.launcher.local examples/math/gsm8k_rl.py --config examples/experimental/dapo/gsm8k_dapo.yaml "


@each("system", [None, "nemo-rl", "verl"])
@each(
    ("command", "missing", "ours"),
    [
        (NEMO, "examples/configs/recipes/llm/dapo-qwen2.5-7b.yaml", "dapo_qwen2.5_7b_8gpu"),
        (NEMO.replace("--config ", "--config="), "dapo-qwen2.5-7b.yaml", "dapo_qwen2.5_7b_8gpu"),
        (AREAL + "actor.eps_clip_higher=0.28", "examples/experimental/dapo/gsm8k_dapo.yaml", "gsm8k_0.5b_1gpu"),
        ("uv run examples/run_grpo.py --config my/own.yaml grpo.num_prompts_per_step=4", "my/own.yaml", "dapo recipes"),
        ("trl grpo --config own.yml --epsilon_high 0.28", "own.yml", "dapo recipes"),
        ("swift rlhf own.yaml --rlhf_type grpo", "own.yaml", "dapo recipes"),
        ("python3 -m verl.trainer.main_ppo --config-path=conf --config-name=own a.b=1", "conf/own.yaml", ""),
        ("python x.py --epochs 3 --rows 4 --size 5\ntrl grpo --config own.yml", "own.yml", ""),
    ],
)
def test_a_command_without_its_configuration_is_refused(command: str, missing: str, ours: str, system) -> None:
    with pytest.raises(RecipeError) as refused:
        import_text(command, "run.sh", system)
    assert f"{missing}, which is not there" in str(refused.value)
    assert ours in str(refused.value)


def test_a_configuration_whose_folder_is_not_known_is_read_beside_the_script(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = 'python3 -m verl.trainer.main_ppo --config-path="$CONFIGS" --config-name=own data.train_batch_size=64\n'
    Path("run.sh").write_text(command)
    with pytest.raises(RecipeError, match=r"CONFIGS is set outside .*; copy own.yaml next to the script, or write"):
        import_file(Path("run.sh"))
    Path("own.yaml").write_text("actor_rollout_ref: {rollout: {n: 6}}\ndata: {train_batch_size: 32}\n")
    made = import_file(Path("run.sh"))
    assert "  group_size: 6 " in made.text
    assert "  prompts_per_step: 64 " in made.text
    assert "# CAUTION: own.yaml next to the script is read for .../own.yaml, whose folder is not known" in made.text


def test_the_recipe_never_takes_the_place_of_its_source(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("grpo: {num_prompts_per_step: 4}")
    assert main(["import", "a.yaml", "-o", "./a.yaml", "--force"]) == 2
    assert "another name" in capsys.readouterr().err
    assert Path("a.yaml").read_text() == "grpo: {num_prompts_per_step: 4}"


def test_the_program_refuses_such_a_command_and_writes_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(NEMO)
    assert main(["import", "run.sh", "-o", "mine.yaml"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "run.sh, line 1" in said
    assert "dapo recipes --copy dapo_qwen2.5_7b_8gpu" in said
    assert not Path("mine.yaml").exists()


def test_a_configuration_that_is_there_is_read_below_the_commands_own_settings(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/own.yaml").write_text("data: {train_batch_size: 64}\nactor_rollout_ref: {rollout: {n: 4}}")
    Path("run.sh").write_text(
        "python3 -m verl.trainer.main_ppo --config-path=conf --config-name=own data.train_batch_size=32"
    )
    made = import_file("run.sh")
    assert made.reading.lines["rollout.prompts_per_step"].value == 32
    assert made.reading.lines["rollout.group_size"].value == 4
    assert "# It also read conf/own.yaml." in made.text


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer.yaml", "dapo_trainer"])
def test_a_trainers_own_defaults_need_no_file(name: str) -> None:
    """What such a file says is what the importer takes anyway."""
    made = import_text(
        f"python -m verl.trainer.main_ppo --config-path=config --config-name='{name}' data.train_batch_size=8", "a.sh"
    )
    assert made.reading.lines["rollout.prompts_per_step"].value == 8
    assert "verl's usual defaults are taken" in made.text


def test_a_configuration_that_only_the_running_script_knows_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"line 1: .*\$1 is an argument of the script"):
        import_text("python run_grpo.py --config $1 grpo.num_prompts_per_step=4", "a.sh", "nemo-rl")


def test_a_file_that_another_command_is_given_does_not_matter() -> None:
    command = "python -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.rollout.n=4"
    made = import_text(f"python prepare.py sizes.yaml\n{command}", "a.sh")
    assert made.reading.lines["rollout.prompts_per_step"].value == 8
    with pytest.raises(RecipeError, match=r"sizes\.yaml, which is not there"):
        import_text("python train.py sizes.yaml", "a.sh")


@each("system", [None, "verl"])
@each(
    ("script", "said"),
    [
        ("sbatch", "holds no settings at all"),
        ("echo verl", "holds no settings at all"),
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=$1", r"data.train_batch_size=...: \$1 is an argument"),
    ],
)
def test_a_script_without_a_setting_is_no_recipe_of_defaults(script: str, said: str, system: str | None) -> None:
    with pytest.raises(RecipeError, match=said):
        import_text(script, "a.sh", system)


def test_what_starts_a_trainer_has_a_configuration_of_its_own() -> None:
    made = import_text(
        "accelerate launch --config_file gpus.yaml train.py --num_generations 4 --use_vllm true --vllm_mode server",
        "a.sh",
        "trl",
    )
    assert made.reading.lines["rollout.group_size"].value == 4


@pytest.mark.parametrize(
    "command", ["bash examples/algorithms/dapo/run_dapo_gsm8k.sh", "sbatch -N 2 run_dapo_gsm8k.sh"]
)
def test_a_command_that_runs_another_script_names_that_script(command: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"run_dapo_gsm8k.sh, which is not there.*gsm8k_0.5b_1gpu"):
        import_text(f"export WANDB_API_KEY=mine\n{command}", "a.txt", folder=tmp_path)
    beside = tmp_path / command.split()[-1]
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(public.SKYRL_GSM8K)
    made, itself = import_text(command, "a.sh", folder=tmp_path), import_text(public.SKYRL_GSM8K, "a.sh")
    values = {key: line.value for key, line in made.reading.lines.items() if not key.startswith("slurm.")}
    assert values == {key: line.value for key, line in itself.reading.lines.items()}


def test_a_missing_base_of_a_yaml_file_is_the_first_line() -> None:
    """The importer's own defaults stand in for one file of NeMo RL, and for no other."""
    first = import_text(public.NEMO_9B, "9b.yaml").text.splitlines()[0]
    assert "../../grpo_math_8B_megatron.yaml" in first
    assert first.startswith("# CAUTION")
    assert "CAUTION" not in import_text(public.NEMO_7B, "7b.yaml").text


JOB = """\
NUM_ACTOR_NODES=2
COMMAND="uv run ./examples/run_grpo_math.py \\
cluster.num_nodes=2 grpo.num_prompts_per_step=64 grpo.ratio_clip_max=0.25 \\
checkpointing.checkpoint_dir='results/two nodes' logger.wandb_enabled=True" \\
CONTAINER=image MOUNTS="$PWD:$PWD" \\
sbatch --nodes=${NUM_ACTOR_NODES} --account=us --job-name=clip --partition gpu --time=4:0:0 --gres=gpu:8 --exclusive \\
ray.sub
"""


@pytest.mark.parametrize("system", [None, "nemo-rl"])
def test_a_job_that_holds_its_command_in_a_variable_is_read(system: str | None) -> None:
    made = import_text(JOB, "run.sh", system)
    assert (made.system, made.refused) == ("nemo-rl", "")
    lines = {key: line.value for key, line in made.reading.lines.items()}
    assert lines["rollout.prompts_per_step"] == 64
    assert lines["algorithm.clip.high"] == 0.25
    assert {key: value for key, value in lines.items() if key.startswith("slurm.")} == {
        "slurm.nodes": 2,
        "slurm.options": {
            "account": "us",
            "partition": "gpu",
            "time": "4:0:0",
            "gpus-per-node": 8,
            "exclusive": True,
        },
    }
    assert "from sbatch --nodes = 2" in made.text
    assert "sbatch --job-name = clip: " in made.text
    lines["model.path"], lines["data.train.0.task"] = "builtin/signed-sum", "signed_sum"
    del lines["data.train.0.task"]
    recipe = recipe_from_dict({**nested(lines), "data": {"train": [{"task": "signed_sum"}]}}).recipe
    assert (recipe.learner.ranks, recipe.rollout.engines) == (16, 16)
    assert (recipe.slurm.nodes, recipe.slurm.options["time"]) == (2, "4:0:0")


@pytest.mark.parametrize(
    "script",
    [
        "export COMMAND='trl grpo --model_name_or_path m --num_generations 4'\nsbatch -N2 --gpus-per-node=8 ray.sub",
        "sbatch -N 2 --gres gpu:h100:8 --wrap='trl grpo --model_name_or_path m --num_generations 4'",
        "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8  # all\ntrl grpo --model_name_or_path m --num_generations 4",
        "#SBATCH -N 2\n#SBATCH --gres=gpu:8\nsrun bash -lc 'trl grpo --model_name_or_path m --num_generations 4'",
    ],
)
def test_other_ways_to_hold_a_command_in_a_job(script: str) -> None:
    lines = import_text(script, "a.sh").reading.lines
    assert lines["rollout.group_size"].value == 4
    assert (lines["slurm.nodes"].value, lines["slurm.options"].value["gpus-per-node"]) == (2, 8)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('COMMAND="python run_grpo.py $EXTRA grpo.num_prompts_per_step=4" sbatch ray.sub', r"\$EXTRA is set outside"),
        ('COMMAND="$(cat command)" sbatch ray.sub', "is a command, which is not run"),
        ("sbatch --nodes=2 ray.sub", "COMMAND"),
        ('sbatch --wrap="python x.py $ARGS"', r"\$ARGS is set outside"),
        ('COMMAND="sbatch ray.sub"\nsbatch ray.sub', "within each other"),
    ],
)
def test_a_command_in_a_variable_that_is_not_constant_is_refused(script: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        import_text(script, "a.sh", "nemo-rl")


def test_the_multi_node_command_needs_its_configuration_too() -> None:
    with pytest.raises(RecipeError, match=r"grpo_math_8B\.yaml, which is not there.*dapo_qwen3_8b_2nodes"):
        import_text(
            JOB.replace("run_grpo_math.py", "run_grpo_math.py --config examples/configs/grpo_math_8B.yaml"), "a.sh"
        )
