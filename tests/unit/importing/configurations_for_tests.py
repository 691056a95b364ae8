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

# Further configurations of the same repositories: other sizes, other ways to say the same.

VERL_7B_MATH = """\
max_response_length=$((1024 * 8))
overlong_buffer_len=$((1024 * 4))
use_kl_loss=False
NNODES=${NNODES:-8}
python3 -m verl.trainer.main_ppo \\
    data.truncation='left' data.max_prompt_length=$((1024 * 2)) data.max_response_length=${max_response_length} \\
    data.train_batch_size=512 actor_rollout_ref.rollout.n=16 algorithm.adv_estimator=grpo \\
    algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 \\
    actor_rollout_ref.actor.use_kl_loss=${use_kl_loss} actor_rollout_ref.actor.kl_loss_coef=0.0 \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.clip_ratio_c=10.0 actor_rollout_ref.actor.loss_agg_mode="token-mean" \\
    +actor_rollout_ref.model.override_config.max_position_embeddings=32768 \\
    actor_rollout_ref.model.path="${HOME}/verl/models/Qwen2.5-Math-7B" \\
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10 \\
    actor_rollout_ref.actor.optim.weight_decay=0.1 actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 actor_rollout_ref.rollout.val_kwargs.n=1 \\
    reward_model.reward_manager=dapo \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=${overlong_buffer_len} \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.log=False \\
    +reward_model.reward_kwargs.max_resp_len=${max_response_length} \\
    trainer.logger=['console','wandb'] trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES}" \\
    trainer.total_epochs=10 trainer.total_training_steps=200
"""

VERL_7B_FIRST = """\
enable_overlong_buffer=True
train_prompt_bsz=512
gen_prompt_bsz=$((train_prompt_bsz * 3))
use_token_level_loss=True
infer_micro_batch_size=null
ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" \\
    -- python3 -m recipe.dapo.src.main_dapo \\
    data.max_prompt_length=$((1024 * 2)) data.max_response_length=$((1024 * 2)) \\
    data.gen_batch_size=${gen_prompt_bsz} data.train_batch_size=${train_prompt_bsz} data.truncation='left' \\
    actor_rollout_ref.rollout.n=16 actor_rollout_ref.actor.kl_loss_coef=0.0 \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.0 algorithm.filter_groups.enable=True \\
    algorithm.filter_groups.metric=acc algorithm.filter_groups.max_num_gen_batches=10 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size=${infer_micro_batch_size} \\
    +actor_rollout_ref.model.override_config.attention_dropout=0. \\
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10 \\
    actor_rollout_ref.actor.optim.weight_decay=0.1 actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.use_token_level_loss=${use_token_level_loss} reward_model.reward_manager=dapo \\
    custom_reward_function.overlong_buffer.enable=${enable_overlong_buffer} \\
    custom_reward_function.overlong_buffer.len=512 custom_reward_function.overlong_buffer.penalty_factor=1.0 \\
    +trainer.val_before_train=True trainer.total_epochs=1
"""

VERL_30B_FP8 = """\
rollout_is=token
rollout_rs=null
enable_filter_groups=True
gen_prompt_bsz=96
RAY_ADDRESS='http://127.0.0.1:8265' ray job submit --runtime-env=${RUNTIME_ENV} \\
-- python3 -m recipe.dapo.main_dapo \\
    data.filter_overlong_prompts=True data.max_prompt_length=$((1024)) data.max_response_length=$((1024 * 20)) \\
    data.train_batch_size=32 data.gen_batch_size=${gen_prompt_bsz} actor_rollout_ref.rollout.n=16 \\
    algorithm.adv_estimator=grpo algorithm.filter_groups.enable=${enable_filter_groups} \\
    algorithm.filter_groups.max_num_gen_batches=10 algorithm.filter_groups.metric=acc \\
    algorithm.rollout_correction.rollout_is=${rollout_is} algorithm.rollout_correction.rollout_is_threshold=2.0 \\
    algorithm.rollout_correction.rollout_rs=${rollout_rs} algorithm.rollout_correction.rollout_rs_threshold=null \\
    actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.clip_ratio_low=0.2 \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.clip_ratio_c=10.0 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Base actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.loss_agg_mode=token-mean \\
    actor_rollout_ref.rollout.calculate_log_probs=True actor_rollout_ref.rollout.quantization.weight_dtype=fp8 \\
    reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True \\
    reward_model.overlong_buffer.len=512 reward_model.overlong_buffer.penalty_factor=1.0 \\
    trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 trainer.nnodes=2 trainer.total_training_steps=500
"""

NEMO_671B = """\
defaults: ../../grpo_math_1B.yaml
grpo:
  num_prompts_per_step: 256
  num_generations_per_prompt: 16
  batch_multiplier: 3
  max_num_steps: 10
  use_leave_one_out_baseline: false
  use_dynamic_sampling: true
  dynamic_sampling_max_gen_batches: 10
  reward_scaling: {enabled: true, source_min: 0.0, source_max: 1.0, target_min: -1.0, target_max: 1.0}
  reward_shaping: {enabled: true, overlong_buffer_length: 2048, max_response_length: 6144}
loss_fn: {reference_policy_kl_penalty: 0.0, ratio_clip_max: 0.28, ratio_clip_min: 0.2, ratio_clip_c: 10.0}
policy:
  model_name: /path/to/dsv3-bf16-checkpoint
  max_total_sequence_length: 8192
  dtensor_cfg: {enabled: false}
  make_sequence_length_divisible_by: "${mul:${policy.dtensor_cfg.tensor_parallel_size}, 2}"
  megatron_cfg: {enabled: true, optimizer: {lr: 5.0e-07, min_lr: 5.0e-08}, scheduler: {lr_warmup_init: 5.0e-08}}
  generation: {max_new_tokens: 8192, vllm_cfg: {tensor_parallel_size: 64}}
data: {max_input_seq_length: 2048, prompt_file: null, dataset_name: DAPOMath17K}
env: {math: {math_verify_impl: dapo_math_verify}}
cluster: {gpus_per_node: 8, num_nodes: 64}
"""

NEMO_9B = """\
defaults: ../../grpo_math_8B_megatron.yaml
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  batch_multiplier: 1
  use_dynamic_sampling: false
  dynamic_sampling_max_gen_batches: 1
  reward_scaling: {enabled: true, source_min: 0.0, source_max: 1.0, target_min: -1.0, target_max: 1.0}
  reward_shaping: {enabled: true, overlong_buffer_length: 512, max_response_length: 8192}
loss_fn:
  reference_policy_kl_penalty: 0.0
  use_importance_sampling_correction: true
  truncated_importance_sampling_type: tis
  truncated_importance_sampling_ratio: 2
  ratio_clip_max: 0.28
  ratio_clip_c: 10
policy:
  model_name: Qwen/Qwen3.5-9B-Base
  train_global_batch_size: 512
  max_total_sequence_length: 10240
  megatron_cfg:
    enabled: true
    optimizer: {lr: 1.0e-6, min_lr: 1.0e-7, weight_decay: 0.1}
    scheduler: {lr_warmup_iters: 5, lr_warmup_init: 1.0e-8, lr_decay_style: constant}
  generation: {max_new_tokens: 8192}
data: {max_input_seq_length: 2048, train: {dataset_name: DAPOMath17K}, validation: {dataset_name: DAPOMathAIME2024}}
"""

SKYRL_1_7B = """\
MAX_RESPONSE_LENGTH=$((1024 * 8))
OVERLONG_BUFFER_LEN=$((1024 * 4))
USE_KL_LOSS=false
uv run --isolated --extra fsdp -m examples.train.algorithms.dapo.main_dapo \\
  data.train_data="['$HOME/data/dapo/dapo-math-17k-cleaned.parquet']" \\
  trainer.algorithm.advantage_estimator="grpo" trainer.algorithm.policy_loss_type="dual_clip" \\
  trainer.algorithm.overlong_buffer_len=$OVERLONG_BUFFER_LEN \\
  trainer.algorithm.overlong_buffer_penalty_factor=1.0 trainer.algorithm.loss_reduction=token_mean \\
  generator.apply_overlong_filtering=true generator.sampling_params.temperature=1.0 \\
  generator.eval_sampling_params.top_p=0.7 generator.eval_sampling_params.max_generate_length=$MAX_RESPONSE_LENGTH \\
  trainer.algorithm.use_kl_loss=$USE_KL_LOSS trainer.algorithm.clip_ratio_c=10.0 \\
  trainer.policy.model.path="Qwen/Qwen3-1.7B-Base" generator.inference_engine.num_engines=8 \\
  trainer.epochs=20 trainer.algorithm.eps_clip_low=0.2 trainer.algorithm.eps_clip_high=0.28 \\
  trainer.eval_interval=5 trainer.update_epochs_per_batch=1 trainer.train_batch_size=512 \\
  trainer.policy_mini_batch_size=32 trainer.max_prompt_length=$((1024 * 2)) \\
  generator.sampling_params.max_generate_length=$MAX_RESPONSE_LENGTH trainer.policy.optimizer_config.lr=1e-6 \\
  trainer.policy.optimizer_config.num_warmup_steps=160 trainer.policy.optimizer_config.weight_decay=0.1 \\
  environment.env_class=aime generator.n_samples_per_prompt=16 generator.eval_n_samples_per_prompt=32 $@
"""

SKYRL_7B = SKYRL_1_7B.replace(
    "loss_reduction=token_mean",
    "loss_reduction=token_mean_legacy trainer.algorithm.dynamic_sampling.type=$DYNAMIC_SAMPLING_TYPE "
    "trainer.algorithm.dynamic_sampling.max_sample_batches=30 trainer.micro_train_batch_size_per_gpu=16",
).replace("trainer.eval_interval=5", "trainer.eval.interval=10 trainer.eval.before_train=true")
SKYRL_7B = "DYNAMIC_SAMPLING_TYPE=null\n" + SKYRL_7B

SKYRL_30B_LORA = SKYRL_1_7B.replace("Qwen3-1.7B-Base", "Qwen3-30B-A3B-Base").replace(
    "loss_reduction=token_mean",
    "loss_reduction=token_mean_legacy trainer.strategy=megatron "
    "trainer.policy.megatron_config.tensor_model_parallel_size=4 trainer.policy.model.lora.rank=$LORA_RANK "
    "trainer.policy.model.lora.alpha=$LORA_ALPHA trainer.algorithm.use_tis=$USE_TIS "
    "trainer.algorithm.tis_imp_ratio_cap=$TIS_IMP_RATIO_CAP",
)
SKYRL_30B_LORA = "LORA_RANK=128\nLORA_ALPHA=128\nUSE_TIS=true\nTIS_IMP_RATIO_CAP=2.0\n" + SKYRL_30B_LORA.replace(
    "optimizer_config.lr=1e-6", "optimizer_config.lr=1e-5"
)

SKYRL_ASYNC = """\
: "${MAX_STALENESS_STEPS:=8}"
: "${MINI_BATCH_SIZE:=32}"
""" + SKYRL_1_7B.replace("main_dapo ", "main_dapo_fully_async ").replace(
    "trainer.train_batch_size=512 ",
    "trainer.train_batch_size=$MINI_BATCH_SIZE trainer.fully_async.max_staleness_steps=${MAX_STALENESS_STEPS} "
    "trainer.fully_async.num_parallel_generation_workers=144 generator.inference_engine.async_engine=true ",
).replace("policy_mini_batch_size=32", "policy_mini_batch_size=$MINI_BATCH_SIZE")

AREAL_DYNAMIC = """\
seed: 1
dynamic_bs: true
total_train_epochs: 10
tokenizer_path: ${actor.path}
cluster: {n_nodes: 1, n_gpus_per_node: 8}
allocation_mode: sglang:d4+fsdp:d4
rollout:
  max_concurrent_rollouts: 256
  consumer_batch_size: ${train_dataset.batch_size}
  max_head_offpolicyness: 2
gconfig: {n_samples: 4, min_new_tokens: 0, max_new_tokens: 4096, greedy: false, temperature: 1.0}
actor:
  path: Qwen/Qwen2.5-1.5B
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer:
    {type: adam, lr: 1.70e-5, weight_decay: 0.017, beta1: 0.9, beta2: 0.999, eps: 1e-8, lr_scheduler_type: constant,
     gradient_clipping: 1.0, warmup_steps_proportion: 0.001}
  eps_clip: 0.2
  eps_clip_higher: 0.28
  reward_scaling: 10.0
  reward_bias: -0.5
  overlong_reward_penalty: true
  overlong_tokens: 512
  overlong_penalty_factor: 1.0
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  recompute_logprob: true
  use_decoupled_loss: true
  behav_imp_weight_cap: 5.0
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
  adv_norm: {mean_level: batch, std_level: batch}
  max_new_tokens: ${gconfig.max_new_tokens}
ref: {path: "${actor.path}", dtype: "${actor.dtype}", optimizer: null}
sglang: {model_path: "${actor.path}", context_length: 32768, mem_fraction_static: 0.8}
train_dataset: {batch_size: 256, shuffle: true, path: openai/gsm8k, type: rl, max_length: 1024}
valid_dataset: {batch_size: 256, path: openai/gsm8k, type: rl}
evaluator: {freq_epochs: 1, freq_steps: null}
"""

SWIFT_FIPO = """\
CUDA_VISIBLE_DEVICES=2 swift rollout --model Qwen/Qwen2.5-1.5B-Instruct

NPROC_PER_NODE=2 \\
CUDA_VISIBLE_DEVICES=0,1 \\
swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B-Instruct --dataset 'AI-MO/NuminaMath-TIR' \\
    --reward_funcs accuracy --use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8000 \\
    --tuner_type full --max_completion_length 4096 --num_train_epochs 1 \\
    --per_device_train_batch_size 8 --learning_rate 1e-6 --gradient_accumulation_steps 2 --warmup_ratio 0.05 \\
    --num_generations 8 --temperature 1.0 --num_iterations 3 --beta 0 --dynamic_sample true --delta 10.0 \\
    --system \"\"\"You are a helpful math assistant. Put your final answer within \\\\boxed{}.\"\"\" \\
    --epsilon_high 0.28 --loss_type LOSS
"""
