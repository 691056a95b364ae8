"""vLLM's decode rate beside the embedded engine's: up to which size is which the better choice?"""

from __future__ import annotations

from benchmarks.gpu import bounds
from benchmarks.gpu.check_vllm import start
from benchmarks.gpu.limits import BANDWIDTH
from benchmarks.gpu.made import finish, make_learner, requests
from benchmarks.gpu.room import Room
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, make_loaded
from benchmarks.gpu.speed_decode import PROMPT, STEPS, _prompts
from benchmarks.gpu.timing import seconds


def decode(room: Room, size: str) -> None:
    """256 responses at once: the difference of a long and a short run, so that prompts do not count."""
    shape = PUBLISHED[size] if room.on_card else REHEARSED
    rows, steps = room.sized((256, STEPS), (8, 8))
    loaded = make_loaded(shape, room.device, "bfloat16")
    folder = room.folder / "model"
    loaded.model.config.save_pretrained(folder)  # vLLM reads the configuration; weights come by publish
    loaded.name = str(folder)
    learner = make_learner(loaded)
    engine = start(room, loaded, slots=rows, longest=PROMPT + 2 * STEPS)
    try:
        engine.load(learner.publish(0))
        prompts = _prompts(shape, rows, room.sized(PROMPT, 8))

        def run(tokens: int) -> float:
            engine.submit(requests(prompts, 1, tokens))
            return seconds(lambda: finish(engine), room.device)

        run(steps)  # graphs, and the prompts' keys and values, which vLLM keeps
        first = run(2)
        rate = rows * steps / max(run(steps + 2) - first, 1e-9)
    finally:
        engine.close()
        learner.close()
    room.rate(f"vLLM, {rows} rows: decode", rate, "tokens/s", main=True)
    if bandwidth := room.found("card_limits", BANDWIDTH):
        bound = bounds.decode_bound(shape, rows, len(prompts[0]) + steps / 2, bandwidth)
        room.rate(f"vLLM, {rows} rows: share of the memory bound", rate / bound, main=True)
    ours = room.found(f"decode_{size}", f"embedded (fused), {rows} rows: decode")
    if ours:
        room.rate("embedded over vLLM", ours / rate)
