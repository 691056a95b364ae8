"""Train with a loss of your own: a function of tensors of shape [tokens] that returns one loss per token."""

import torch

import dapo


def smooth_clip(inputs):
    """Return a loss that lowers a token's gradient smoothly as its probability ratio leaves 1.

    Args:
        inputs: `logprobs`, `old_logprobs`, `advantages` and `loss_mask`, each of shape [tokens].

    Returns:
        The loss of each token, shape [tokens], and boolean flags whose shares are recorded as `custom/NAME`.
    """
    log_ratio = inputs.logprobs - inputs.old_logprobs
    loss = -inputs.advantages * torch.tanh(log_ratio)
    return loss, {"far": log_ratio.abs() > 0.2}


if __name__ == "__main__":
    objective = dapo.Objective(smooth_clip)
    run = dapo.train("quickstart", objective=objective, **{"run.name": "example_loss", "trainer.steps": 20})
    print("held-out accuracy:", run.metrics[0]["validation/accuracy"], "->", run.best["validation/accuracy"])
    print("share of tokens with a ratio far from 1:", run.metrics[-1]["custom/far"])
