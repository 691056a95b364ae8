"""A stand-in for a vLLM server that judges tokens: a model's own numbers, in the form in which vLLM answers."""

from __future__ import annotations

from typing import Any

import torch
from stand_in_server import StandIn

from dapo.models.attention import own_attention
from dapo.models.load import load_model


class TeacherServer(StandIn):
    """Attributes beside those of ``StandIn``: ``change``, what is made of the entries of a prompt before they are sent;
    ``asked``, prompts that came."""

    def __init__(self, folder: Any, **options: Any) -> None:
        self.loaded = load_model(str(folder), device="cpu")
        self.asked: list[list[int]] = []
        self.change = lambda entries: entries
        super().__init__(**{"name": "big", "context": 4096, "tokenizer": True} | options)

    def answer(self, path: str, full: str, body: Any) -> tuple[int, Any]:
        name = self.options["name"]
        if path == "/v1/models":
            return 200, {"data": [{"id": name, "max_model_len": self.options["context"]}]}
        if body is not None and body.get("model") != name:
            return 404, {"error": {"message": f"The model `{body.get('model')}` does not exist."}}
        if path == "/detokenize" and self.options["tokenizer"]:
            return 200, {"prompt": self.loaded.tokenizer.decode(body["tokens"])}
        if path == "/v1/completions":
            return self.judge(body)
        return 404, {"detail": "Not Found"}

    def judge(self, body: Any) -> tuple[int, Any]:
        ids = body["prompt"]
        if len(ids) + body["max_tokens"] > (self.options["context"] or 4096):
            return 400, {"error": {"message": "This model's maximum context length is shorter."}}
        with self.turn:
            self.asked.append(ids)
            with torch.no_grad(), own_attention(self.loaded.model):
                logits = self.loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        entries: list[Any] = [None]
        for place, numbers in enumerate(logits.log_softmax(-1)[:-1], start=1):
            best = [int(numbers.argmax())][: body["prompt_logprobs"]]
            shown = {token: {"logprob": float(numbers[token]), "rank": 1, "decoded_token": "x"} for token in best}
            entries.append(shown | {ids[place]: {"logprob": float(numbers[ids[place]]), "rank": 2}})
        return 200, {"choices": [{"index": 0, "text": "x", "prompt_logprobs": self.change(entries)}]}
