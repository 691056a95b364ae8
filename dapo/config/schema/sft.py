"""The recipe's section ``sft``: a supervised start, for ``dapo sft``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Many, Positive, Rate, Section, Tokens, Whole


class SftSource(Section):
    name: str | None = None
    """Name in metrics; default: the file's (without its suffix) or folder's name."""
    path: str
    """A file, pattern, folder or ``hub:owner/name``, as ``data.train.N.path``. Its records hold a prompt and a
    response, or messages."""
    split: str = "train"
    """Split of a folder or hub data set."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Field mapping: ``{prompt: question, response: solution}`` or ``{messages: conversations}``. Left out: found by
    their usual names."""
    size: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Records to take; null: all."""


class Sft(Section):
    train: list[SftSource] = Field(default_factory=list)
    """What is imitated; what answers a held-out problem of ``data.validation`` is taken out. A prompt becomes what
    ``data`` says of problems (chat template, instruction, examples), so that training by reward goes on with the same
    prompts; messages are taken as they stand."""
    validation: list[SftSource] = Field(default_factory=list)
    """Held-out records: ``validation/loss`` is measured on them."""
    epochs: Positive = 1
    """Passes over ``train``, each in an order of its own unless ``data.shuffle`` is false."""
    steps: Positive | None = None
    """End after so many steps; null: after ``epochs``."""
    batch_size: Many = 32
    """Records of one optimiser step; the last step of the last epoch has the rest."""
    learning_rate: Rate = 1e-5
    """Peak learning rate. The optimiser's other settings are those of ``learner``."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """After the warm-up; linear and cosine fall to ``final_ratio`` at the last step."""
    warmup: Whole = 10
    """Steps of linear warm-up."""
    final_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak at the end of linear and cosine."""
    max_tokens: Tokens = 4096
    """Limit of a prompt with its response."""
    overlong: Literal["drop", "refuse"] = "drop"
    """Records over the limit are dropped (counted and said) or refused. Never cut: a response without its end teaches
    not to end."""
    loss_on: Literal["all", "last"] = "all"
    """Of a conversation: every turn of the assistant's carries loss, or only the last one."""
    every: Whole = 50
    """Steps between two measurements of the held-out loss; 0: never. The first and last steps are measured too."""
    export: bool = True
    """Write the model to ``RUN/export`` at the end (of the best checkpoint where ``checkpoint.best`` is set):
    ``dapo train RECIPE model.path=RUN/export`` goes on from there."""
