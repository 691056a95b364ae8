"""Decode steps as CUDA graphs: some 430 launches (18 in each of 24 layers) become one.

A graph repeats what was recorded, at the addresses and in the shapes that it was recorded with. So a step takes its
tokens from one place and leaves its hidden states in another, and rows are rounded up (:func:`rounded`): rows that
no request needs compute along in free slots of their pool, and are ignored. The output head and the drawing of
tokens stay outside, where shapes may be what they like.

A step of new shapes runs as it is, which also warms up whatever torch makes on first use; the second one of these
shapes is recorded, and the third is a replay. The first recording of a set is replayed and held against the step as it
is. Where recording fails, or that comparison, everything goes on without graphs, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch import Tensor

from dapo.engines.cache import DecodeBatch, most_rows
from dapo.errors import EngineError

log = logging.getLogger(__name__)

MOST = 64  # recordings at once; the one that was used longest ago makes room
_OFF = 0.02  # accepted |replay - step| / |step|: they are the same kernels, and a wrong address is off by about 1

Work = Callable[[], None]


class Recording(Protocol):
    """Work that can be repeated; ``torch.cuda.CUDAGraph`` is one."""

    def replay(self) -> None: ...

    def reset(self) -> None:
        """Give back what it holds."""


class GraphRecorder(Protocol):
    """Makes recordings."""

    def record(self, work: Work) -> Recording:
        """Record what ``work`` does on the device. Whether it is also done now is undefined.

        Raises:
            RuntimeError: it cannot be recorded.
        """

    def renew(self) -> None:
        """All recordings made so far were given back."""


class CudaRecorder:
    """Captures CUDA graphs. They share the memory of what they compute on the way, since one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Recording:
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            # not torch.cuda.graph: that waits for the device and empties torch's cache each time
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        now.wait_stream(self._stream)
        found: Recording = graph
        return found

    def renew(self) -> None:
        """Memory of the next recordings: torch takes a pool for dead once its last graph was given back."""
        self._pool = torch.cuda.graph_pool_handle()


def rounded(rows: int) -> int:
    """Rows that a pool of ``rows`` live ones computes: a multiple of 8, or of an eighth to a quarter of them."""
    step = max(8, 1 << max(0, (rows - 1).bit_length() - 3))
    return -(-rows // step) * step


class StepGraphs:
    """The recordings of an engine, by the shapes of the step.

    Args:
        recorder: None: steps have fixed shapes and addresses and run as they are (for comparison).
        rows: most rows of a step, those rounded up included.
        like: a tensor of hidden states' width, type and device.
        required: a failure is an error, not a warning.
    """

    def __init__(self, recorder: GraphRecorder | None, rows: int, like: Tensor, *, required: bool = False) -> None:
        self._recorder, self._required = recorder, required
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=like.device)
        self._hidden = torch.zeros(rows, like.shape[-1], dtype=like.dtype, device=like.device)
        self._recordings: dict[Hashable, Recording] = {}  # the one used longest ago first
        self._seen: set[Hashable] = set()
        self._addresses: tuple[int, ...] = ()
        self._proved = False  # a replay of the present set was held against the step as it is
        self.broken: str | None = None  # why nothing is recorded any more
        self.recorded = self.replayed = 0  # recordings made, and steps that were replays

    def rows(self, live: int) -> int:
        """Rows that a pool with ``live`` ones is to compute."""
        return live if self.broken is not None else rounded(live)

    def run(self, tokens: Tensor, batch: DecodeBatch, step: Callable[[Tensor], Tensor]) -> Tensor:
        """Hidden states [live rows, width] of a step.

        Args:
            tokens: [live rows]
            batch: the rows.
            step: from tokens [rows, those rounded up included] to hidden states [rows, width]; to call it twice for one
                step changes nothing.

        Raises:
            EngineError: recording failed, and it is required.
        """
        given, made = self._tokens[: batch.rows], self._hidden[: batch.rows]
        if batch.live is None:
            given.copy_(tokens)
        else:
            given.index_copy_(0, batch.live, tokens)
        recording = self._of(batch.shapes, lambda: step(given), made)
        if recording is None:
            made.copy_(step(given))
        else:
            recording.replay()
            self.replayed += 1
        return made if batch.live is None else made.index_select(0, batch.live)

    def _of(self, shapes: Hashable, step: Callable[[], Tensor], made: Tensor) -> Recording | None:
        """Return the recording of these shapes; None means that the step runs as it is."""
        recording = self._recordings.pop(shapes, None)
        if recording is None:
            if self._recorder is None or self.broken is not None:
                return None
            if shapes not in self._seen:
                self._seen.add(shapes)
                return None
            if (recording := self._record(self._recorder, step, made)) is None:
                return None
            if len(self._recordings) >= MOST:
                self._recordings.pop(next(iter(self._recordings))).reset()
        self._recordings[shapes] = recording
        return recording

    def _record(self, recorder: GraphRecorder, step: Callable[[], Tensor], made: Tensor) -> Recording | None:
        def work() -> None:
            made.copy_(step())

        try:
            recording = recorder.record(work)
        except RuntimeError as error:
            self._break(f"{type(error).__name__}: {error}".partition("\n")[0])
            return None
        self.recorded += 1
        if not self._proved:
            wanted = step().float()
            made.zero_()
            recording.replay()
            off = float((made.float() - wanted).norm() / wanted.norm().clamp_min(1e-30))
            if not off <= _OFF and bool(wanted.isfinite().all()):
                self._recordings[None] = recording  # to be given back with the others
                self._break(f"a replay is off the step itself by {off:.2g} of its size")
                return None
            self._proved = True
        return recording

    def _break(self, reason: str) -> None:
        self.forget()
        self.broken = reason
        if self._required:
            raise EngineError(
                f"a decode step cannot be recorded as a CUDA graph: {reason}. Leave rollout.embedded.cuda_graphs out, "
                "and such steps run as they are, or set it to false"
            )
        log.warning("decoding goes on without CUDA graphs: %s", reason)

    def forget(self) -> None:
        """Addresses that recordings know are about to change: the cache gives its memory back."""
        for recording in self._recordings.values():
            recording.reset()
        if self._recordings and self._recorder is not None:
            self._recorder.renew()
        self._recordings.clear()
        self._seen.clear()
        self._proved = False

    def weights_at(self, addresses: tuple[int, ...]) -> None:
        """Take these addresses of the weights; recordings that know others are dropped."""
        if addresses != self._addresses:
            self.forget()
        self._addresses = addresses


def make_graphs(wanted: bool | None, decoder: Any, rows: int, like: Tensor) -> StepGraphs | None:
    """Return the recordings of an engine; None if it runs without.

    Args:
        wanted: ``rollout.embedded.cuda_graphs``. None: where the device and the decoder can; True: else it is an error.
        decoder: of the engine.
        rows: that decode at once.
        like: as of :class:`StepGraphs`.

    Raises:
        EngineError: they are wanted, and cannot be.
    """
    if wanted is False:
        return None
    reason = None
    if like.device.type != "cuda":
        reason = f"the model is on {like.device.type}: set model.device=cuda on a machine with a GPU"
    elif decoder.name != "fused":
        reason = "only fused decoding can be recorded, and this model is decoded by transformers' own code"
    if reason is None:
        return StepGraphs(CudaRecorder(like.device), most_rows(rows), like, required=bool(wanted))
    if wanted:
        raise EngineError(f"rollout.embedded.cuda_graphs is true, and {reason}; or leave the setting out")
    return None
