"""The public DAPO configurations of six trainers as facts: keys and values, as their pages and scripts have them."""

VERL_32B = """\
max_response_length=$((1024 * 20))
train_prompt_bsz=512
gen_prompt_bsz=$((train_prompt_bsz * 3))
HOME_OF_DATA=${HOME_OF_DATA:-"${HOME}/verl"}
MODEL_PATH=${MODEL_PATH:-"${HOME_OF_DATA}/models/Qwen2.5-32B"}
ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" -- python3 -m recipe.dapo.main_dapo \\
    data.train_files="${HOME_OF_DATA}/data/dapo-math-17k.parquet" \\
    data.max_prompt_length=2048 data.max_response_length=${max_response_length} \\
    data.gen_batch_size=${gen_prompt_bsz} data.train_batch_size=${train_prompt_bsz} \\
    actor_rollout_ref.rollout.n=16 algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False \\
    actor_rollout_ref.actor.use_kl_loss=False \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.clip_ratio_c=10.0 \\
    algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=10 \\
    algorithm.filter_groups.metric=acc \\
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10 \\
    actor_rollout_ref.actor.optim.weight_decay=0.1 actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.loss_agg_mode=token-mean \\
    actor_rollout_ref.model.path="${MODEL_PATH}" +actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True \\
    reward_model.overlong_buffer.len=$((1024 * 4)) reward_model.overlong_buffer.penalty_factor=1.0 \\
    actor_rollout_ref.rollout.top_k=-1 trainer.total_epochs=1
"""

NEMO_7B = """\
defaults: ../../grpo_math_1B.yaml
grpo:
  num_prompts_per_step: 512
  num_generations_per_prompt: 16
  batch_multiplier: 3
  use_leave_one_out_baseline: false
  use_dynamic_sampling: true
  dynamic_sampling_max_gen_batches: 10
  reward_scaling: {enabled: true, source_min: 0.0, source_max: 1.0, target_min: -1.0, target_max: 1.0}
  reward_shaping: {enabled: true, overlong_buffer_length: 2048, overlong_buffer_penalty: 1, max_response_length: 14336}
loss_fn: {reference_policy_kl_penalty: 0.0, ratio_clip_max: 0.28, ratio_clip_c: 10}
policy:
  model_name: Qwen/Qwen2.5-Math-7B
  train_global_batch_size: 512
  max_total_sequence_length: 16384
  optimizer: {kwargs: {lr: 1.0e-6, weight_decay: 0.1}}
  scheduler:
    - {name: torch.optim.lr_scheduler.LinearLR, kwargs: {total_iters: 10}}
    - {name: torch.optim.lr_scheduler.ConstantLR, kwargs: {total_iters: 10000000000}}
    - milestones: [10]
  generation: {max_new_tokens: "${policy.max_total_sequence_length}"}
data: {max_input_seq_length: 2048, dataset_name: DAPOMath17K}
"""

NEMO_PAGE = """\
grpo:
  use_dynamic_sampling: true
  num_prompts_per_step: 512
  num_generations_per_prompt: 16
  batch_multiplier: 3
  dynamic_sampling_max_gen_batches: 10
  reward_scaling: {enabled: true, source_min: 0.0, source_max: 1.0, target_min: -1.0, target_max: 1.0}
  reward_shaping:
    {enabled: true, overlong_buffer_length: 4096, overlong_buffer_penalty: 1.0, max_response_length: 20480}
loss_fn: {ratio_clip_max: 0.28, token_level_loss: true}
policy: {max_total_sequence_length: 20480}
"""

SKYRL_GSM8K = """\
DATA_DIR="$HOME/data/gsm8k"
uv run --isolated --extra vllm -m examples.algorithms.dapo.main_dapo \\
  data.train_data="['$DATA_DIR/train.parquet']" trainer.algorithm.policy_loss_type="dual_clip" \\
  +trainer.algorithm.overlong_buffer.len=512 +trainer.algorithm.overlong_buffer.penalty_factor=1.0 \\
  trainer.algorithm.loss_reduction="token_mean_legacy" generator.apply_overlong_filtering=true \\
  trainer.algorithm.use_kl_loss=false trainer.algorithm.clip_ratio_c=10.0 \\
  trainer.policy.model.path="Qwen/Qwen2.5-1.5B-Instruct" trainer.algorithm.dynamic_sampling.type=filter \\
  trainer.algorithm.dynamic_sampling.max_sample_batches=30 trainer.algorithm.eps_clip_low=0.2 \\
  trainer.algorithm.eps_clip_high=0.28 trainer.epochs=20 trainer.train_batch_size=1024 \\
  trainer.policy_mini_batch_size=256 trainer.micro_train_batch_size_per_gpu=64 trainer.max_prompt_length=512 \\
  generator.sampling_params.max_generate_length=1024 trainer.policy.optimizer_config.lr=1.0e-6 \\
  trainer.policy.optimizer_config.weight_decay=0.1 environment.env_class=gsm8k generator.n_samples_per_prompt=5 \\
  $@
"""

AREAL_GSM8K = """\
total_train_epochs: 10
allocation_mode: sglang:d4p1t1+d4p1t1
dynamic_bs: true
rollout: {max_head_offpolicyness: 2}
gconfig: {n_samples: 4, max_new_tokens: 4096, max_tokens: 2048, temperature: 1.0}
actor:
  path: Qwen/Qwen2.5-1.5B
  optimizer: {lr: 1.7e-5, weight_decay: 0.017}
  max_new_tokens: ${gconfig.max_new_tokens}
  overlong_reward_penalty: true
  overlong_tokens: 512
  overlong_penalty_factor: 1.0
  eps_clip: 0.2
  eps_clip_higher: 0.28
  reward_scaling: 10.0
  reward_bias: -0.5
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  recompute_logprob: true
  use_decoupled_loss: true
train_dataset: {batch_size: 256, path: openai/gsm8k}
"""

SWIFT_PAGE = """\
NPROC_PER_NODE=8 \\
swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --train_type full --dataset AI-MO/NuminaMath-TIR#5000 \\
    --reward_funcs accuracy soft_overlong --soft_cache_length 4096 --max_completion_length 8192 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --steps_per_generation 16 --num_generations 16 \\
    --loss_type bnpo --epsilon_high 0.28 --dynamic_sample true --max_resample_times 3 --overlong_filter true \\
    --use_vllm true --beta 0.0 --learning_rate 1e-6
"""

TRL_SCRIPT = """\
import os
from trl import GRPOConfig, GRPOTrainer
os.system("touch EXECUTED")
lr = 1e-6
SLICES = 4 * 2
config = GRPOConfig(output_dir="x", loss_type="dapo", epsilon_high=0.28, learning_rate=lr,
    per_device_train_batch_size=8, gradient_accumulation_steps=4, steps_per_generation=SLICES, num_generations=16,
    max_completion_length=1024, mask_truncated_completions=True, max_steps=100, seed=int(os.environ["SEED"]))
trainer = GRPOTrainer("m", args=config, model="Qwen/Qwen2.5-0.5B", train_dataset=load_dataset("trl-lib/a", split="t"),
    reward_funcs=[accuracy_reward, get_soft_overlong_punishment(1024, 256)])
"""
