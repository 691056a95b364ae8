"""Size, seconds and memory of the report and of the server's answers on a long run and on one huge step, made up.

    .venv/bin/python benchmarks/report.py [--steps 5000] [--responses 512] [--huge 16384] [--work FOLDER]

``long``: 5,000 steps with 512 responses each in groups of 16, of about 90 tokens, token records of 4 groups a step,
spans and metrics as in a real run. Forty different steps are made and written by the project's own writers' tables;
every other step is one of these with its own step, group ids and prompts, changed as columns and written with the same
file writer. ``huge``: one step of 16,384 responses beside three small ones. ``hostile``: every response is text that
tries to break out of a page, with no two alike. Each part runs in a process of its own, so peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
from machine import describe_machine, refuse_changes

from dapo.config import recipe_from_dict
from dapo.observe.jsonl import JsonlWriter
from dapo.observe.metrics import MetricWriter
from dapo.observe.prompts import write_prompts
from dapo.observe.rollouts import SCHEMA, rollout_table, write_rollouts
from dapo.observe.samples import Sample, write_samples
from dapo.observe.spans import peak_rss_mib
from dapo.observe.tables import write_table_file
from dapo.observe.tokens import SCHEMA as TOKEN_SCHEMA
from dapo.observe.tokens import token_table
from dapo.types.batch import Group, Prompt, Response, Score, TokenTrace, content_id
from dapo.types.enums import Disposition, FinishReason, Verdict

GROUP, TOKENS, PROMPTS, MADE, RECORDED = 16, 90, 6000, 40, 4
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00\x1b[2J ]]> <!-- {{7*7}} \U0001f600"
WORDS = [f"{a}{b}" for a in ("so", "then", "add", "take", "we", "the", "sum", "of", "is") for b in ("", "s", "ing")]
KINDS = [
    *[(Verdict.KEPT, Disposition.TRAINED)] * 5,
    (Verdict.KEPT, Disposition.CARRIED),
    (Verdict.ALL_CORRECT, Disposition.DISCARDED),
    (Verdict.ALL_WRONG, Disposition.DISCARDED),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--responses", type=int, default=512)
    parser.add_argument("--huge", type=int, default=16384)
    parser.add_argument("--work", type=Path, help="Where the runs are made, and kept; default: a temporary folder.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--part", help="One measurement, as JSON on standard output.")
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part.split(":")[0]](Path(arguments.part.split(":", 1)[1]))))
        return
    refuse_changes(arguments.out)
    work = arguments.work or Path(tempfile.mkdtemp(prefix="report_"))
    results: dict[str, Any] = {"machine": describe_machine(), "runs": {}}
    for name, make in (
        ("long", lambda path: make_long(path, arguments.steps, arguments.responses)),
        ("huge", lambda path: make_huge(path, arguments.huge)),
        ("hostile", lambda path: make_hostile(path)),
    ):
        folder = work / name
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            began = time.perf_counter()
            make(folder)
            (folder / "made").write_text(f"{time.perf_counter() - began:.1f}")
        results["runs"][name] = {"folder": size_of(folder)} | {part: measure(part, folder) for part in PARTS}
        print(json.dumps(results["runs"][name], indent=1), flush=True)
    arguments.out.mkdir(exist_ok=True)
    (arguments.out / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "report.md").write_text(table_of(results))
    if arguments.work is None:
        shutil.rmtree(work)


# ---------------------------------------------------------------------------------------------------- making runs


class Maker:
    """Groups of made-up text, each step from its own random numbers."""

    def __init__(self, prompts: int = PROMPTS) -> None:
        problems = [f"What is {n} + {n * 7 % 1000}? Think, then write Answer: and the number." for n in range(prompts)]
        self.prompts = [
            Prompt(content_id(text), text, np.arange(20), text, str(n), f"source {n % 3}")
            for n, text in enumerate(problems)
        ]

    def group(self, number: int, step: int, kind: int, text: Callable[[random.Random], str] | None = None) -> Group:
        chance = random.Random(number)
        verdict, disposition = KINDS[kind % len(KINDS)]
        right = {Verdict.ALL_CORRECT: GROUP, Verdict.ALL_WRONG: 0}.get(verdict, chance.randrange(1, GROUP))
        completions, scores = [], []
        for sample in range(GROUP):
            length = chance.randrange(TOKENS // 2, TOKENS * 3 // 2)
            said = text(chance) if text else " ".join(chance.choices(WORDS, k=length - 4)) + f"\nAnswer: {number}"
            noise = np.random.default_rng(number * GROUP + sample)
            finish = FinishReason.LENGTH if chance.random() < 0.05 else FinishReason.STOP
            logprobs = -noise.exponential(0.3, length).astype(np.float32)
            ids = noise.integers(0, 50_000, length)
            completions.append(Response(ids, logprobs, np.full(length, step, np.int32), finish, said))
            scores.append(Score({"accuracy": float(sample < right), "form": 1.0}, float(sample < right)))
        group = Group(number, self.prompts[number % len(self.prompts)], completions, scores, step, verdict, disposition)
        if disposition is Disposition.TRAINED:
            group.voters_G, group.penalties_G = np.ones(GROUP, np.bool_), np.zeros(GROUP)
            group.rewards_G = np.array([1.0 if s < right else -1.0 for s in range(GROUP)])
            group.advantages_G = group.rewards_G - group.rewards_G.mean()
        return group


class Cutter:
    """Stands for ``Pieces``: as many pieces of letters as tokens."""

    def __call__(self, token_ids: Any) -> list[str]:
        return [WORDS[int(i) % len(WORDS)] + " " for i in token_ids]


def token_records(step: int, groups: list[Group]) -> pa.Table:
    chosen = [group for group in groups if group.disposition is Disposition.TRAINED][:RECORDED]
    traces = {
        (group.id, sample): TokenTrace(
            group=group.id,
            sample=sample,
            logprobs=completion.logprobs + 0.01,
            old_logprobs=completion.logprobs,
            ratio=np.exp(np.full(len(completion), 0.01, np.float32)),
            entropy=-completion.logprobs,
            clip=np.zeros(len(completion), np.int8),
        )
        for group in chosen
        for sample, completion in enumerate(group.completions_G)
    }
    return token_table(step, chosen, traces, Cutter())  # type: ignore[arg-type]


def make_long(folder: Path, steps: int, responses: int) -> None:
    """Forty steps are made, the others are these with columns of their own."""
    maker, per_step = Maker(), responses // GROUP
    _frame(folder, steps, maker, per_step)
    made = [[maker.group(n * per_step + g, n, g) for g in range(per_step)] for n in range(min(MADE, steps))]
    tables = [rollout_table(n, groups) for n, groups in enumerate(made)]
    tokens = [token_records(n, groups) for n, groups in enumerate(made)]
    ids = np.array([prompt.id for prompt in maker.prompts])
    texts = np.array([prompt.text for prompt in maker.prompts])
    for step in range(1, steps + 1):
        base = step % len(tables)
        shift = step * per_step - base * per_step
        at = (np.arange(per_step) + step * per_step) % len(ids)
        rows = np.repeat(np.arange(per_step), GROUP)
        own = {
            "prompt_id": pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(ids[at].tolist())),
            "prompt": pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(texts[at].tolist())),
        }
        path = folder / "rollouts" / f"step_{step:06d}.parquet"
        write_table_file(path, SCHEMA, [_moved(tables[base], step, shift, own)])
        path = folder / "tokens" / f"step_{step:06d}.parquet"
        write_table_file(path, TOKEN_SCHEMA, [_moved(tokens[base], step, shift, {})])


def _moved(table: pa.Table, step: int, shift: int, own: dict[str, pa.Array]) -> pa.Table:
    columns = own | {"step": pa.array(np.full(len(table), step), pa.int32())}
    columns["group"] = pa.array(table["group"].to_numpy() + shift)
    if "born" in table.column_names:
        columns["born"] = columns["step"]
    return pa.Table.from_arrays([columns.get(n, table[n]) for n in table.column_names], schema=table.schema)


def make_huge(folder: Path, responses: int) -> None:
    maker = Maker()
    _frame(folder, 4, maker, responses // GROUP)
    for step in range(1, 5):
        count = responses // GROUP if step == 3 else 8
        groups = [maker.group(step * 100_000 + g, step, g) for g in range(count)]
        write_rollouts(folder / "rollouts" / f"step_{step:06d}.parquet", step, groups)
        write_table_file(folder / "tokens" / f"step_{step:06d}.parquet", TOKEN_SCHEMA, [token_records(step, groups)])


def make_hostile(folder: Path) -> None:
    maker = Maker(64)
    _frame(folder, 50, maker, 32)
    for step in range(1, 51):
        groups = [
            maker.group(step * 32 + g, step, g, lambda chance: f"{chance.random()} {HOSTILE * 4}") for g in range(32)
        ]
        write_rollouts(folder / "rollouts" / f"step_{step:06d}.parquet", step, groups)
        write_table_file(folder / "tokens" / f"step_{step:06d}.parquet", TOKEN_SCHEMA, [token_records(step, groups)])


def _frame(folder: Path, steps: int, maker: Maker, per_step: int) -> None:
    """Everything beside rollouts and tokens: recipe, status, prompts, metrics like the quickstart's, spans, samples."""
    folder.mkdir(parents=True)
    given = {
        "model": {"path": "a/b"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rollout": {"prompts_per_step": max(2, per_step * 5 // 8), "group_size": GROUP},
        "learner": {"minibatch_prompts": max(1, per_step * 5 // 16)},
        "trainer": {"steps": steps},
    }
    (folder / "recipe.resolved.yaml").write_text(recipe_from_dict(given).resolved)
    status = {"state": "finished", "said": "", "step": steps, "steps": steps, "pid": 1, "host": "made"}
    (folder / "status.json").write_text(json.dumps(status | {"started": 1.8e9, "updated": 1.8e9 + 10 * steps}))
    write_prompts(folder / "prompts.parquet", maker.prompts)
    pattern = json.loads((Path(__file__).parent / "report_row.json").read_text())
    noise = np.random.default_rng(0)
    with MetricWriter(folder / "metrics.jsonl") as file:
        for step in range(steps + 1):
            row = {
                key: type(value)(value * (1 + 0.1 * noise.standard_normal()))
                for key, value in pattern.items()
                if not key.startswith("validation/") or step % 10 == 0
            }
            file.write(step, row)
    with JsonlWriter(folder / "spans.jsonl") as spans:
        for step in range(1, steps + 1):
            began = 1.8e9 + 10.0 * step
            spans.append(
                *(
                    {"step": step, "name": name, "start": began + at, "seconds": took, "busy": took, "count": 1}
                    for name, at, took in (
                        ("generate", 0.0, 5.0),
                        *(("score", 0.5 * n, 0.2) for n in range(10)),
                        *(("judge", 0.5 * n + 0.2, 0.01) for n in range(10)),
                        ("shape", 5.0, 0.1),
                        ("learn", 5.1, 4.0),
                        ("publish", 9.1, 0.3),
                        ("report", 9.4, 0.1),
                    )
                )
            )
    for step in range(0, steps + 1, 10):
        write_samples(
            folder / "samples.jsonl", [_sample(step, n, greedy) for n in range(24) for greedy in (True, False)]
        )


def _sample(step: int, n: int, greedy: bool) -> Sample:
    said = " ".join(random.Random(step * 24 + n).choices(WORDS, k=80))
    right = float((step + n) % 3 == 0)
    return Sample(step, "held_out", f"held {n}", f"What is {n}?", str(n), said, right, 80, False, greedy)


# ---------------------------------------------------------------------------------------------------- measuring


def measure(part: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--part", f"{part}:{folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(folder: Path) -> dict[str, Any]:
    """``dapo report``: the command's work, from its own imports on."""
    began, cpu = time.perf_counter(), time.process_time()
    from dapo.report.page_files import write_report
    from dapo.report.reader import read_run

    seconds = {"import": time.perf_counter() - began}
    at = time.perf_counter()
    run = read_run(folder)
    seconds["read metrics, spans, samples"] = time.perf_counter() - at
    with tempfile.TemporaryDirectory() as out:
        at = time.perf_counter()
        written = write_report([run], Path(out))
        seconds["choose and write"] = time.perf_counter() - at
        megabytes = {path.name: path.stat().st_size / 1e6 for path in written.files}
    rollouts = written.bundle["runs"][0]["rollouts"]
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu seconds": round(time.process_time() - cpu, 2),
        "seconds of": {name: round(value, 2) for name, value in seconds.items()},
        "peak MiB": round(peak_rss_mib()),
        "MB": {name: round(size, 2) for name, size in megabytes.items()},
        "groups": [rollouts["thinned"]["kept"], rollouts["thinned"]["of"]],
        "with tokens": sum(group["has_tokens"] for group in rollouts["groups"]),
        "prompts": len(rollouts["prompts"]),
    }


def view(folder: Path) -> dict[str, Any]:
    """What the server does for a page: the first answer, and those after it (median of 9)."""
    from dapo.report.browse import group, groups, prompt, prompts, steps_of
    from dapo.report.bundle import bundle_of
    from dapo.report.reader import read_run

    run = read_run(folder)
    step = max(steps_of(run), key=lambda step: run.folder.rollout_file(step).stat().st_size)
    one = groups(run, step, limit=1)[0][0]
    asked: dict[str, Callable[[], Any]] = {
        "bundle": lambda: bundle_of([run], live=True),
        "read again": lambda: read_run(folder, earlier=run),
        "a step's page": lambda: groups(run, step, limit=50, offset=20),
        "a step's page by verdict": lambda: groups(run, step, verdict="all_wrong"),
        "search in a step": lambda: groups(run, step, text="answer: 77"),
        "a group": lambda: group(run, step, one["group"]),
        "prompts": lambda: prompts(run),
        "search in prompts": lambda: prompts(run, text="what is 77 "),
        "a prompt": lambda: prompt(run, one["prompt_id"]),
        "verdict in all steps": lambda: groups(run, None, verdict="all_wrong"),
    }
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        first, *others = [_seconds(ask) for _ in range(10)]
        found[name] = [round(first, 4), round(statistics.median(others), 4)]
    found["search in all steps"] = [round(_seconds(lambda: groups(run, None, text="answer: 77")), 2)]
    found["peak MiB"] = round(peak_rss_mib())
    return found


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"report": report, "view": view}


def size_of(folder: Path) -> dict[str, float]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {"files": len(files), "MB": round(sum(path.stat().st_size for path in files) / 1e6)}


def table_of(results: dict[str, Any]) -> str:
    machine = results["machine"]
    names = list(results["runs"])
    lines = ["# Report and view on long and hostile runs", ""]
    lines += [f"{machine['cpu']}, Python {machine['python']}, {machine['date']}, commit {machine['commit']}.", ""]
    lines += [f"`{machine['command']}`", "", f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]

    def row(title: str, cell: Callable[[dict[str, Any]], Any]) -> None:
        lines.append(f"| {title} | {' | '.join(str(cell(results['runs'][name])) for name in names)} |")

    row("run folder, MB in files", lambda r: f"{r['folder']['MB']:,} in {r['folder']['files']:,}")
    row("`dapo report`, seconds", lambda r: r["report"]["seconds"])
    row("- CPU seconds, all threads", lambda r: r["report"]["cpu seconds"])
    for part in results["runs"][names[0]]["report"]["seconds of"]:
        row(f"- {part}", lambda r, part=part: r["report"]["seconds of"][part])
    row("- peak memory, MiB", lambda r: r["report"]["peak MiB"])
    row("report.html, MB", lambda r: r["report"]["MB"]["report.html"])
    row("trace.json, MB", lambda r: r["report"]["MB"]["trace.json"])
    row("groups in the page", lambda r: "{:,} of {:,}".format(*r["report"]["groups"]))
    row("- with token records", lambda r: r["report"]["with tokens"])
    lines += ["", "The server's answers, seconds: the first, and the median of nine more.", ""]
    lines += [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for part in results["runs"][names[0]]["view"]:
        row(part, lambda r, part=part: v if isinstance(v := r["view"][part], int) else ", ".join(map(str, v)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
