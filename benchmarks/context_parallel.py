"""Compare ranks that share each row with one process: worst gradient, loss, and activations that a rank keeps.

python benchmarks/context_parallel.py            # two minutes; writes benchmarks/results/context_parallel.md

Tiny models over processes of this machine (gloo). Gradients and losses are of one optimizer step in float64, over rows
of unequal length; a tensor's difference is relative to its largest number. Activations are the bytes that a float32
pass over two rows of 1,100 tokens keeps for its backward pass, six layers. Parts come from the tests' helpers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import rank_work
from machine import RESULTS, describe_machine, refuse_changes
from rank_stage import open_stages

from dapo.learner.sharding import Shape
from dapo.metrics.stats import merge, values
from dapo.models.tiny import make_tiny_model

EXPERTS = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
MODELS = {
    "Llama, 4 heads": {"architecture": "llama", "hidden": 32, "heads": 4, "ffn": 48},
    "Llama, 12 heads, 3 key heads": {"architecture": "llama", "hidden": 48, "heads": 12, "kv_heads": 3, "ffn": 48},
    "Qwen3, 4 heads, 2 key heads": {"architecture": "qwen3", "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48},
    "Qwen3-MoE, 8 experts": {
        "architecture": "qwen3_moe",
        "hidden": 32,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 48,
        **EXPERTS,
    },
}
SHARED = (2, 4)


def worst(found, expected) -> float:  # type: ignore[no-untyped-def]
    """Return the largest difference of any gradient, relative to that gradient's largest number."""
    return max(float((found[name] - one).abs().max() / one.abs().max()) for name, one in expected.items())


def table() -> list[str]:
    """Return the lines of the results."""
    lines = [
        "| model | ranks that share a row | worst gradient | loss | activations of a rank, share of one process |",
        "| --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with open_stages(folder) as stages:
            for number, (name, options) in enumerate(MODELS.items()):
                tiny, deep = (
                    make_tiny_model(folder / f"{number}-{layers}", layers=layers, **options) for layers in (2, 6)
                )
                one = rank_work.alone(tiny, "float64", "uneven")
                for ranks in SHARED:
                    stage = stages(ranks)
                    shape = Shape(ranks, context_parallel=ranks)
                    answers = stage.all("run", rank_work.sharded, tiny, "float64", shape, "uneven")
                    losses = [values(stats)["train/loss"] for stats in (merge(a[0] for a in answers), one[0])]
                    kept = stage.all("run", rank_work.kept_bytes, deep, ranks, "none")
                    most = max(own / whole for whole, own in kept)
                    lines.append(
                        f"| {name} | {ranks} | {worst(answers[0][1], one[1]):.1e} | {abs(losses[0] - losses[1]):.1e} | "
                        f"{most:.0%} |"
                    )
                    print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "context_parallel.md", help="where the table goes")
    out = parser.parse_args().out
    refuse_changes(out)
    machine = describe_machine()
    said = (
        f"`{machine['command']}`: {machine['cpu']}, torch {machine['packages']['torch']}, commit {machine['commit']}, "
        f"{machine['date']}."
    )
    text = "\n".join(["# Ranks that share each row", "", said, "", *table()]) + "\n"
    out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
