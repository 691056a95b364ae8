"""A default stands in a recipe only where the whole command was read; a method that is not here is refused or named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from each import each

from dapo.cli.main import main
from dapo.errors import RecipeError
from dapo.importing.convert import Imported, import_file, import_text

VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
SWIFT = "swift rlhf --rlhf_type grpo --model M --dataset d.jsonl --reward_funcs accuracy "
N = "actor_rollout_ref.rollout.n"
DISTIL = "distillation.distillation_loss"
LOSS = f"{DISTIL}.loss_mode"
ONE = "distillation.enabled=True distillation.teacher_models.teacher_model.model_path=T"
TWO = "distillation.enabled=True distillation.teacher_models.a.model_path=T distillation.teacher_models.b.model_path=U"


def lines_of(text: str, name: str = "a.sh", **more) -> dict:
    return {key: line.value for key, line in import_text(text, name, **more).reading.lines.items()}


def to_fill_in(made: Imported) -> set[str]:
    """Return what a user has to write, but for the steps: no data are here that would say them."""
    return {key for key, line in made.reading.lines.items() if line.fill_in} - {"trainer.steps"}


def first_line(text: str, name: str = "a.sh", system: str | None = None) -> str:
    return import_text(text, name, system).text.splitlines()[0]


def test_flags_before_a_file_of_python_that_is_a_value() -> None:
    lines = lines_of(SWIFT + "--beta 0 --learning_rate 3e-6 --external_plugins a.py b.py --num_generations 4")
    assert (lines["algorithm.kl_coefficient"], lines["learner.learning_rate"]) == (0, 3e-6)
    assert (lines["model.path"], lines["rollout.group_size"]) == ("M", 4)


@pytest.mark.parametrize("start", ["torchrun --standalone x.py ", "accelerate launch --config_file c.yaml x.py "])
def test_a_program_after_a_launchers_flag_is_no_value(start: str) -> None:
    lines = lines_of(start + "--num_generations 4 --plugin y.py --model_name_or_path M", system="trl")
    assert (lines["rollout.group_size"], lines["model.path"]) == (4, "M")


@each(
    "branch",
    [
        'case "$D" in\n  gpu) ;;\n  npu)\n    A+=(\n      {more}\n    )\n    ;;\nesac\n',
        'if [ "$D" = npu ]; then A+=({more}); fi\n',
        'if [ "$D" = npu ]; then\n  echo npu\nelse\n  A+=({more})\nfi\n',
        "for x in $D; do\n  A+=({more})\ndone\n",
        '[ "$D" = npu ] && A+=({more})\n',
        'if [ "$D" = npu ]; then A+=(); else A+=({more}); fi\n',
    ],
)
def test_what_all_branches_share_is_taken_and_the_rest_is_listed(branch: str) -> None:
    script = f'A=({N}=5 data.train_batch_size=64)\n{branch}{VERL} "${{A[@]}}"'
    made = import_text(script.replace("{more}", "trainer.odd=1"), "a.sh")
    assert (made.reading.lines["rollout.group_size"].value, to_fill_in(made)) == (5, set())
    assert "trainer.odd=1: could not be read: only some branches of the script set it" in made.text
    made = import_text(script.replace("{more}", f"{N}=8"), "a.sh")
    assert to_fill_in(made) == {"rollout.group_size"}
    assert "group_size: FILL_IN" in made.text


def test_a_value_that_every_branch_sets_alike_is_one() -> None:
    script = (
        "if x; then L=512; B=1; else L=512; B=2; fi\n" + VERL + "data.max_response_length=$L data.train_batch_size=$B"
    )
    made = import_text(script, "a.sh")
    assert made.reading.lines["rollout.max_response_tokens"].value == 512
    assert {"rollout.prompts_per_step", "learner.minibatch_prompts"} <= to_fill_in(made)


def test_variables_of_a_branch_are_certain_within_it() -> None:
    script = f"L=1\nif x; then\n  L=2\n  {VERL} {N}=$L data.train_batch_size=8 data.max_prompt_length=9\nfi\n"
    assert lines_of(script)["rollout.group_size"] == 2


@pytest.mark.parametrize("value", ["$1", "${X:-}", "$X", "$(nproc)", "many"])
def test_a_value_that_is_not_known_is_no_default(value: str) -> None:
    made = import_text(VERL + f"{N}={value} data.train_files={value}", "a.sh")
    assert to_fill_in(made) >= {"rollout.group_size"} - ({"data.train"} if value == "many" else set())
    assert not re.search(r"default of actor_rollout_ref\.rollout\.n(?!\w)", made.text)
    assert value == "many" or "# data.train: FILL IN" in made.text


@pytest.mark.parametrize("part", ["$(python args.py)", "$ARGS", '"${ARGS[@]}"'])
def test_a_part_of_a_command_that_cannot_be_read_is_refused(part: str) -> None:
    with pytest.raises(RecipeError, match="It may set any key, so no default can stand for one"):
        import_text(f"{VERL} {N}=4 {part}", "a.sh")


def test_a_part_that_is_empty_unless_somebody_sets_it_is_read() -> None:
    assert lines_of(f"{VERL} {N}=4 ${{ARGS:-}} $@")["rollout.group_size"] == 4


def test_machines_and_megatrons_own_names() -> None:
    sizes = "--num_generations 8 --per_device_train_batch_size 8"
    lines = lines_of(f"export NNODES=2\nexport NPROC_PER_NODE=8\n{SWIFT} {sizes}")
    assert lines["rollout.prompts_per_step"] == 16
    megatron = (
        SWIFT.replace("swift", "megatron", 1) + "--num_generations 8 --micro_batch_size 4 --global_batch_size 128"
    )
    lines = lines_of(f"{megatron} --steps_per_generation 4 --lr 2e-6 --train_iters 100 --lr_warmup_fraction 0.05")
    assert (lines["rollout.prompts_per_step"], lines["learner.minibatch_prompts"]) == (64, 16)
    assert (lines["learner.learning_rate"], lines["learner.warmup"], lines["trainer.steps"]) == (2e-6, 5, 25)


def test_a_system_prompt_that_is_a_file(tmp_path: Path) -> None:
    made = import_text(SWIFT + "--num_generations 1 --system p.txt", "a.sh", folder=tmp_path)
    assert to_fill_in(made) == {"data.system_prompt"}
    (tmp_path / "p.txt").write_text("Think first.")
    assert lines_of(SWIFT + "--system p.txt", folder=tmp_path)["data.system_prompt"] == "Think first."


@each(
    ("text", "name", "said"),
    [
        ("sft: {max_num_steps: 3}\npolicy: {model_name: M}", "a.yaml", "dapo sft"),
        ("dpo: {max_num_steps: 3}\npolicy: {model_name: M}", "a.yaml", "DPO"),
        ("ppo: {num_prompts_per_step: 3}\npolicy: {model_name: M}", "a.yaml", "PPO with a critic"),
        ("defaults: ../../sft.yaml\npolicy: {model_name: M}", "a.yaml", "dapo sft"),
        ("grpo: {num_prompts_per_step: 3}\ndata: {train: {dataset_name: clevr-cogent}}", "a.yaml", "images"),
        ("uv run -m skyrl.train.main_sft trainer.epochs=1 model.path=M", "a.sh", "dapo sft"),
        ("uv run -m skyrl.main_base trainer.algorithm.advantage_estimator=gae", "a.sh", "PPO with a critic"),
        ("uv run -m examples.main_on_policy_distill trainer.algorithm.eps_clip_low=0.2", "a.sh", "distillation"),
        (VERL.replace("=grpo", "=gae") + f"{N}=4", "a.sh", "PPO with a critic"),
        (VERL + "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct", "a.sh", "images"),
        ("swift rlhf --rlhf_type dpo --model M --dataset d", "a.sh", "DPO"),
        ("swift sft --model M --dataset d", "a.sh", "dapo sft"),
        ("trl sft --model_name_or_path M --dataset_name d", "a.sh", "dapo sft"),
        ("from trl import SFTConfig\na = SFTConfig(learning_rate=1e-5)", "a.py", "dapo sft"),
        ("critic: {path: M}\nactor: {path: M}\ngconfig: {n_samples: 1}\ntrain_dataset: {path: d}", "a.yaml", "critic"),
    ],
)
def test_another_method_is_refused_by_what_names_it(text: str, name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        import_text(text, name)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            VERL + f"{N}=4 distillation.enabled=True distillation.teacher_models.a.model_path=T {LOSS}=forward_kl_topk",
            "forward_kl_topk compares more than the sampled token",
        ),
        (VERL + f"{N}=4 {TWO} {LOSS}=k3", "2 teachers are named"),
        (VERL + f"{N}=4 {ONE} {LOSS}=k1 {DISTIL}.use_policy_gradient=True", "verl clips its advantage apart"),
        (
            SWIFT + "--teacher_model_server http://localhost:8000",
            "a server judges at temperature 1, and responses are sampled at 0.9",
        ),
        (VERL + "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "loss_mode = geo_mean"),
        (VERL.replace("=grpo", "=remax") + f"{N}=4", "adv_estimator = remax"),
        (f"python3 -m verl.trainer.main_ppo {N}=4", "verl's default of algorithm.adv_estimator"),
        (SWIFT + "--sdar_loss_coef 0.1", "sdar_loss_coef = 0.1"),
        (SWIFT + "--loss_type fipo", "loss_type = fipo"),
        (SWIFT + "--advantage_estimator reinforce_plus_plus", "advantage_estimator = reinforce_plus_plus"),
        ("uv run -m skyrl.main_base trainer.algorithm.policy_loss_type=rollout_is", "policy_loss_type = rollout_is"),
        (SWIFT.replace("accuracy", "accuracy my_rule"), "reward functions that are lost: my_rule"),
        (VERL.replace("verl.trainer.main_ppo", "recipe.own.main_own") + f"{N}=4", "recipe.own.main_own"),
        (VERL.replace("verl.trainer.main_ppo", "verl_tool.trainer.main_ppo") + f"{N}=4", "verl_tool.trainer.main_ppo"),
        (VERL.replace("verl.trainer.main_ppo", "recipe.own.grpo_main") + f"{N}=4", "recipe.own.grpo_main"),
        (f"python3 -u train.py algorithm.adv_estimator=grpo {N}=4", "train.py"),
    ],
)
def test_what_is_not_here_is_said_in_the_first_line_and_on_the_screen(
    text: str, key: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    assert first_line(text).startswith("# CAUTION")
    assert key in first_line(text)
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text(text)
    assert main(["import", "a.sh", "-o", "a.yaml"]) == 0
    assert key in capsys.readouterr().out.splitlines()[0]


ALONE = {
    "rewards": [{"name": "accuracy", "kind": "math", "weight": 0}],
    "algorithm.dynamic_sampling.mode": "off",
    "algorithm.overlong_punishment.enabled": False,
}


@each(
    ("text", "name", "teacher", "alone"),
    [
        (VERL + f"{N}=1 {ONE} {LOSS}=k1 {DISTIL}.use_policy_gradient=True {DISTIL}.use_task_rewards=False", "a.sh",
         {"path": "T", "term": "advantage"}, True),
        (VERL + f"{N}=4 {ONE} {DISTIL}.distillation_loss_coef=0.5", "a.sh",
         {"path": "T", "term": "loss", "estimator": "k3", "coefficient": 0.5}, False),
        (VERL + f"{N}=4 distillation.enabled=True distillation.teacher_model.path=T {LOSS}=mse", "a.sh",
         {"path": "T", "term": "loss", "estimator": "k2"}, False),
        (SWIFT + "--teacher_model T --teacher_kl_coef 0.1 --offload_teacher_model true", "a.sh",
         {"path": "T", "coefficient": 0.1, "offload": True}, False),
        (SWIFT.partition("--reward_funcs")[0] + "--teacher_model T", "a.sh", {"path": "T"}, True),
        (SWIFT + "--temperature 1.0 --teacher_model_server http://teacher:8000/v1 --teacher_kl_coef 0.1 "
         "--offload_teacher_model true", "a.sh",
         {"path": "http://teacher:8000", "coefficient": 0.1}, False),
        (SWIFT + "--temperature 1.0 --teacher_model_server localhost:8000", "a.sh",
         {"path": "http://localhost:8000"}, False),
        ("grpo: {num_prompts_per_step: 4, adv_estimator: {name: opd}}\non_policy_distillation: {enabled: true, "
         "teacher_model_by_agent_name: {a: T, b: T}, non_colocated_teachers: {enabled: true}}", "a.yaml",
         {"path": "T"}, True),
    ],
)  # fmt: skip
def test_teachers_that_are_here_are_found(text: str, name: str, teacher: dict, alone: bool) -> None:
    lines = lines_of(text, name)
    assert first_line(text, name).startswith("# Made by")
    found = {
        key.removeprefix("algorithm.teacher."): v for key, v in lines.items() if key.startswith("algorithm.teacher.")
    }
    assert found == teacher
    assert ({key: lines.get(key) for key in ALONE} == ALONE) is alone


def test_a_teacher_that_is_off_is_no_warning() -> None:
    text = "grpo: {num_prompts_per_step: 4}\non_policy_distillation: {enabled: false, kl_coef: 1.0}"
    assert first_line(text, "a.yaml").startswith("# Made by")


def test_losses_and_advantages_that_are_here_are_found() -> None:
    actor = "actor_rollout_ref.actor"
    lines = lines_of(f"{VERL} {actor}.loss_mode=kl_cov {actor}.k_percent=0.2 {actor}.ppo_kl_coef=2")
    assert [lines[f"algorithm.loss.{key}"] for key in ("kind", "share", "coefficient")] == ["kl_cov", 0.002, 2]
    bounds = f"{actor}.clip_cov_ratio=0.0004 {actor}.clip_cov_lb=2.0 {actor}.clip_cov_ub=6.0 {actor}.k_percent=0.2"
    lines = lines_of(f"{VERL} {actor}.loss_mode=clip_cov {bounds}")
    assert [lines[f"algorithm.loss.{key}"] for key in ("share", "above", "below")] == [0.0004, 2.0, 6.0]
    clips = f"{actor}.clip_ratio_low=10 {actor}.clip_ratio_high=0.2"
    lines = lines_of(f"{VERL} {actor}.policy_loss.loss_mode=cispo {clips}")
    assert (lines["algorithm.loss.cap"], lines["algorithm.loss.floor"]) == (1.2, 0.0)
    for text, name in (
        ("grpo: {num_prompts_per_step: 4, adv_estimator: {name: gdpo}}", "a.yaml"),
        (SWIFT + "--scale_rewards gdpo", "a.sh"),
        (VERL.replace("=grpo", "=gdpo") + f"{N}=4", "a.sh"),
    ):
        assert lines_of(text, name)["algorithm.advantage.kind"] == "gdpo"
        assert first_line(text, name).startswith("# Made by")


def test_nemo_rls_validation() -> None:
    grpo = "grpo: {num_prompts_per_step: 4, max_val_samples: %s, val_num_generations_per_prompt: 2}\n"
    generation = "policy: {generation: {temperature: 0.8, val_temperature: '${.temperature}', val_top_p: 0.7}}\n"
    data = "data: {validation: {dataset_name: %s, repeat: 16}}"
    lines = lines_of(grpo % 960 + generation + data % "DAPOMathAIME2024", "a.yaml")
    assert (lines["validation.samples"], "validation.limit" in lines) == (64, False)  # 32 rows of each, twice
    assert (lines["validation.temperature"], lines["validation.top_p"]) == (0.8, 0.7)
    lines = lines_of(grpo % 480 + data % "AIME2024", "a.yaml")
    assert lines["validation.samples"] == 32
    lines = lines_of(grpo % 100 + data.replace("16", "1") % "openai/gsm8k", "a.yaml")
    assert (lines["validation.samples"], lines["validation.limit"]) == (2, 100)


def test_a_script_that_calls_another_with_its_overrides(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = "uv run -m skyrl.main_base trainer.algorithm.policy_loss_type=regular"
    base += " trainer.policy.optimizer_config.lr=${LR:-1e-6}"
    Path("base.sh").write_text(f'{base} generator.n_samples_per_prompt=4 "$@"\n')
    Path("own.sh").write_text('export LR=2e-6\nOTHER=3\nbash base.sh trainer.algorithm.policy_loss_type=gspo "$@"\n')
    made = import_file(Path("own.sh"))
    lines = {key: line.value for key, line in made.reading.lines.items()}
    assert (lines["algorithm.loss.ratio"], lines["rollout.group_size"]) == ("sequence", 4)
    assert lines["learner.learning_rate"] == 2e-6
    assert "It also read base.sh" in made.text


SCRIPT = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
SYSTEM = "Answer in a box."
def correctness_reward(prompts, completions, answer, **kwargs): return [1.0] * len(prompts)
def format_reward(completions, **kwargs): return [0.5] * len(completions)
data = load_dataset("openai/gsm8k", "main", split="train")
data = data.map(lambda row: {"prompt": [{"role": "system", "content": SYSTEM}]})
args = GRPOConfig(lr_scheduler_type="constant_with_warmup", reward_weights=[2.0, 1.0])
GRPOTrainer(model="M", args=args, train_dataset=data, reward_funcs=[correctness_reward, format_reward, lambda **k: [0]])
"""


def test_a_script_of_trl_brings_its_data_prompt_and_rewards() -> None:
    made = import_text(SCRIPT, "train_grpo.py")
    lines = {key: line.value for key, line in made.reading.lines.items()}
    assert lines["data.train"] == [{"path": "hub:openai/gsm8k:main", "split": "train"}]
    assert lines["data.system_prompt"] == "Answer in a box."
    functions = [(reward["function"], reward.get("weight", 1.0)) for reward in lines["rewards"]]
    assert functions == [("train_grpo:correctness_reward", 2.0), ("train_grpo:format_reward", 1.0)]
    assert "reward functions that are lost: lambda" in made.text.splitlines()[0]
    assert "falls to its end" not in made.text


@pytest.mark.parametrize("files", ['"own.jsonl"', '{"train": "own.jsonl", "test": "other.jsonl"}'])
def test_a_script_of_trl_with_a_file_of_its_own_has_that_file(files: str) -> None:
    text = SCRIPT.replace('"openai/gsm8k", "main", split', f'"json", data_files={files}, split')
    lines = {key: line.value for key, line in import_text(text, "a.py").reading.lines.items()}
    assert lines["data.train"][0]["path"] == "own.jsonl"


def test_accuracy_is_the_reward_of_a_script_that_says_what_is_right() -> None:
    text = SCRIPT.replace("[correctness_reward, format_reward", "[format_reward, correctness_reward")
    made = import_text(text, "train_grpo.py")
    named = {one["function"]: one["name"] for one in made.reading.lines["rewards"].value}
    assert named == {"train_grpo:format_reward": "format_reward", "train_grpo:correctness_reward": "accuracy"}
    assert any("correctness_reward as `accuracy`" in said for said in made.reading.said)


def test_a_trainer_of_another_name_than_trls_is_the_first_line() -> None:
    text = SCRIPT.replace("GRPOTrainer(model", "MyGRPOTrainer(model").replace(", lambda **k: [0]", "")
    assert "MyGRPOTrainer is not TRL's own trainer" in first_line(text, "a.py")


def test_a_script_of_trl_whose_configuration_comes_from_a_command_line_is_refused() -> None:
    text = SCRIPT.replace("GRPOConfig(lr_scheduler_type", "parse(lr_scheduler_type")
    with pytest.raises(RecipeError, match="made elsewhere"):
        import_text(text, "a.py")


def test_greedy_evaluation_of_earlier_releases_of_verl() -> None:
    val = "actor_rollout_ref.rollout.val_kwargs"
    text = f"{VERL} {val}.do_sample=False {val}.temperature=0.6 actor_rollout_ref.rollout.mode="
    assert lines_of(text + "sync")["validation.greedy"] is True
    assert lines_of(text + "async")["validation.temperature"] == 0.6


def test_what_is_off_is_listed_with_verbose_only(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"grpo": {"num_prompts_per_step": 4, "stop_at_validation_metric": False, "odd": 3}, "data": {"seed": 1}}
    Path("a.yaml").write_text(json.dumps(settings))
    assert main(["import", "a.yaml", "--from", "nemo-rl"]) == 0
    brief = capsys.readouterr()
    assert "grpo.stop_at_validation_metric" not in brief.out
    assert "could not be read: 1: grpo.odd" in brief.err
    assert main(["import", "a.yaml", "--from", "nemo-rl", "--verbose"]) == 0
    assert "grpo.stop_at_validation_metric" in capsys.readouterr().out
    assert not {"as said above", "with it", "as there"} & {line.partition("# ")[2] for line in brief.out.splitlines()}


def test_steps_are_counted_where_the_data_are_there(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"a": 1}\n' * 100)
    text = SWIFT + "--num_train_epochs 2 --num_generations 4 --per_device_train_batch_size 16"
    assert lines_of(text, folder=tmp_path)["trainer.steps"] == 50  # 2 x 100 problems, 4 in each step
    made = import_text(text + " --warmup_ratio 0.1", "a.sh")
    assert to_fill_in(made) == {"learner.warmup"}
    assert made.reading.lines["trainer.steps"].fill_in
    assert "  steps: FILL_IN " in made.text
    assert lines_of(text + " --warmup_ratio 0.1", folder=tmp_path)["learner.warmup"] == 5


def test_flags_that_branches_give_other_values_keep_their_values() -> None:
    branch = "if x; then A+=(--learning_rate 1e-6 --beta 0); else A+=(--learning_rate 2e-6 --beta 0); fi\n"
    made = import_text(f'A=(--num_generations 4)\n{branch}{SWIFT} "${{A[@]}}"', "a.sh")
    assert "learner.learning_rate" in to_fill_in(made)
    assert made.reading.lines["algorithm.kl_coefficient"].value == 0
    text = 'if x; then A="a.b=1 data.train_batch_size=8"; else A="data.train_batch_size=8 a.b=2"; fi\n'
    made = import_text(f"{text}{VERL} {N}=4 $A", "a.sh")
    assert made.reading.lines["rollout.prompts_per_step"].value == 8
    assert "a.b=2: could not be read: only some branches of the script set it" in made.text


@pytest.mark.parametrize("loop", ['while [[ "$#" -gt 0 ]]', "while [ $# -gt 0 ]", "while [[ $# != 0 ]]"])
def test_a_loop_over_arguments_that_nobody_gives_sets_nothing(loop: str) -> None:
    script = f'G=8\n{loop}; do\n  case "$1" in\n    --g) G="$2"; shift 2 ;;\n    *) exit 1 ;;\n  esac\ndone\n'
    assert lines_of(f"{script}{VERL} {N}=$G")["rollout.group_size"] == 8


def test_a_script_that_is_called_with_arguments_runs_its_loop(tmp_path: Path) -> None:
    loop = 'G=8\nwhile [ $# -gt 0 ]; do\n  case "$1" in\n    --g) G="$2"; shift 2 ;;\n  esac\ndone\n'
    (tmp_path / "base.sh").write_text(f"{loop}{VERL} {N}=$G data.train_batch_size=8")
    made = import_text("bash base.sh --g 4", "a.sh", folder=tmp_path)
    assert to_fill_in(made) >= {"rollout.group_size"}


@pytest.mark.parametrize("gap", ["    # of rollouts\n", "\n", "   \n    #### Sampling\n", "\n\n"])
def test_a_command_that_goes_on_after_comments_and_empty_lines(gap: str) -> None:
    lines = lines_of(f"{VERL} \\\n{gap}    {N}=4 \\\n{gap}  data.train_batch_size=8 \\\n\necho done --a.b=1\n")
    assert (lines["rollout.group_size"], lines["rollout.prompts_per_step"]) == (4, 8)


def test_a_command_over_several_lines_of_a_quotation_with_a_here_document_before() -> None:
    script = "cat > a.txt <<'END'\nit's A=(\nEND\nX=$(echo ')' | sed 's/)//')\n# don't\n"
    command = f'COMMAND="{VERL} \\\n  {N}=4 \\\n  # {N}=8 \\\n  data.train_batch_size=8" sbatch ray.sub'
    lines = lines_of(script + command)
    assert (lines["rollout.group_size"], lines["rollout.prompts_per_step"]) == (4, 8)


@pytest.mark.parametrize("end", ["'", '"', "A=(x", "${X"])
def test_what_a_script_opens_and_never_ends_is_refused(end: str) -> None:
    with pytest.raises(RecipeError, match=r"line 2 opens an? .*that does not end"):
        import_text(f"{VERL} {N}=4\n{end}\n", "a.sh")


@each("value", ["$WORLD_SIZE", "<num_nodes>", "$(nproc)"])
@each("name", ["NNODES", "NPROC_PER_NODE"])
def test_processes_that_a_script_does_not_say_are_to_fill_in(name: str, value: str) -> None:
    script = f"export NPROC_PER_NODE=8\nexport {name}={value}\n{SWIFT} --num_generations 8"
    made = import_text(script, "a.sh")
    assert {"rollout.prompts_per_step", "learner.minibatch_prompts"} <= to_fill_in(made)
    assert "rollout.prompts_per_step" not in to_fill_in(import_text(script, "a.sh", devices=16))


def test_responses_that_are_no_whole_groups_say_that_devices_are_missing() -> None:
    made = import_text("num_generations: 7\nper_device_train_batch_size: 16", "a.yaml", "trl")
    assert "rollout.prompts_per_step" in to_fill_in(made)
    assert "--devices N" in made.reading.lines["rollout.prompts_per_step"].comment
    made = import_text("num_generations: 7\nper_device_train_batch_size: 16", "a.yaml", "trl", devices=7)
    assert made.reading.lines["rollout.prompts_per_step"].value == 16


def test_small_things() -> None:
    assert (
        lines_of("actor: {path: M}\ngconfig: {n_samples: 4}\nscheduler: {type: ray}", "a.yaml")["launch.backend"]
        == "ray"
    )
    lines = lines_of(SWIFT + "--enable_thinking false")
    assert lines["data.chat_template_kwargs"] == {"enable_thinking": False}
    lines = lines_of("grpo: {num_prompts_per_step: 4}", "a.yaml")
    assert (lines["model.path"], lines["data.train"][0]["path"]) == (
        "Qwen/Qwen2.5-1.5B",
        "hub:nvidia/OpenMathInstruct-2",
    )
