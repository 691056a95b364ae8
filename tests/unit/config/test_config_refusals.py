"""What is refused, and that the message names the key, the value, what was expected and the next move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each import each

from dapo.config import load_recipe, recipe_from_dict
from dapo.config.peer_names import PEER_KEYS, peer_hint
from dapo.config.settings import settings
from dapo.errors import RecipeError

SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}
LEARNER = ["algorithm.old_logprobs=learner"]


def refusal(*overrides: str, given: dict[str, Any] | None = None) -> str:
    with pytest.raises(RecipeError) as error:
        recipe_from_dict(given or SMALL, overrides)
    assert error.value.exit_code == 2
    return str(error.value)


def test_the_base_of_these_tests_is_good() -> None:
    assert recipe_from_dict(SMALL).warnings == ()


@each(
    ("override", "expected"),
    [
        # unknown keys: the nearest right name
        ("algorithm.clip.hi=0.3", ["algorithm.clip.hi: 0.3", "`algorithm.clip.high`"]),
        ("steps=3", ["`trainer.steps`"]),
        ("learner.learning_rat=1", ["`learner.learning_rate`"]),
        ("learner.lr=1e-5", ["`learner.learning_rate`"]),
        ("trainer.seed=3", ["`run.seed`"]),
        ("zzzz=1", ["zzzz: 1", "no such key"]),
        ("data.train=[{path:a.jsonl}]", ["data.train.0.path:a.jsonl", "a space after the colon: `path: a.jsonl`"]),
        # a section that is given by its first key, or as one where a list is meant
        ("model=builtin/signed-sum", ['model: "builtin/signed-sum"', "a section", "such as {path: ./my-model}"]),
        ("data.train=a.jsonl", ["a list of sections", "such as [{path: train.jsonl}]"]),
        ("data.train=[]", ["data.train: []", "with at least one in it, such as [{path: train.jsonl}]"]),
        ("rewards={kind: exact}", ["a list of sections", "such as [{name: accuracy, kind: math}]"]),
        ("algorithm.clip=high", ["a section", "its keys: low, high, dual"]),
        ("rollout.stop=</a>", ["a list of texts", 'write ["</a>"]']),
        # settings of another kind of source
        ("data.train.1={path: a.jsonl, seed: 3}", ["data.train.1.seed: 3", "procedural `task`", "run.seed"]),
        ("data.train.0.split=test", ['data.train.0.split: "test"', "not to a procedural task"]),
        # wrong types and values
        ("trainer.steps=1e2", ["trainer.steps: 100.0", "a whole number from 0 to", "write 100"]),
        ("trainer.steps=-1", ["trainer.steps: -1", "from 0"]),
        ('trainer.steps="5"', ['trainer.steps: "5"', "write it without quotes: 5"]),
        ("learner.learning_rate=true", ["learner.learning_rate: true", "a number from 1e-15 to 10"]),
        ("learner.learning_rate=.inf", ["learner.learning_rate"]),
        ("algorithm.advantage_clip={low: 0, high: 0}", ["makes every advantage 0", "low below 0"]),
        ("algorithm.overlong_filtering=on", ['"on"', "true or false", "write true"]),
        ("algorithm.overlong_filtering=1", ["true or false"]),
        ("algorithm.loss.reduction=token-mean", ["`token_mean`"]),
        ("algorithm.loss.kind=cipso", ["`cispo`", "package.module:function"]),
        ("algorithm.dynamic_sampling.mode=false", ["`off`, `filter`, `mask`", "true and false are not among them"]),
        ("preset=dappo", ["did you mean `dapo`?"]),
        ("algorithm.clip=0.2", ["a section", "low, high, dual"]),
        ("model.path=null", ["model.path: null", "text"]),
        ("run.seed=null", ["leave the key out"]),
        ("learner.betas=[0.9]", ["learner.betas: [0.9]", "a list of 2 numbers"]),
        ("rewards=[]", ["rewards", "there is no teacher"]),
        ("rewards.0.weight=two", ['rewards.0.weight: "two"', "a number"]),
        ("rewards.3.weight=2", ["`rewards` is a list of 1 item", "0 to 1"]),
        ("rewards.first.weight=2", ["a number from 0 to 1"]),
        ("run.name.first=x", ["run.name"]),
        # overrides themselves
        ("trainer.steps", ["`trainer.steps`", "key=value"]),
        ("learner.betas=[0.9", ["not valid YAML"]),
        (r'rewards.0.pattern="a\d"', ["unknown escape character", "single quotes keep a backslash"]),
        # batch arithmetic
        ("learner.minibatch_prompts=12", ["does not divide", "32 = 2 x 12 + 8", "8, 16"]),
        ("learner.minibatch_prompts=64", ["more than rollout.prompts_per_step = 32"]),
        ("algorithm.loss.reduction=micro_batch_mean", ["algorithm.loss.reduction.sequences", "missing", "micro-batch"]),
        ("algorithm.loss.reduction.sequences=4", ["an option of algorithm.loss.reduction.kind `micro_batch_mean`"]),
        # groups
        ("rollout.group_size=1", ["a group of one", "at least 2"]),
        # ratio and sampling
        ("rollout.top_p=0.9", ["rollout.top_p: 0.9", "biased", "old_logprobs=learner"]),
        ("rollout.top_k=5", ["rollout.top_k: 5", "rollout.top_k=0"]),
        ("rollout.temperature=0", ["rollout.temperature: 0", "from 0.001"]),
        ("algorithm.correction.kind=truncate", ["old_logprobs=learner"]),
        (
            ["algorithm.old_logprobs=interpolated", "algorithm.dynamic_sampling.max_age=1"],
            ['algorithm.old_logprobs: "interpolated"', "max_age = 1", "rollout.max_staleness=2"],
        ),
        (["algorithm.old_logprobs=interpolated", "rollout.max_staleness=1"], ["max_age = 1"]),
        (
            ["algorithm.old_logprobs=interpolated", "algorithm.dynamic_sampling.mode=off"],
            ["nothing is carried over", "set sampler"],
        ),
        (
            ["algorithm.old_logprobs=interpolated", "rollout.max_staleness=2", "rollout.top_p=0.9"],
            ["rollout.top_p: 0.9", "biased"],
        ),
        (
            ["algorithm.old_logprobs=interpolated", "rollout.max_staleness=2", "learner.epochs_per_rollout=2"],
            ["learner.epochs_per_rollout: 2", "before the first of all passes", "old_logprobs=sampler or learner"],
        ),
        ("algorithm.correction.threshold=0.2", ["`mask_off_policy`", "the kind is `auto`"]),
        ("learner.epochs_per_rollout=0", ["learner.epochs_per_rollout: 0", "from 1"]),
        (
            ["algorithm.loss.kind=kl_cov", "algorithm.old_logprobs=sampler", "model.dtype=bfloat16"],
            ["algorithm.old_logprobs", "loss.kind: kl_cov", "old_logprobs=learner"],
        ),
        (["rollout.max_staleness=2", "rollout.engine=mine:Engine"], ["rollout.engine", "the learner's own tensors"]),
        ("algorithm.correction={kind: mask_token, floor: 3}", ["below cap"]),
        ("algorithm.loss.ratio=sequence", ["never bind", "3e-4 / 4e-4"]),
        ("algorithm.clip.low=1.0", ["above 0"]),
        ("algorithm.loss.reduction.length=9", ["`constant`", "the kind is `token_mean` (it has no options)"]),
        ("algorithm.loss.floor=0.5", ["`cispo`", "the kind is `clip` (its options: reduction, ratio)"]),
        # length penalty
        ("algorithm.overlong_punishment.cache_length=2000", ["at most 1024", "null takes a fifth (204)"]),
        ("algorithm.overlong_punishment.max_length=4096", ["starts above 3277 tokens", "1024", "never applies"]),
        # reward scaling
        ("algorithm.reward_scaling.source_max=0", ["above source_min = 0"]),
        ("algorithm.reward_scaling.target_max=-1", ["equals target_min"]),
        ("algorithm.reward_scaling.target_max=-2", ["right answers would be punished"]),
        # rewards
        ("rewards.0.name=correct", ["`accuracy`"]),
        ("rewards.0.kind=function", ["needs function"]),
        ("rewards.0.kind=regex", ["needs a pattern"]),
        ("rewards.0.weight=0", ["every weight is 0"]),
        ("rewards.0.function=my.module:score", ["only read with kind: function"]),
        ("rewards.0.pattern=x", ["only read with kind: regex or exact"]),
        ("rewards.0.sources=[gsm8k]", ["no data source called gsm8k", "signed_sum"]),
        # dynamic sampling
        ("algorithm.dynamic_sampling.metric=acc", ["no reward of that name", "`accuracy`"]),
        ("algorithm.dynamic_sampling.band=[0.9, 0.1]", ["low below high"]),
        ("algorithm.dynamic_sampling.oversample=30", ["passes cap.groups = 20"]),
        ("algorithm.dynamic_sampling.cap.tokens=100", ["512 responses"]),
        # data
        ("data.train.0.task=sums", ["signed_sum", "reasoning_gym/NAME"]),
        ("data.train.0.path=hub:a/b", ["either `path` or `task`", "both"]),
        ("data.validation.0.seed=0", ["the very problems of a training source"]),
        ("data.prompt_template=Solve", ["has no {problem}"]),
        ("data.prompt=template", ["needs a text with {problem}"]),
        # the rest
        ("run.name=a/b", ["one folder"]),
        ("model.device=gpu", ["`cuda`"]),
        ("learner.betas=[0.9, 1.0]", ["[0, 1)"]),
        ("model.lora.rank=0", ["model.lora.rank: 0", "from 1 to"]),
        ("model.lora.target_modules=[]", ["is empty", "all-linear"]),
        ("algorithm.kl_coefficient=-0.1", ["algorithm.kl_coefficient: -0.1", "from 0"]),
        ("algorithm.loss={kind: sapo, ratio: sequence}", ["`clip`", "`sapo` (its options: reduction, positive,"]),
        ("algorithm.correction.floor=0.9", ["`mask_token`, `mask_sequence`", "the kind is `auto` (its options: cap)"]),
        ("algorithm.correction={kind: untruncated, cap: 9}", ["the kind is `untruncated` (it has no options)"]),
        ("algorithm.correction={kind: mask_token, token_cap: 9}", ["`mask_token` (its options: cap, floor)"]),
        ("algorithm.correction.sequence_cap=9", ["`truncate_sequence`"]),
        ("algorithm.loss={kind: clip_cov, above: 6}", ["algorithm.loss.below", "above 6"]),
        ("algorithm={advantage: {kind: gdpo}, kl_in_reward: true, kl_coefficient: 0.1}", ["put the KL into the loss"]),
        ("algorithm.kl_estimator=k4", ["`k1`", "`k2`", "`k3`"]),
        ("algorithm.entropy_control={min: 0.1}", ["algorithm.entropy_control.max", "above min = 0.1"]),
        ("algorithm.entropy_control={target: 0.3, min: 0.01}", ["entropy_coefficient: 0", "outside 0.01 .. 0.1"]),
        # engines
        ("rollout.engine=vlm", ["`vllm`"]),
        ("rollout.engine=vllm_server", ["rollout.server.url", "http://localhost:8000"]),
        (
            ["rollout.embedded.cuda_graphs=true", "model.device=cpu"],
            ["rollout.embedded.cuda_graphs: true", "model.device is cpu; take it out"],
        ),
        (
            ["rollout.embedded.cuda_graphs=true", "rollout.engine=vllm"],
            ["rollout.embedded.cuda_graphs: true", "rollout.engine is vllm; take it out"],
        ),
        ("rollout.server.url=localhost:8000", ['"localhost:8000"', "http://HOST:PORT"]),
        ("rollout.server.url=http://localhost:8000/v1", ["localhost:8000/v1", "without a path"]),
        ("rollout.vllm.gpu_memory_utilization=2", ["rollout.vllm.gpu_memory_utilization: 2", "at most 1"]),
        ("rollout.vllm.engine_args={max_num_seqs: 4}", ["engine_args.max_num_seqs: 4", "set rollout.slots instead"]),
        ("rollout.vllm.engine_args={data_parallel_size: 2}", ["data_parallel_size: 2", "tensor_parallel_size"]),
        ("rollout.vllm.engine_args={pipeline_parallel_size: 2}", ["pipeline_parallel_size: 2", "does not work"]),
        ("rollout.vllm.engine_args={data_parallel_address: host}", ["data_parallel_address", "does not work"]),
        ("rollout.vllm.engine_args={nnodes: 2}", ["nnodes: 2", "does not work"]),
        ("rollout.server.url=http://me:pw@127.0.0.1:8000", ["a user or a password", "rollout.server.api_key_variable"]),
        ("rollout.vllm.engine_args={logprobs_mode: raw_logits}", ["fixed here as processed_logprobs", "take it out"]),
    ],
)
def test_refused_with_a_remedy(override: str | list[str], expected: list[str]) -> None:
    message = refusal(*([override] if isinstance(override, str) else override))
    for part in expected:
        assert part in message, message


def test_combinations_are_refused_together() -> None:
    message = refusal("learner.minibatch_prompts=5", "rollout.top_p=0.5", "rewards.0.name=x")
    assert "3 problems" in message or "4 problems" in message
    for key in ("learner.minibatch_prompts: 5", "rollout.top_p: 0.5", "`accuracy`"):
        assert key in message


def test_micro_batches_must_divide_the_optimiser_step() -> None:
    mean = ["algorithm.loss.reduction.kind=micro_batch_mean", "learner.minibatch_prompts=8"]
    assert "does not divide the 128 responses" in refusal(*mean, "algorithm.loss.reduction.sequences=48")
    recipe_from_dict(SMALL, [*mean, "algorithm.loss.reduction.sequences=32"])


def test_top_p_is_free_when_the_learner_recomputes() -> None:
    assert "rollout.top_p: 0.9" in refusal("rollout.top_p=0.9", "algorithm.old_logprobs=sampler")
    for other in ("algorithm.old_logprobs=learner", "rollout.engine=generate"):
        assert recipe_from_dict(SMALL, ["rollout.top_p=0.9", other]).recipe.rollout.top_p == 0.9


@pytest.mark.parametrize("temperature", ["2.5", "0.005"])
def test_vllm_knows_no_temperature_above_two_and_clamps_the_lowest(temperature: str) -> None:
    assert recipe_from_dict(SMALL, [f"rollout.temperature={temperature}"])
    for engine in ("rollout.engine=vllm", "rollout.engine=vllm_server"):
        said = refusal(f"rollout.temperature={temperature}", engine, "rollout.server.url=http://h:1")
        assert "from 0.01 to 2" in said


def test_vllm_in_the_process_sits_on_the_first_device() -> None:
    said = refusal("rollout.engine=vllm", "model.device=cuda:1")
    assert 'model.device: "cuda:1"' in said or "model.device: cuda:1" in said
    assert "CUDA_VISIBLE_DEVICES=1" in said
    for fine in ("cuda", "cuda:0", "cpu"):
        recipe_from_dict(SMALL, ["rollout.engine=vllm", f"model.device={fine}"])
    recipe_from_dict(SMALL, ["model.device=cuda:1"])


def test_one_reward_of_each_name_for_every_source() -> None:
    two = [{"name": "accuracy"}, {"name": "accuracy", "kind": "exact"}]
    assert "2 rewards called `accuracy`" in refusal(given={**SMALL, "rewards": two})
    two[0]["sources"], two[1]["sources"] = ["easy"], ["signed_sum"]  # type: ignore[assignment]
    train = [{"task": "signed_sum", "name": "easy"}, {"task": "signed_sum", "seed": 5}]
    recipe_from_dict({**SMALL, "rewards": two, "data": {**SMALL["data"], "train": train}})


def test_two_validation_sets_of_one_name() -> None:
    sets = [{"path": "hub:a/same"}, {"path": "hub:b/same"}]
    assert "2 sources are called `same`" in refusal(given={**SMALL, "data": {**SMALL["data"], "validation": sets}})


def test_line_numbers(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "model:\n  path: a/b\ndata:\n  train:\n    - task: signed_sum\n      sise: 3\nrewards:\n  - kind: function\n"
    )
    with pytest.raises(RecipeError) as error:
        load_recipe(file, ["trainer.stps=3"])
    message = str(error.value)
    assert "data.train.0.sise: 3   (line 6)" in message
    assert "`data.train.N.size`" in message
    assert "trainer.stps: 3   (override)" in message
    assert message.startswith(f"{file} was refused: 2 problems")


def test_a_missing_key_is_told_with_its_section_and_meaning(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("model: {dtype: float32}\ndata: {train: [{task: signed_sum}]}\n")
    with pytest.raises(RecipeError, match=r"model\.path   \(in the section of line 1\)\n    missing"):
        load_recipe(file)


def test_duplicate_keys_are_refused_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("run:\n  seed: 1\n  name: x\n  seed: 2\n")
    with pytest.raises(RecipeError, match=r"`run\.seed` stands twice, on lines 2 and 4"):
        load_recipe(file)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n", "a: [1\n", "a: b: c\n", "\tx: 1\n"])
def test_what_is_no_recipe_at_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=r"r\.yaml"):
        load_recipe(file)


def test_missing_files_name_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems.jsonl").touch()
    (tmp_path / "good.yaml").touch()
    message = refusal(
        given={"model": {"path": "./modl"}, "data": {"train": [{"path": "problem.jsonl"}, {"path": "x/y.jsonl"}]}}
    )
    assert "did you mean `problems.jsonl`?" in message
    assert "model.path" in message
    (tmp_path / "models.yaml").touch()  # no model, whatever its name
    assert "models.yaml" not in refusal(given={**SMALL, "model": {"path": "./modl"}})
    (tmp_path / "model").mkdir()
    assert "did you mean `model`?" in refusal(given={**SMALL, "model": {"path": "./modl"}})
    assert f"the folder {tmp_path / 'x'} does not exist" in message
    with pytest.raises(RecipeError, match=r"did you mean .*good\.yaml"):
        load_recipe(tmp_path / "goood.yaml")
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)


# ---------------------------------------------------------------------------- peers


@each(
    ("key", "ours"),
    [
        ("grpo.ratio_clip_min", "algorithm.clip.low"),
        ("ratio_clip_max", "algorithm.clip.high"),
        ("loss_fn.ratio_clip_c", "algorithm.clip.dual"),
        ("actor.eps_clip_higher", "algorithm.clip.high"),
        ("trainer.algorithm.eps_clip_high", "algorithm.clip.high"),
        ("epsilon_high", "algorithm.clip.high"),
        ("--epsilon-high", "algorithm.clip.high"),
        ("actor_rollout_ref.actor.clip_ratio_high", "algorithm.clip.high"),
        ("grpo.use_dynamic_sampling", "algorithm.dynamic_sampling.mode"),
        ("grpo.batch_multiplier", "algorithm.dynamic_sampling.oversample"),
        ("dynamic_sampling_max_gen_batches", "algorithm.dynamic_sampling.cap.groups"),
        ("actor.dynamic_sampling", "algorithm.dynamic_sampling.mode"),
        ("dynamic_sample", "algorithm.dynamic_sampling.mode"),
        ("max_resample_times", "algorithm.dynamic_sampling.cap.groups"),
        ("algorithm.dynamic_sampling.type", "algorithm.dynamic_sampling.mode"),
        ("algorithm.dynamic_sampling.max_sample_batches", "algorithm.dynamic_sampling.cap.groups"),
        ("loss_type", "algorithm.loss.reduction"),
        ("loss_fn.token_level_loss", "algorithm.loss.reduction"),
        ("trainer.algorithm.loss_reduction", "algorithm.loss.reduction"),
        ("overlong_buffer_length", "algorithm.overlong_punishment.cache_length"),
        ("trainer.algorithm.overlong_buffer.len", "algorithm.overlong_punishment.cache_length"),
        ("actor.overlong_penalty_factor", "algorithm.overlong_punishment.factor"),
        ("soft_cache_length", "algorithm.overlong_punishment.cache_length"),
        ("generator.apply_overlong_filtering", "algorithm.overlong_filtering"),
        ("grpo.num_prompts_per_step", "rollout.prompts_per_step"),
        ("num_generations", "rollout.group_size"),
        ("logger.wandb_enabled", "logging.trackers"),
        ("use_vllm", "rollout.engine"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization", "rollout.vllm.gpu_memory_utilization"),
        ("policy.generation.vllm_cfg.enforce_eager", "rollout.vllm.enforce_eager"),
        ("vllm_server_base_url", "rollout.server.url"),
        ("beta", "algorithm.kl_coefficient"),
        ("actor_rollout_ref.model.lora_rank", "model.lora.rank"),
        ("use_peft", "model.lora.rank"),
        ("kl_loss_coef", "algorithm.kl_coefficient"),
        ("actor_rollout_ref.actor.kl_loss_type", "algorithm.kl_estimator"),
        ("algorithm.use_kl_in_reward", "algorithm.kl_in_reward"),
        ("ref_model_sync_steps", "algorithm.reference.refresh_every"),
        ("entropy_coeff", "algorithm.entropy_coefficient"),
        ("entropy_target", "algorithm.entropy_control.target"),
    ],
)
def test_a_peers_key_is_answered_with_ours(key: str, ours: str) -> None:
    assert f"is called `{ours}`" in refusal(f"{key}=1")


def test_an_option_of_ones_own_loss_beside_its_kind_is_told_where_it_stands() -> None:
    """Another trainer's ``beta`` is not what is meant where a function of the user's is named."""
    message = refusal("algorithm.loss={kind: 'mine:loss', beta: 1}")
    assert "algorithm.loss.options.beta" in message
    assert "kl_coefficient" not in message
    assert "algorithm.loss.reduction" in refusal("algorithm.loss={kind: 'mine:loss', reductoin: constant}")


def test_a_pasted_block_is_answered_key_by_key() -> None:
    block = {"use_dynamic_sampling": True, "reward_shaping": {"enabled": True, "overlong_buffer_length": 4096}}
    message = refusal(given={**SMALL, "grpo": block})
    assert "3 problems" in message
    for ours in ("dynamic_sampling.mode", "overlong_punishment.enabled", "overlong_punishment.cache_length"):
        assert f"`algorithm.{ours}`" in message


def test_peer_hints_name_settings_that_exist() -> None:
    names = settings()
    assert [(k.key, o) for k in PEER_KEYS for o in k.ours if o not in names] == []
    assert "ms-swift, TRL" in (peer_hint("epsilon_high") or "")


def test_our_own_keys_are_no_peers() -> None:
    """A setting of ours must never be answered as somebody else's: the schema knows it before the peers are asked."""
    assert recipe_from_dict(SMALL, ["algorithm.overlong_filtering=true", "learner.max_grad_norm=0.5"])


@each(
    ("overrides", "part"),
    [
        (["algorithm.dynamic_sampling.cap.groups=null"], "no cap"),
        (["algorithm.dynamic_sampling.unfinished=discard"], "shorter answers"),
        (["algorithm.dynamic_sampling.mode=off", "algorithm.dynamic_sampling.max_age=9"], "nothing reads it"),
        (["algorithm.overlong_punishment.max_length=1100"], "never reached"),
        (["learner.microbatch_tokens=512"], "longest possible sequence"),
        (["run.threads=1000"], "threads wait for each other"),
        (["data.validation=[]"], "not measured"),
        (["rollout.engine=generate"], "slower"),
        (["rollout.vllm.sleep=false"], "rollout.engine is embedded"),
        (["rollout.engine=vllm", "rollout.embedded.cuda_graphs=false"], "rollout.engine is vllm"),
        (["rollout.server.patience=5"], "rollout.engine is embedded"),
        (["algorithm.truncated_vote=true"], "baseline"),
        (["learner.final_ratio=0.5"], "learner.schedule is constant"),
        (["checkpoint.best_is=highest"], "checkpoint.best is null"),
        (["trainer.early_stop.patience=9"], "trainer.early_stop.metric is null"),
        (
            ["trainer.steps=50", "learner.warmup=100", "learner.learning_rate=1e-6"],
            "(learner.warmup = 100) takes all 50 steps: the learning rate ends at 5e-07 and never reaches",
        ),
        (["trainer.steps=12"], "takes 10 of the 12 steps: only then the learning rate is at"),
        (["preset=gspo", "algorithm.loss.reduction=token_mean"], "algorithm.loss.reduction=sequence_mean"),
        (["preset=gspo", "algorithm.loss.reduction=prompt_mean"], "mean over responses"),
        (["model.dtype=bfloat16", "algorithm.old_logprobs=sampler"], "nothing corrects it"),
        (
            ["model.dtype=bfloat16", "algorithm.old_logprobs=interpolated", "rollout.max_staleness=2"],
            "old_logprobs: interpolated in bfloat16",
        ),
        (["rollout.engine=vllm", "rollout.vllm.dtype=float16", "algorithm.old_logprobs=sampler"], "in float16"),
        (["algorithm.correction.cap=3"], "sampler's log-probabilities"),
        ([*LEARNER, "rollout.top_p=0.9"], "rollout.top_p = 0.9 with algorithm.correction.kind: truncate"),
        ([*LEARNER, "rollout.top_k=5", "algorithm.correction.kind=mask_token"], "rollout.top_k = 5 with"),
    ],
)
def test_unusual_settings_are_allowed_with_a_warning(overrides: list[str], part: str) -> None:
    (warning,) = recipe_from_dict(SMALL, overrides).warnings
    assert part in warning


def test_as_many_threads_as_cores_are_usual(monkeypatch) -> None:
    monkeypatch.setattr("dapo.config.unusual.core_count", lambda: 4)
    assert not recipe_from_dict(SMALL, ["run.threads=4"]).warnings
    assert recipe_from_dict(SMALL, ["run.threads=5"]).warnings


@each(
    "overrides",
    [
        ["algorithm.correction.kind=mask_sequence", "algorithm.correction.floor=0.99", "algorithm.correction.cap=1.01"],
        ["algorithm.correction.kind=mask_sequence", "algorithm.correction.token_cap=null"],
        ["algorithm.correction.kind=truncate_sequence", "algorithm.correction.sequence_cap=3"],
        ["algorithm.correction.kind=untruncated"],
        ["model.dtype=bfloat16", "algorithm.correction.cap=3"],
        ["rollout.top_p=0.9", "algorithm.correction.kind=none"],
        ["rollout.top_k=5", "algorithm.correction.kind=report"],
    ],
)
def test_a_correction_with_its_own_bounds_passes(overrides: list[str]) -> None:
    assert recipe_from_dict(SMALL, [*LEARNER, *overrides]).warnings == ()


def test_a_schedule_that_never_starts_is_refused_in_either_unit() -> None:
    """120 optimiser steps: 60 rollout steps of two minibatches each."""
    sizes = [
        "trainer.steps=60",
        "rollout.prompts_per_step=32",
        "learner.minibatch_prompts=16",
        "learner.schedule=cosine",
    ]
    assert "the run ends after 60 steps" in refusal(*sizes, "learner.warmup=60")
    in_optimiser_steps = [*sizes, "learner.schedule_unit=optimizer"]
    assert "the run ends after 120 steps" in refusal(*in_optimiser_steps, "learner.warmup=120")
    assert recipe_from_dict(SMALL, [*in_optimiser_steps, "learner.warmup=119"]).recipe.learner.warmup == 119
    three_passes = [*in_optimiser_steps, "learner.epochs_per_rollout=3"]
    assert "the run ends after 360 steps" in refusal(*three_passes, "learner.warmup=360")
