"""What the tests of the vLLM engines share: requests, weights on their way, and the true log-probabilities."""

from __future__ import annotations

import os

import numpy as np
import torch
from tickets import in_folder, to_model

from dapo.config.schema import Vllm
from dapo.engines.stops import StopStrings
from dapo.models.attention import own_attention
from dapo.models.facts import facts_of
from dapo.types.batch import Response, SampleRequest, SamplingParams

os.environ.setdefault("HF_HUB_OFFLINE", "1")

LONGEST = 160


_kept = []  # an offered model lives as long as somebody holds it


class Published:
    """A model's weights on their way to an engine."""

    def __init__(self, model):
        self.model = model

    def ticket(self, version, folder=None):
        """The tensors are read when the engine loads. With ``folder``, they are written there."""
        if folder is not None:
            return in_folder(version, self.named_tensors(), folder)
        _kept.append(self)
        del _kept[:-4]
        return to_model(version, self)

    def state_dict(self, keep_vars=False):
        return dict(self.named_tensors())

    def named_tensors(self):
        head = self.model.get_output_embeddings().weight
        tied = head is self.model.get_input_embeddings().weight
        for name, tensor in self.model.state_dict().items():
            if not (tied and name == "lm_head.weight"):
                yield name, tensor


def perturbed(loaded, seed, scale=0.3):
    """``loaded``'s model with noise on every parameter, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(scale * parameter.std() * torch.randn(parameter.shape, generator=generator))


def true_logprobs(loaded, prompt, response, temperature=1.0):
    """Hugging Face's own log-probabilities of the response, by one plain forward pass."""
    tokens = torch.from_numpy(np.concatenate([prompt, response])).long()[None]
    with torch.no_grad(), own_attention(loaded.model):
        logits = loaded.model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1).gather(1, tokens[0, len(prompt) :, None])[:, 0].numpy()


def next_logits(loaded, prompt):
    """[vocabulary] of the first response token."""
    with torch.no_grad(), own_attention(loaded.model):
        return loaded.model(input_ids=torch.from_numpy(prompt)[None], use_cache=False).logits[0, -1].float()


def request(key, prompt, *, seed=1, prefix=None, priority=0, **sampling):
    sampling = {"max_tokens": 24, "temperature": 0.7, "stop_token_ids": (1,)} | sampling
    return SampleRequest(key, np.asarray(prompt), SamplingParams(**sampling), seed, prefix, priority)


def drain(engine):
    """Every event until nothing is left, by key."""
    events = {}
    while came := engine.poll():
        for event in came:
            assert event.key not in events
            events[event.key] = event
    return events


def partial_of(event):
    return Response(event.token_ids, event.logprobs, event.versions)


def start(loaded, *, slots=32, adapter_rank=None, **settings):
    from dapo.engines.vllm import VllmEngine

    settings = {"kv_cache_mib": 64} | settings
    strings = StopStrings(loaded.tokenizer)
    return VllmEngine(
        facts_of(loaded),
        cuda=False,
        longest=LONGEST,
        slots=slots,
        settings=Vllm(**settings),
        strings=strings,
        adapter_rank=adapter_rank,
    )
