"""Tokens a second on a processor against the arithmetic limit: model sizes x precisions, generation and learning.

    make bench-processor        # all of it; writes benchmarks/results/processor.{json,md}
    python benchmarks/processor.py --sizes 31M --precisions bfloat16 --repeats 1 --tokens 32 --out /tmp/short

The sides of a row take turns in one process with one thread. All count seconds of the processor, which other programs
on the machine change less than wall-clock time. The limit is measured, too: the matrix products of a decode step (or of
a training step's forward and backward pass), of the same shapes and precision, and nothing else. So 100 % is a program
that does only products. vLLM takes part where it is installed (`.venv-vllm`) and knows the precision. ``padded`` is
what one writes first in place of the learner: padded rows and the model's own attention, as TRL has them. A precision
that this processor does not multiply in (bfloat16 without instructions for it takes seven times float32's time), or
in which it does the same as in float32, is left out, and the page says so.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, refuse_changes

from dapo.algorithms.objective import clip_objective
from dapo.config import schema
from dapo.engines.embedded import EmbeddedEngine
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import WorkerHere
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.models.facts import facts_of
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.models.precision import PRECISIONS, product_rate, product_seconds
from dapo.models.tiny import make_tiny_model
from dapo.models.weight_files import model_tensors
from dapo.types.batch import LearnStep, Row, SampleRequest, SamplingParams, Ticket
from dapo.weights.shared import offer

HERE = Path(__file__).resolve().parent
GROUPS, GROUP, PROMPT = 8, 16, 8
ROWS = GROUPS * GROUP


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int = 8000

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's products as the engine makes them, of all layers, and of the head."""
        d = self.hidden // self.heads
        layer = [
            (self.hidden, (self.heads + 2 * self.kv_heads) * d),
            (self.heads * d, self.hidden),
            (self.hidden, 2 * self.ffn),
            (self.ffn, self.hidden),
        ]
        return layer * self.layers + [(self.hidden, self.vocabulary)]


SIZES = {
    "31M": Size(512, 8, 8, 8, 1536),
    "65M": Size(640, 11, 10, 5, 2048),
    "120M": Size(768, 14, 12, 6, 2688),
}


def seconds(work: Callable[[], Any]) -> float:
    """Seconds of the processor."""
    start = time.process_time()
    work()
    return time.process_time() - start


def decode_limit(size: Size, dtype: torch.dtype, tokens: int) -> float:
    """Seconds of one decode step's products: weights, and each query with its keys and values at the mean length."""
    shapes = sorted(set(size.matrices))
    of_weights = sum(
        size.matrices.count((k, n))
        * product_seconds(lambda k=k, n=n: (torch.randn(ROWS, k).to(dtype), torch.randn(n, k).to(dtype).t()))
        for k, n in shapes
    )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # the faster of the two for such products
    batch, d, width = ROWS * size.kv_heads, size.hidden // size.heads, PROMPT + tokens // 2
    group = size.heads // size.kv_heads
    scores = product_seconds(
        lambda: (torch.randn(batch, group, d).to(dtype), torch.randn(batch, width, d).to(dtype).transpose(1, 2))
    )
    mixed = product_seconds(
        lambda: (torch.randn(batch, group, width).to(dtype), torch.randn(batch, width, d).to(dtype))
    )
    torch.set_float32_matmul_precision(before)
    return of_weights + size.layers * (scores + mixed)


def learn_limit(size: Size, dtype: torch.dtype, rows: int) -> float:
    """Seconds of the products with weights, forward and backward, over ``rows`` tokens; attention is left out."""

    def three(k: int, n: int) -> float:
        x, weight, gradient = (torch.randn(*shape).to(dtype) for shape in ((rows, k), (n, k), (rows, n)))
        pairs = ((x, weight.t()), (gradient, weight), (gradient.t(), x))
        return sum(product_seconds(lambda pair=pair: pair) for pair in pairs)

    return sum(size.matrices.count(shape) * three(*shape) for shape in sorted(set(size.matrices)))


def requests(turn: int, tokens: int, vocabulary: int) -> list[SampleRequest]:
    prompts = np.random.default_rng(turn).integers(5, vocabulary, (GROUPS, PROMPT))
    return [
        SampleRequest((turn * GROUPS + p, g), prompts[p], SamplingParams(tokens), seed=1000 * turn + p * GROUP + g)
        for p in range(GROUPS)
        for g in range(GROUP)
    ]


def generate(engine: Any, work: Sequence[SampleRequest]) -> None:
    engine.submit(work)
    while engine.poll():
        pass


def by_transformers(model: Any, work: Sequence[SampleRequest]) -> None:
    """One batch through ``generate``, as TRL does."""
    ids, tokens = torch.from_numpy(np.stack([r.prompt_ids for r in work])), work[0].sampling.max_tokens
    model.generate(ids, do_sample=True, top_k=0, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)


def make_rows(tokens: int, vocabulary: int) -> list[Row]:
    random = np.random.default_rng(0)
    prompts = random.integers(5, vocabulary, (GROUPS, PROMPT))
    return [
        Row(
            group=p,
            sample=g,
            prompt_ids=prompts[p],
            token_ids=random.integers(5, vocabulary, tokens),
            loss_mask=np.ones(tokens, np.bool_),
            sampler_logprobs=np.full(tokens, -9, np.float32),
            versions=np.zeros(tokens, np.int32),
            loss_weight=1 / (ROWS * tokens),
            advantage=float(random.normal()),
        )
        for p in range(GROUPS)
        for g in range(GROUP)
    ]


class Plain:
    """The padded implementation that one writes first."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.adamw = torch.optim.AdamW(loaded.model.parameters(), lr=1e-5)

    def update(self, rows: list[Row]) -> None:
        longest = max(len(row.prompt_ids) + len(row.token_ids) for row in rows)
        shape = (len(rows), longest)
        ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        weights, advantages, old = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        for index, row in enumerate(rows):
            start, stop = len(row.prompt_ids), len(row.prompt_ids) + len(row.token_ids)
            ids[index, :stop] = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))
            mask[index, :stop] = 1
            advantages[index, start:stop] = row.advantage
            for target, values in ((weights, row.loss_weights()), (old, row.sampler_logprobs)):
                target[index, start:stop] = torch.from_numpy(values)
        logits = self.loaded.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logprobs = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        ratio = (logprobs - old[:, 1:]).exp()
        surrogate = torch.minimum(ratio * advantages[:, 1:], ratio.clamp(0.8, 1.28) * advantages[:, 1:])
        (-(surrogate * weights[:, 1:]).sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.loaded.model.parameters(), 1.0)
        self.adamw.step()
        self.adamw.zero_grad()


def make_engines(loaded: LoadedModel, tokens: int) -> dict[str, Any]:
    engines: dict[str, Any] = {"embedded": EmbeddedEngine(loaded, longest=PROMPT + tokens)}
    if find_spec("vllm") is not None and torch.get_float32_matmul_precision() == "highest":
        from dapo.engines.vllm import VllmEngine

        engines["vllm"] = VllmEngine(
            facts_of(loaded), cuda=False, longest=PROMPT + tokens, slots=ROWS, settings=schema.Vllm()
        )
        engines["vllm"].load(Ticket(0, "shared", offer(loaded.model), tuple(model_tensors(loaded.model))))
    return engines


def measure(name: str, precision: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Two rows of the table: generation and learning."""
    size, tokens = SIZES[name], options.tokens
    dtype, products = PRECISIONS[precision]
    torch.set_float32_matmul_precision(products)
    torch_dtype = getattr(torch, dtype)

    def load(attention: str) -> LoadedModel:
        return load_model(str(folder), device="cpu", dtype=torch_dtype, attention_mode=attention)

    loaded, padded, made = load("packed"), load("padded"), ROWS * tokens
    engines = make_engines(loaded, tokens)
    sides: dict[str, Callable[[int], float]] = {
        side: lambda turn, engine=engine: seconds(lambda: generate(engine, requests(turn, tokens, size.vocabulary)))
        for side, engine in engines.items()
    }
    sides["transformers"] = lambda turn: seconds(
        lambda: by_transformers(padded.model, requests(turn, tokens, size.vocabulary))
    )
    sides["limit"] = lambda turn: tokens * decode_limit(size, torch_dtype, tokens)
    found = [alternate("generate", sides, made, options.repeats)]
    for engine in engines.values():
        engine.close()

    step = PolicyStep(loaded, clip_objective(low=0.2, high=0.28), schema.LearnerSection(), 1.0)
    learner = LearnerDriver(WorkerHere(Worker(step)))
    plain, rows = Plain(padded), make_rows(tokens, size.vocabulary)
    found.append(
        alternate(
            "learn",
            {
                "learner": lambda turn: seconds(lambda: learner.learn(LearnStep([rows], [1e-6], turn))),
                "padded": lambda turn: seconds(lambda: plain.update(rows)),
                "limit": lambda turn: learn_limit(
                    size, torch_dtype, min(made, schema.LearnerSection().microbatch_tokens)
                ),
            },
            made,
            options.repeats,
        )
    )
    return [{"size": name, "precision": precision, **row} for row in found]


def alternate(what: str, sides: dict[str, Callable[[int], float]], tokens: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of the processor, of each side in turn; the first turn of each is not counted."""
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(repeats + 1):
        for side in sorted(sides, reverse=bool(turn % 2)):
            rate = tokens / sides[side](turn)
            if turn:
                rates[side].append(rate)
    return {"what": what, "rates": rates, "load": os.getloadavg()[1]}


def cell(rates: list[float]) -> str:
    middle = statistics.median(rates)
    return f"{middle:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})" if len(rates) > 1 else f"{middle:,.0f}"


def table(report: dict[str, Any]) -> str:
    """The results as a page."""
    machine, rows = report["machine"], report["rows"]
    lines = [
        "# 30 to 150 million parameters on a processor",
        "",
        f"{machine['cpu']}, one thread; {json.dumps(machine['packages'])}; commit {machine['commit']}; "
        f"{machine['date']}. `{machine['command']}`. {ROWS} responses of {report['tokens']} tokens, "
        f"{report['repeats']} repeats; tokens a second of the processor, medians, ranges in brackets. The machine's "
        f"load was {min(r['load'] for r in rows):.1f} to {max(r['load'] for r in rows):.1f}. Products of the smallest "
        "model's shape, 10^9 operations a second: "
        + ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in report["products"].items())
        + "; a precision without a row is emulated here, or the same as float32.",
    ]
    for what, ours, others in (
        ("generate", "embedded", ["transformers", "vllm"]),
        ("learn", "learner", ["padded"]),
    ):
        lines += ["", f"## {what.capitalize()}", ""]
        lines.append("| " + " | ".join(["model", "precision", ours, *others, "products alone", "of these"]) + " |")
        lines.append("| --- " * (5 + len(others)) + "|")
        for row in (row for row in rows if row["what"] == what):
            rates = row["rates"]
            share = statistics.median(o / limit for o, limit in zip(rates[ours], rates["limit"], strict=True))
            cells = [cell(rates[side]) if side in rates else "" for side in (ours, *others, "limit")]
            lines.append("| " + " | ".join([row["size"], row["precision"], *cells, f"{share:.0%}"]) + " |")
    return "\n".join([*lines, ""])


def in_hardware(rates: dict[str, float]) -> list[str]:
    """Precisions worth a row, by their rates of products: float32, and what is neither emulated nor the same."""
    worth = [name for name, rate in rates.items() if rate > 0.5 * rates["float32"]]
    return [name for name in worth if name != "medium" or rates[name] > 1.2 * rates["float32"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: those in hardware")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="of each response")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of processor.json and processor.md")
    options = parser.parse_args()
    refuse_changes(options.out)
    torch.set_num_threads(1)
    machine, rows = describe_machine(), []
    rates = {name: product_rate(name, SIZES["31M"].hidden, 2 * SIZES["31M"].ffn) for name in PRECISIONS}
    options.precisions = options.precisions or in_hardware(rates)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            size, place = SIZES[name], Path(folder) / name
            make_tiny_model(
                place, "llama", hidden=size.hidden, layers=size.layers, heads=size.heads, kv_heads=size.kv_heads,
                ffn=size.ffn, vocabulary=size.vocabulary,
            )  # fmt: skip
            for precision in options.precisions:
                rows += measure(name, precision, place, options)
                print(json.dumps(rows[-2:]), flush=True)
    report = {"machine": machine, "tokens": options.tokens, "repeats": options.repeats, "products": rates, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "processor.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "processor.md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
