"""The recipe's section ``learner``: the optimiser, and the memory of a pass."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Pair, Patience, Positive, Rate, Section, Whole


class Learner(Section):
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
    """Groups per optimiser step; None: all P (one optimiser step)."""
    microbatch_tokens: Positive = 16384
    """Tokens (prompts and responses) in one forward pass. Memory only: it cannot change the gradient."""
    max_grad_norm: Annotated[float, Field(ge=1e-9, le=1e12)] | None = 1.0
    """Gradient clipping."""
    deterministic: bool = False
    """Only algorithms whose result does not depend on the order of threads. On a CPU that is so anyway; on CUDA it
    costs speed, and without it a resumed run is another sample and not the same bits."""
    max_skipped_steps: Whole = 5
    """Optimiser steps in a row that may be skipped for non-finite gradients before the run stops."""
    ranks: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    """Processes that share the model and each optimiser step (FSDP2), one for each device. 1: the learner is the
    program's own process."""
    replicas: Positive = 1
    """Copies of the model, each cut over ranks / replicas (HSDP): less to gather over slow links, more memory."""
    reshard_after_forward: Literal["auto", "true", "false"] = "auto"
    """Free a layer between its forward and its backward pass. ``auto``: from 3 billion parameters on; below, layers
    stay whole until the optimiser step, and gradients are summed over ranks once a step."""
    cpu_offload: bool = False
    """Keep slices, gradients and AdamW's moments of a CUDA learner in the processor's memory: slower, much smaller."""
    timeout: Patience = 600.0
    """Seconds that one rank waits for another before the learner counts as lost."""
