"""Small run folders, made up, written by the project's own writers. No model, no torch.

``make_run(folder)`` is a run that learned; ``how`` makes the others. Every number follows from the step, so that tests
can say what a page must show.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dapo.config import recipe_from_dict
from dapo.observe.jsonl import JsonlWriter, write_atomically
from dapo.observe.metrics import MetricWriter
from dapo.observe.prompts import write_prompts
from dapo.observe.rollouts import write_rollouts
from dapo.observe.samples import Sample, write_samples
from dapo.observe.tokens import SCHEMA
from dapo.types.batch import Group, Prompt, Response, Score, content_id
from dapo.types.enums import Disposition, FinishReason, Verdict

How = Literal["good", "collapsed", "unfilled", "crashed", "killed", "running", "interrupted"]
BEGAN = 1_800_000_000.0
"""Unix seconds at which the made runs start. A step takes one second."""
HOSTILE = (
    "</script><script>window.broken=1</script><img src=x onerror='window.broken=2'>\u202e\x00\x1b[2J"
    '{"a":"\\u003c"} --> ]]> ${1+1} \u2028 & &lt;b&gt; \ufffd \U0001f600'
)


def make_run(
    folder: Path,
    steps: int = 12,
    *,
    how: How = "good",
    wanted: int | None = None,
    groups: int = 6,
    size: int = 4,
    seed: int = 1,
    prompts: int = 8,
    text: Callable[[int, int, int], str] | None = None,
    metrics: Callable[[int], Mapping[str, float]] | None = None,
    settings: Mapping[str, Any] | None = None,
    template: str = "{}",
    parts: str = "status spans tokens samples rollouts prompts log",
) -> Path:
    """Write a run folder and return it.

    Args:
        folder: To be made.
        steps: With a line in metrics.jsonl, beside that of step 0.
        how: The run ends. ``unfilled`` also has rollouts of the step that stopped.
        wanted: The recipe's trainer.steps; default ``steps``, and ten more where the run did not get that far.
        groups: Of each step: verdicts and dispositions in turn, so that 6 have every common pair.
        size: Responses of a group.
        seed: The recipe's run.seed; accuracies differ a little by it.
        prompts: Different prompts; group n of a step has prompt (step x groups + n) mod prompts.
        text: Of a response, from step, group in the step and sample; default: right or wrong sums.
        metrics: More metrics of a step, over the made ones.
        settings: More settings of the recipe, by section.
        template: Around each problem, as a chat model sees it.
        parts: Which files there are beside metrics and recipe.
    """
    folder.mkdir(parents=True)
    wanted = wanted or (steps if how in ("good", "collapsed") else steps + 10)
    given: dict[str, Any] = {
        # a folder may have been called anything since; no recipe has such a name
        "run": {"name": folder.name if folder.name.isprintable() else "run", "seed": seed},
        "model": {"path": "a/b"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rollout": {"prompts_per_step": 4, "group_size": size},
        "learner": {"minibatch_prompts": 2, "learning_rate": 2e-6},
        "trainer": {"steps": wanted},
    }
    for section, values in (settings or {}).items():
        given[section] = {**given.get(section, {}), **values}
    loaded = recipe_from_dict(given)
    (folder / "recipe.resolved.yaml").write_text(loaded.resolved, encoding="utf-8")
    (folder / "difference.txt").write_text(
        "against preset dapo:\n" + "".join(f"  {k}  {a!r} -> {b!r}\n" for k, (a, b) in loaded.difference.items())
    )
    with MetricWriter(folder / "metrics.jsonl") as file:
        for step in range(steps + 1):
            file.write(step, {**metrics_of(step, steps, how, seed), **(metrics(step) if metrics else {})})
    known = [make_prompt(n, template) for n in range(prompts)]
    judged = {
        s: [make_group(s, n, groups, size, known, text) for n in range(groups)]
        for s in range(1, steps + 1 + (how == "unfilled"))
    }
    stopped = judged.pop(steps + 1, None)
    if "rollouts" in parts:
        for step, made in judged.items():
            write_rollouts(folder / "rollouts" / f"step_{step:06d}.parquet", step, made)
        if stopped is not None:
            write_rollouts(folder / "stopped" / f"step_{steps + 1:06d}.parquet", steps + 1, stopped)
    if "tokens" in parts:
        for step, made in judged.items():
            write_tokens(folder / "tokens" / f"step_{step:06d}.parquet", step, made[:2])
    if "prompts" in parts:
        write_prompts(folder / "prompts.parquet", known)
    write_lines(folder, steps, how, parts)
    if "status" in parts:
        write_status(folder, steps, wanted, how)
    return folder


def write_lines(folder: Path, steps: int, how: How, parts: str) -> None:
    """samples.jsonl, spans.jsonl and log.txt."""
    if "samples" in parts:
        for step in range(0, steps + 1, 4):
            write_samples(folder / "samples.jsonl", samples_of(step, steps))
    if "spans" in parts:
        with JsonlWriter(folder / "spans.jsonl") as file:
            file.append(*(span for step in range(1, steps + 1) for span in spans_of(step)))
    if "log" in parts:
        lines = ["2027-01-15 08:00:00,000 WARNING dapo: a warning"]
        lines += ["Traceback (most recent call last):", "RuntimeError: out of memory"] * (how == "crashed")
        (folder / "log.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_status(folder: Path, step: int, wanted: int, how: How) -> None:
    """status.json. A ``killed`` and a ``running`` run say the same: only the lock tells them apart."""
    states = {"crashed": "failed", "killed": "running", "good": "finished", "collapsed": "finished"}
    said = {
        "unfilled": f"step {step + 1}: the batch could not be filled: 40 judged, 1 of 4 kept. They are too hard.",
        "crashed": "RuntimeError: out of memory",
        "interrupted": "interrupted and saved",
    }
    record = {
        "state": states.get(how, how),
        "said": said.get(how, ""),
        "step": step,
        "steps": wanted,
        "pid": 2**22 + 1,  # above the kernel's largest: nobody
        "host": "elsewhere",
        "started": BEGAN,
        "updated": BEGAN + step,
    }
    write_atomically(folder / "status.json", json.dumps(record))


def metrics_of(step: int, steps: int, how: How, seed: int = 1) -> dict[str, float]:
    """A row. Accuracy rises from 0.2 to 0.8 (``collapsed``: falls back to 0.1 from the middle on)."""
    done = step / max(1, steps)
    learned = 0.2 + 0.6 * done + 0.01 * (seed - 1)
    entropy = 0.8 - 0.3 * done
    if how == "collapsed" and done > 0.5:
        learned, entropy = max(0.1, learned - 1.5 * (done - 0.5)), max(0.001, 0.65 * (1 - 2 * (done - 0.5)) ** 4)
    row: dict[str, float] = {"time/step": 1.0, "memory/peak_rss_mib": 500.0 + step, "time/other": 0.05}
    if step % 4 == 0 or step == steps:
        for prefix in ("validation/", "validation/held_out/"):
            row |= {prefix + "accuracy": learned, prefix + "accuracy_low": learned - 0.05}
            row |= {prefix + "accuracy_high": learned + 0.05, prefix + "problems": 128, prefix + "length_mean": 40.0}
            row |= {prefix + "greedy_accuracy": learned + 0.02, prefix + "truncated_share": 0.05}
        row["time/evaluate"] = 0.2
    if step == 0:
        return row
    kept = 0.2 if how == "unfilled" else 0.6
    row |= {
        "reward/raw": learned - 0.02,
        "reward/raw_kept": 0.5,
        "reward/accuracy": learned - 0.02,
        "reward/accuracy_kept": 0.5,
        "reward/unscored": 0,
        "groups/dispatched": 10,
        "groups/finished": 10,
        "groups/kept": 10 * kept,
        "groups/kept_share": kept,
        "groups/all_correct": 10 * (1 - kept) * done,
        "groups/all_correct_share": (1 - kept) * done,
        "groups/all_wrong": 10 * (1 - kept) * (1 - done),
        "groups/all_wrong_share": (1 - kept) * (1 - done),
        "groups/age_mean": 0.5,
        "groups/age_max": 1,
        "groups/trained": 4,
        "groups/waiting": 1,
        "groups/unfinished": 2,
        "sampling/acceptance_rate": kept,
        "sampling/acceptance_estimate": kept,
        "sampling/refills": 2,
        "sampling/responses": 40,
        "sampling/generated_tokens": 1600,
        "sampling/trained_tokens": 640,
        "sampling/trained_share": 0.4,
        "sampling/cap_reached": 0,
        "cost/trained_tokens": 640,
        "cost/rejected_tokens": 640,
        "cost/discarded_tokens": 0,
        "cost/expired_tokens": 0,
        "cost/filled_tokens": 0,
        "cost/held_tokens": 320,
        "counters/generated_tokens": 1600 * step,
        "counters/trained_tokens": 640 * step,
        "response/length_mean": 40.0 + step,
        "response/length_p50": 40.0,
        "response/length_correct_mean": 35.0,
        "response/length_wrong_mean": 45.0,
        "response/truncated_share": 0.05,
        "response/penalty_mean": -0.02,
        "response/penalized": 0.04,
        "response/voters": 0.97,
        "response/with_loss": 0.95,
        "train/entropy": entropy,
        "train/loss": 0.01,
        "train/clip_low": 0.001,
        "train/clip_high": 0.002,
        "train/clip_dual": 0.0,
        "train/clip_high_probability": float("nan"),
        "train/gap_mean": 0.001,
        "train/gap_max": 0.1,
        "train/gap_kl": 0.0001,
        "train/approx_kl": 0.0002,
        "train/grad_norm": 0.4,
        "train/grad_norm_max": 0.5,
        "train/learning_rate": 2e-6,
        "train/ratio_mean": 1.0,
        "time/generate": 0.5,
        "time/score": 0.1,
        "time/learn": 0.3,
        "time/publish": 0.05,
        "time/tokens_per_second": 3200.0,
        "time/trained_tokens_per_second": 2133.0,
    }
    return row


def make_prompt(n: int, template: str = "{}") -> Prompt:
    problem = f"{n} + {n} ="
    return Prompt(
        content_id(problem), template.format(problem), np.array([1, 2], np.int64), problem, str(2 * n), "sums"
    )


_KINDS = [
    (Verdict.KEPT, Disposition.TRAINED),
    (Verdict.KEPT, Disposition.CARRIED),
    (Verdict.ALL_CORRECT, Disposition.DISCARDED),
    (Verdict.ALL_WRONG, Disposition.DISCARDED),
    (Verdict.TOO_FEW_SCORED, Disposition.DISCARDED),
    (Verdict.ALL_WRONG, Disposition.FILLED),
]


def make_group(
    step: int,
    n: int,
    groups: int,
    size: int,
    prompts: list[Prompt],
    text: Callable[[int, int, int], str] | None = None,
) -> Group:
    """Group ``step x 1000 + n``. Of a kept one the even samples are right; sample s has n + s + 1 tokens."""
    verdict, disposition = _KINDS[n % len(_KINDS)]
    prompt = prompts[(step * groups + n) % len(prompts)]
    right = {Verdict.KEPT: [s % 2 == 0 for s in range(size)], Verdict.ALL_CORRECT: [True] * size}
    correct = right.get(verdict, [False] * size)
    unscored = verdict is Verdict.TOO_FEW_SCORED
    completions = []
    for s in range(size):
        said = text(step, n, s) if text else f"= {prompt.answer if correct[s] else -1}"
        length = n + s + 1
        finish = FinishReason.LENGTH if s == size - 1 and n % 2 else FinishReason.STOP
        logprobs = np.linspace(-1.5, -0.1, length, dtype=np.float32)
        ids, versions = np.arange(length, dtype=np.int64), np.full(length, step - 1, np.int32)
        completions.append(Response(ids, logprobs, versions, finish, said))
    scores = [
        Score(reason="timeout: 10 s") if unscored else Score({"accuracy": float(c), "form": 0.5}, float(c) + 0.05)
        for c in correct
    ]
    group = Group(step * 1000 + n, prompt, completions, scores, max(1, step - 1), verdict, disposition)
    if disposition in (Disposition.TRAINED, Disposition.FILLED):
        values = np.array([1.0 if c else -1.0 for c in correct])
        group.voters_G, group.penalties_G = np.ones(size, np.bool_), np.zeros(size)
        group.rewards_G = values
        group.advantages_G = values - values.mean()
    return group


def write_tokens(path: Path, step: int, groups: list[Group]) -> None:
    """Token records: of groups that trained with everything, of others the sampler's alone."""
    rows = []
    for group in groups:
        trained = group.disposition is Disposition.TRAINED
        for s, completion in enumerate(group.completions_G):
            length, said = len(completion), completion.text
            cuts = [len(said) * i // length for i in range(length + 1)]
            sampler = completion.logprobs
            rows.append(
                {
                    "step": step,
                    "group": group.id,
                    "sample": s,
                    "pieces": [said[a:b] for a, b in itertools.pairwise(cuts)],
                    "sampler": sampler.tolist(),
                    "learner": (sampler + 0.1).tolist() if trained else None,
                    "old": sampler.tolist() if trained else None,
                    "ratio": np.exp(np.full(length, 0.1)).tolist() if trained else None,
                    "entropy": np.linspace(0.9, 0.1, length).tolist() if trained else None,
                    "clip": [t % 4 for t in range(length)] if trained else None,
                    "versions": completion.versions.tolist(),
                }
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd")


def samples_of(step: int, steps: int) -> list[Sample]:
    """Three problems, one greedy and one sampled answer each. Problem 0 is learned by the middle, 1 never, 2 known."""
    answers = [f"= {n}" if right else "= ?" for n, right in enumerate((2 * step >= steps, False, True))]
    return [
        Sample(
            step, "held_out", content_id(f"held {n}"), f"held {n} =", str(n), said, float("?" not in said), 3, False, g
        )
        for n, said in enumerate(answers)
        for g in (True, False)
    ]


def spans_of(step: int) -> list[dict[str, Any]]:
    """Generate half a second with score inside it, then learn and publish."""
    began = BEGAN + step - 1
    return [
        {"step": step, "name": "generate", "start": began, "seconds": 0.5, "busy": 0.5, "count": 1},
        {"step": step, "name": "score", "start": began + 0.2, "seconds": 0.25, "busy": 0.1, "count": 5},
        {"step": step, "name": "learn", "start": began + 0.55, "seconds": 0.3, "busy": 0.3, "count": 2},
        {"step": step, "name": "publish", "start": began + 0.85, "seconds": 0.05, "busy": 0.05, "count": 1},
    ]
