"""The engine contract, kept by vLLM in the process. (The client of a server keeps it in the unit tests.)"""

from __future__ import annotations

import pytest
import torch
from engine_contract import CHECKS, Subject
from tickets import to_model
from vllm_parts import LONGEST, start, true_logprobs

from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Its weights change with every publish."""
    return load_model(str(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", heads=2)), device="cpu")


@pytest.fixture
def subject(loaded):
    first = {name: x.clone() for name, x in loaded.model.named_parameters()}
    living = []

    def source(number):
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for name, x in loaded.model.named_parameters():
                x.copy_(first[name] + 0.01 * number * torch.randn(x.shape, generator=generator))
        return to_model(number, loaded.model)

    def make(slots):
        while living:  # vLLM allows one at a time in a process
            living.pop().close()
        living.append(start(loaded, slots=slots))
        living[-1].load(source(0))
        return living[-1]

    one = Subject(make, source, repeats=False)  # a seed of its own behind each prefix

    def plain(version, prompt, response):
        source(version)
        return true_logprobs(loaded, prompt, response)

    one.plain = plain
    one.text = lambda ids: loaded.tokenizer.decode(ids, skip_special_tokens=True)
    one.bad = {
        "empty prompt": one.request(5, prompt_ids=()),
        "token 80": one.request(5, prompt_ids=(3, 80)),
        "token -1": one.request(5, prompt_ids=(-1, 3)),
        f"started for {LONGEST}": one.request(5, max_tokens=LONGEST),
    }
    yield one
    while living:
        living.pop().close()
    source(0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_vllm_in_the_process(check, subject):
    check(subject)
