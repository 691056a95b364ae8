"""The plain engine: transformers' own ``generate``, for every causal language model that transformers runs.

Slow (a batch decodes until its longest response ends) but indifferent to architecture: caches, windows, recurrent
states and position schemes are the model's business. Only the choice of each token is ours: a logits processor draws it
with the request's own uniform numbers, as the embedded engine does, and leaves ``generate`` no other choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dapo.engines.generic import sampling_mode
from dapo.engines.inbox import EngineInbox, check_idle, lost_to_the_machine
from dapo.engines.received_weights import take_weights, tensor_sums
from dapo.engines.requests import Gate, sequence_of
from dapo.engines.roster import Roster
from dapo.engines.sampling import draw_mixed
from dapo.models.attention import own_attention
from dapo.models.loaded import LoadedModel
from dapo.types.batch import Key, Metrics, Response, SampleRequest, TensorSum, Ticket

_DEFAULT_SLOTS = 64


class _Drawn:
    """Logits processor and stopping criterion in one: draws each row's token and notes what ended."""

    def __init__(self, roster: Roster, rows: int, clock: int) -> None:
        self.roster, self.clock, self.steps = roster, clock, 0
        self.live = np.ones(rows, dtype=np.bool_)  # row r sits in seat r
        self.events: list[Response] = []
        self.busy = 0
        self.generated = 0

    def process(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, vocabulary] with all but the drawn token at -inf; ended rows repeat token 0."""
        seats = np.flatnonzero(self.live)
        rows = torch.from_numpy(seats).to(scores.device)
        uniform = torch.from_numpy(self.roster.uniforms(seats)).to(scores.device)[:, None]
        groups = [
            (setting, None if own is None else torch.from_numpy(own).to(scores.device))
            for setting, own in self.roster.settings(seats)
        ]
        tokens, logprobs = draw_mixed(scores[rows].float(), uniform, groups)
        self.clock += 1
        self.steps += 1
        self.busy += len(seats)
        ended, failed = self.roster.record(seats, tokens[:, 0].cpu().numpy(), logprobs[:, 0].cpu().numpy())
        self.generated += len(seats) - len(failed)
        self.events += self.roster.release(ended, self.clock)
        self.events += self.roster.release(failed, self.clock, failed="the model's logits are not finite")
        self.live[ended] = self.live[failed] = False
        chosen = torch.zeros(len(self.live), 1, dtype=torch.int64, device=scores.device)
        chosen[rows] = tokens
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    def stopped(self, input_ids: Tensor, scores: Any) -> Tensor:
        """Which rows are done [rows]; ``generate`` returns when all are."""
        return torch.from_numpy(~self.live).to(input_ids.device)


class GenerateEngine:
    """An ``Engine`` (``dapo.types.protocols``) over transformers' ``generate``.

    ``poll`` runs one batch to its end, so nothing is ever in flight between calls.

    Args:
        loaded: The model. With ``shares_weights`` it is the learner's own, else a copy that belongs to the engine.
        slots: Responses in one batch; None: 64.
        shares_weights: The learner changes this very model.
    """

    def __init__(self, loaded: LoadedModel, *, slots: int | None = None, shares_weights: bool = True) -> None:
        self._loaded = loaded
        self.shares_weights = shares_weights
        self.capacity = slots or _DEFAULT_SLOTS
        self.clock = 0
        self.version = 0
        self._gate = Gate.of(loaded.model, loaded.exact_positions, loaded.tokenizer)
        self._inbox = EngineInbox(self._gate)
        self._stats = Counter[str]()

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queue requests, in order of (priority, arrival).

        Raises:
            EngineError: A key that has not come back yet, or a request that does not fit the model; none is taken.
        """
        self._inbox.accept(requests, self.clock)

    def poll(self, timeout: float | None = None) -> list[Response]:
        """Run one batch to its end, which no ``timeout`` can interrupt.

        Raises:
            EngineError: the machine has no memory left.
        """
        events, queue = self._inbox.take_ended(), self._inbox.queue
        if not events and len(queue):
            requests = [queue.pop() for _ in range(min(self.capacity, len(queue)))]
            try:
                with lost_to_the_machine():
                    events = self._run(requests)
            except BaseException:  # out of memory, Ctrl-C: ``abort`` still gives everything back
                for request in requests:
                    queue.push(request)
                raise
        return self._inbox.hand_out(events)

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Take back waiting requests. Keys unknown here are ignored."""
        events, _ = self._inbox.take_back(self._inbox.names(keys), self.clock)
        return sorted(self._inbox.hand_out(events), key=lambda event: event.key)

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """Take new weights. Nothing is in flight here; with ``abort``, nothing may be waiting either.

        Raises:
            EngineError: ``abort`` while requests wait, or weights that do not lead here or do not fit.
        """
        check_idle(self._inbox.unfinished, in_flight)
        take_weights(self._loaded.model, ticket, self.shares_weights)
        self.version = ticket.version

    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return checksums of the model's own tensors; None if they are the learner's. This engine derives nothing from
        them."""
        return None if self.shares_weights else tensor_sums(self._loaded.model)

    def sleep(self) -> None:
        """Do nothing: this engine holds no memory between calls."""

    def stats(self) -> Metrics:
        """Counters since construction."""
        names = ("decode_steps", "generated_tokens", "prefill_tokens", "slot_steps", "busy_slot_steps")
        return {name: float(self._stats[name]) for name in names}

    def close(self) -> None:
        """Drop everything that waits."""
        self.abort()

    def _run(self, requests: Sequence[SampleRequest]) -> list[Response]:
        roster = Roster(len(requests), self._gate.vocabulary, self._gate.strings)
        roster.seat(requests, self.version)
        drawn = _Drawn(roster, len(requests), self.clock)
        sequences = [sequence_of(request) for request in requests]
        width = max(map(len, sequences))
        tokens = np.full((len(requests), width), self._loaded.pad_token_id, dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, sequence in enumerate(sequences):
            tokens[row, width - len(sequence) :], mask[row, width - len(sequence) :] = sequence, 1
        longest = max(
            request.sampling.max_tokens + len(request.prompt_ids) - len(sequence)
            for request, sequence in zip(requests, sequences, strict=True)
        )
        device, model = self._loaded.device, self._loaded.model
        with torch.inference_mode(), _plain_generation(model, longest, self._loaded.pad_token_id):
            model.generate(
                torch.from_numpy(tokens).to(device),
                attention_mask=torch.from_numpy(mask).to(device),
                logits_processor=[drawn.process],
                stopping_criteria=[drawn.stopped],
            )
        self.clock = drawn.clock
        self._stats.update(
            decode_steps=drawn.steps,
            generated_tokens=drawn.generated,
            prefill_tokens=sum(map(len, sequences)),
            slot_steps=drawn.steps * self.capacity,
            busy_slot_steps=drawn.busy,
        )
        return drawn.events


@contextmanager
def _plain_generation(model: Any, max_new_tokens: int, pad_token_id: int) -> Iterator[None]:
    """Give the model its own attention and a generation config that changes nothing.

    A model's own one may ask for penalties, other temperatures or forced tokens, which would alter the scores first.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=pad_token_id, use_cache=own.use_cache
    )
    try:
        with own_attention(model), sampling_mode(model):
            yield
    finally:
        model.generation_config = own
