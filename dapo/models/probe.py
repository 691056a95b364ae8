"""Does this program's forward pass give the model's own log-probabilities? Asked of every model when it is loaded."""

from __future__ import annotations

import numpy as np
import torch

from dapo.contracts.types import TrainRow
from dapo.models import attention
from dapo.models.forward import token_logprobs
from dapo.models.loaded import LoadedModel
from dapo.models.packing import pack, pad

# (prompt tokens, response tokens of the group): two groups, a one-token response, and lengths that differ.
PROBE_GROUPS = ((5, (7, 1, 12)), (3, (4, 9)))

# Largest accepted |difference| of log-probabilities: (mean, maximum). Wrong attention is off by 0.1 to 5.
TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (1e-3, 1e-2)}
COARSE_TOLERANCE = (0.05, 0.5)  # bfloat16 keeps 8 bits


def probe(loaded: LoadedModel) -> str | None:
    """Compare log-probabilities of random tokens with the model's own logits; None, or what is wrong in words.

    Uses packed or padded rows as ``loaded.packed`` says. The reference is one unpadded row at a time through the whole
    model with its own attention. The model is left with its own attention.
    """
    model = loaded.model
    rows = _probe_rows(model.get_input_embeddings().weight.shape[0])
    with torch.no_grad(), attention.own_attention(model):
        reference = [_own_logprobs(loaded, row) for row in rows]
        own = model.config._attn_implementation
        try:
            if loaded.packed:
                model.set_attn_implementation(attention.NAME)
                batch = pack(rows, loaded.device)
            else:
                batch = pad(rows, loaded.device, loaded.pad_token_id)
            found, _ = token_logprobs(loaded, batch, 1.0, want_entropy=False)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            if not loaded.packed:
                raise
            return f"does not run on packed rows ({type(error).__name__}: {error})"
        finally:
            model.set_attn_implementation(own)
    expected = torch.cat([reference[index] for index in batch.order])
    difference = (found - expected).abs()
    mean, largest = float(difference.mean()), float(difference.max())
    accepted = TOLERANCE.get(loaded.dtype, COARSE_TOLERANCE)
    if mean <= accepted[0] and largest <= accepted[1]:  # false for nan as well
        return None
    rows_kind = "packed" if loaded.packed else "padded"
    return f"gives log-probabilities on {rows_kind} rows that differ from its own by {mean:.2g} (at most {largest:.2g})"


def _probe_rows(vocabulary: int) -> list[TrainRow]:
    random = np.random.default_rng(0)
    rows = []
    for group, (prompt_tokens, responses) in enumerate(PROBE_GROUPS):
        prompt = random.integers(0, vocabulary, prompt_tokens)
        for tokens in responses:
            zeros = np.zeros(tokens, dtype=np.float32)
            rows.append(TrainRow(group, prompt, random.integers(0, vocabulary, tokens), zeros, zeros, zeros))
    return rows


def _own_logprobs(loaded: LoadedModel, row: TrainRow) -> torch.Tensor:
    """[response tokens] from the unmodified model's logits."""
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).to(loaded.device)
    logits = loaded.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    chosen: torch.Tensor = logprobs.gather(-1, ids[len(row.prompt_ids) :, None]).squeeze(-1)
    return chosen
