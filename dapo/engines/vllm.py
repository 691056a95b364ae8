"""vLLM behind the engine protocol, in the trainer's own process. This module and ``vllm_worker`` alone import vllm.

vLLM schedules, batches and samples; what it has made of every unfinished response is kept here, so that an abort hands
it over and a resume continues after it. Each token carries the version of the weights that made it.

The engine starts from *dummy* weights: the first publish has to bring every tensor, and the sync check right after it
sees at once a tensor that an update does not reach.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import torch
import torch._dynamo.config
from torch import Tensor

from dapo.config.schema import Vllm
from dapo.engines.inbox import EngineInbox, check_idle
from dapo.engines.requests import Gate, sequence_of
from dapo.engines.stops import StopStrings
from dapo.engines.vllm_made import RouteShape, VllmResponse, name_of
from dapo.engines.vllm_options import ENVIRONMENT, check_experts, engine_args, speaking_of
from dapo.engines.vllm_sums import together
from dapo.engines.vllm_worker import WeightWorker as WeightWorker  # servers may be started with it by this path
from dapo.errors import EngineError
from dapo.links import install
from dapo.models.adapter import is_adapter, write_adapter_parts
from dapo.models.weight_files import read_shapes, write_weights
from dapo.system import shared_memory
from dapo.types.batch import Key, Metrics, Response, SampleRequest, TensorSum, Ticket
from dapo.types.model import ModelFacts
from dapo.types.seeds import generator_seed
from dapo.weights.routes import ROUTES, check_named, receive

_DEFAULT_SLOTS = 256

_living: weakref.WeakSet[VllmEngine] = weakref.WeakSet()


class VllmEngine:
    """An ``Engine`` (``dapo.types.protocols``) over vLLM's ``LLMEngine``.

    Args:
        facts: Of the learner's model; vLLM reads its folder's configuration, and gets its weights by ``load``.
        cuda: Run on a GPU.
        longest: Tokens of the longest sequence (prompt and response) that will be asked for.
        slots: Responses that decode at once (vLLM's ``max_num_seqs``); None: 256.
        settings: The recipe's section ``rollout.vllm``.
        trust_remote_code: vLLM may run Python code that comes with the model.
        fp32_head: leave logits in float32, as the learner does.
        strings: Finds stop strings, which vLLM is not told of; None: no request may have any.
        adapter_rank: Tickets bring an adapter of this rank alone, which vLLM applies itself; it reads the frozen
            weights from the model's folder.
        record_routes: Give the experts of each token with a response (``dapo.models.routing``).

    Raises:
        EngineError: vLLM is not installed, or does not start with this model and these settings.
    """

    shares_weights = False

    def __init__(
        self,
        facts: ModelFacts,
        *,
        cuda: bool,
        longest: int,
        slots: int | None = None,
        settings: Vllm,
        trust_remote_code: bool = False,
        fp32_head: bool = False,
        strings: StopStrings | None = None,
        adapter_rank: int | None = None,
        record_routes: bool = False,
    ) -> None:
        self.capacity = slots or _DEFAULT_SLOTS
        self.clock = 0
        self.version = 0
        self._vocabulary, self._strings = facts.vocabulary, strings
        self._inbox = EngineInbox(Gate(facts.vocabulary, facts.positions, strings))
        self._frozen = {name: list(shape) for name, shape in facts.shapes.items()}  # a tied one once
        self._applies_adapter = adapter_rank is not None
        self._sleeps = settings.sleep and cuda
        self._asleep = False
        self._device = torch.device("cuda" if cuda else "cpu")
        self._longest = longest
        self._shapes: dict[str, list[int]] = {}  # of what was published, by name
        self._lost = False  # a step failed: what was made is here, and vLLM is not asked again
        self._many_workers = settings.tensor_parallel_size > 1
        self._responses: dict[str, VllmResponse] = {}  # by vLLM's request id
        self._stats = Counter[str]()
        check_experts(facts, cuda=cuda)
        if _living:
            raise EngineError("vLLM keeps its groups per process: close this process's engine before the next one")
        os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
        args = engine_args(
            facts,
            longest,
            self.capacity,
            settings,
            cuda=cuda,
            sleeps=self._sleeps,
            fp32_head=fp32_head,
            adapter_rank=adapter_rank,
        )
        args["trust_remote_code"] = trust_remote_code
        self._routes = RouteShape.of(facts) if record_routes else None
        if record_routes:
            args["enable_return_routed_experts"] = True
        self._engine: Any = _start(args, None if cuda else facts.head_size)
        _living.add(self)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Hand requests to vLLM, which starts them in order of (priority, arrival).

        Raises:
            EngineError: A key that is unfinished here already, or a request that does not fit the model.
        """
        self._check_usable()
        for request in requests:
            if (tokens := len(request.prompt_ids) + request.sampling.max_tokens) > self._longest:
                raise EngineError(
                    f"request {request.key} may grow to {tokens} tokens; this engine was started for {self._longest}"
                )
        self._inbox.accept(requests, self.clock)
        while len(self._inbox.queue):
            request = self._inbox.queue.pop()
            try:
                self._add(request)
            except EngineError:
                self._inbox.queue.push_front([request])  # for ``abort``
                raise
            self._responses[name_of(request.key)] = VllmResponse(request, self._routes)

    def _add(self, request: SampleRequest) -> None:
        with speaking_of("taking a request"):
            self._engine.add_request(
                name_of(request.key),
                {"prompt_token_ids": sequence_of(request).tolist()},
                _sampling_params(request, self._vocabulary),
                lora_request=_adapter_request() if self._applies_adapter else None,
                priority=request.priority,
            )

    def _check_usable(self) -> None:
        if self._engine is None:
            raise EngineError("this engine was closed; make a new one")
        if self._lost:
            raise EngineError("vLLM failed before and cannot go on: start the run again with `dapo train --resume`")

    def poll(self, timeout: float | None = None) -> list[Response]:
        """Decode until at least one response has ended, or nothing is left; with ``timeout`` a step at least, and no
        further one after so many seconds.
        """
        events = self._inbox.take_ended()
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not events and self._responses:
            self._check_usable()
            events = self._step()
            if time.monotonic() >= until:
                break
        return self._inbox.hand_out(events)

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Take back unfinished responses with the tokens made so far. Keys unknown here are ignored."""
        named = self._inbox.names(keys)
        events, _ = self._inbox.take_back(named, self.clock)
        chosen = [name for name, response in self._responses.items() if response.request.key in named]
        events += [self._responses.pop(name).event(None, self.clock) for name in chosen]
        if chosen and not self._lost:
            try:
                self._engine.abort_request(chosen)
            except Exception:  # what there is goes to the caller all the same; the next call says what is wrong
                self._lost = True
        return sorted(self._inbox.hand_out(events), key=lambda event: event.key)

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """Take new weights and forget keys and values of the old ones.

        With ``keep``, live responses go on: what they hold is computed again under the new weights.

        Raises:
            EngineError: ``abort`` while responses are unfinished, a ticket that does not name every parameter, or
                weights that vLLM does not take.
        """
        check_idle(len(self._responses), in_flight)
        self._check_usable()
        if not self._applies_adapter:
            check_named(ticket, self._frozen)
        elif not is_adapter(ticket.names):
            raise EngineError("this engine applies an adapter, and whole weights were published: publish it by itself")
        read_by_workers = self._many_workers and not self._applies_adapter and ROUTES[ticket.route].files
        files = Path(ticket.address) if read_by_workers else None
        incoming = iter(()) if files is not None else receive(ticket, self._device)
        shapes = {} if files is None else read_shapes(files)  # before anything is touched
        with self._losing("taking new weights"):
            if self._asleep:
                self._engine.wake_up(["weights"])
            if files is not None:
                self._read(ticket, files, shapes)
            elif self._applies_adapter:
                self._take_adapter(incoming)
            else:
                self._take(ticket, incoming)
            if self._asleep:
                self._engine.wake_up(["kv_cache"])
                self._asleep = False
            if not self._engine.reset_prefix_cache(reset_running_requests=True):
                raise EngineError("vLLM did not drop its prefix cache, which holds keys and values of the old weights")
        running = [response for response in self._responses.values() if response.token_ids]
        self._stats["prefill_tokens"] += sum(len(sequence_of(r.request)) + len(r.token_ids) for r in running)
        self.version = ticket.version

    def _take(self, ticket: Ticket, incoming: Iterator[tuple[str, Tensor]]) -> None:
        came = self._shapes = {}

        def tensors() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in incoming:
                came[name] = list(tensor.shape)
                yield name, tensor

        if self._many_workers:
            with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
                write_weights(Path(folder), tensors())
                self._engine.collective_rpc("load_published", kwargs={"weights_path": folder})
        else:
            self._engine.collective_rpc("load_published", kwargs={"tensors": tensors()})
        self._check_taken(ticket)

    def _read(self, ticket: Ticket, folder: Path, shapes: dict[str, list[int]]) -> None:
        """Let each worker map the published files, and copy its own part of every tensor."""
        self._shapes = shapes
        self._engine.collective_rpc("load_published", kwargs={"weights_path": str(folder)})
        self._check_taken(ticket)

    def _check_taken(self, ticket: Ticket) -> None:
        if left := sorted(set(ticket.names) - self._shapes.keys()):
            raise EngineError(f"vLLM took none of {len(left)} tensors that were published ({', '.join(left[:3])})")

    def _take_adapter(self, incoming: Iterator[tuple[str, Tensor]]) -> None:
        """Put the adapter in the place of the last one, under the same id: live requests go on with the new one."""
        parts = dict(incoming)
        self._shapes = self._frozen | {name: list(tensor.shape) for name, tensor in parts.items()}
        with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
            write_adapter_parts(Path(folder), parts)
            self._engine.add_lora(_adapter_request(folder))

    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return checksums of the weights that vLLM's workers compute with, packed matrices included.

        Raises:
            EngineError: vLLM derived something from old weights, or has tensors for which nothing was published.
        """
        self._check_usable()
        with speaking_of("reading its weights"):
            answers = self._engine.collective_rpc("weight_sums", kwargs={"shapes": self._shapes})
        found = together(answers, "VllmEngine")
        unread = [name for name in self._shapes if is_adapter([name]) and name not in found]
        if unread and not self._many_workers:
            raise EngineError(
                f"vLLM applies {len(unread)} parts of the adapter to none of its layers ({', '.join(unread[:3])}): set "
                "model.lora.merge to true"
            )
        return found

    def sleep(self) -> None:
        """Hand weights' and cache's memory to the learner until the next publish, on a GPU.

        Level 2 drops the weights: the publish that ends the sleep brings every tensor anyway. Where it brings only an
        adapter, level 1 copies them to the processor's memory and back.
        """
        if self._sleeps and not self._asleep:
            with speaking_of("going to sleep"):
                self._engine.sleep(level=1 if self._applies_adapter else 2)
            self._asleep = True

    def stats(self) -> Metrics:
        """Counters since construction."""
        names = ("decode_steps", "generated_tokens", "prefill_tokens", "slot_steps", "busy_slot_steps")
        return {name: float(self._stats[name]) for name in names}

    def close(self) -> None:
        """Drop everything unfinished and give vLLM's memory back."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        if self._engine is None:
            return
        engine, self._engine = self._engine, None
        self._responses.clear()
        _living.discard(self)
        with suppress(Exception) if self._lost else nullcontext():  # a lost one may fail at this, too
            engine.engine_core.shutdown()
            cleanup_dist_env_and_memory()

    def _step(self) -> list[Response]:
        """One step of vLLM: a token for every running response, and prefill for new ones."""
        with self._losing("decoding"):
            outputs = self._engine.step()
        self.clock += 1
        events, made = [], 0
        for output in outputs:
            response = self._responses.get(output.request_id)
            if response is None:
                continue  # taken back in the meantime
            new = output.outputs[0]
            if not response.token_ids:
                self._stats["prefill_tokens"] += len(output.prompt_token_ids) - (output.num_cached_tokens or 0)
            made += len(new.token_ids)
            end = response.take_in(new, self.version, self._strings)
            if end is not None:
                if new.finish_reason is None:  # vLLM would go on
                    self._engine.abort_request([output.request_id])
                del self._responses[output.request_id]
                events.append(response.event(end.finish, self.clock, end.reason))
        self._stats.update(
            decode_steps=1, generated_tokens=made, slot_steps=self.capacity, busy_slot_steps=len(outputs)
        )
        return events

    @contextmanager
    def _losing(self, doing: str) -> Iterator[None]:
        """Mark the engine as lost if an error leaves vLLM unable to go on."""
        try:
            with speaking_of(doing):
                yield
        except EngineError:
            self._lost = True
            raise


def _adapter_request(folder: str = "") -> Any:
    """Return vLLM's name for the one adapter, for requests; with a ``folder``, for reading it from there."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("published", 1, folder or "read before", load_inplace=bool(folder))


def _sampling_params(request: SampleRequest, vocabulary: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    made = 0 if request.prefix is None else len(request.prefix)
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=generator_seed(request),
        max_tokens=sampling.max_tokens - made,
        stop_token_ids=[token for token in sampling.stop_token_ids if 0 <= token < vocabulary],
        ignore_eos=True,  # only the recipe's stop tokens end a response
        logprobs=0,  # that of the sampled token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _check_head_size(size: int) -> None:
    """On a CPU vLLM starts with any head and fails at its first token.

    Raises:
        EngineError: no kernel for heads of this size.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    known = CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise EngineError(
            f"the model has attention heads of {size}, and vLLM's CPU kernels know {', '.join(map(str, known))}; "
            "use another model, a GPU, or rollout.engine: embedded"
        )


def _start(args: dict[str, Any], head_size: int | None = None) -> Any:
    """vLLM's engine. What it changes for the whole process on the way is put back; compilation stays off, on a CPU.

    Args:
        args: Of ``EngineArgs``.
        head_size: On a CPU, that of the model's attention.

    Raises:
        EngineError: vLLM is missing, refuses an argument, or fails to start.
    """
    if head_size is not None and args["enforce_eager"]:
        # A few small functions of its sampler would still be compiled, for half a minute and no gain on a CPU.
        torch._dynamo.config.disable = True
    try:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        raise EngineError(
            f"rollout.engine: vllm needs vLLM, which cannot be imported ({error}): install it, "
            f"`{install('vllm')}` (CPU: see docs/engines.md), or set rollout.engine: embedded"
        ) from None
    if head_size is not None:
        _check_head_size(head_size)
    set_num_threads, default_dtype = torch.set_num_threads, torch.get_default_dtype()
    try:
        with speaking_of("starting"), torch.random.fork_rng(devices=[]):
            return LLMEngine.from_engine_args(EngineArgs(**args), enable_multiprocessing=False)
    finally:
        torch.set_num_threads = set_num_threads  # its CPU worker replaces it by a function that does nothing
        torch.set_default_dtype(default_dtype)
