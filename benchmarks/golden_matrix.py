"""Compare many tiny training runs between another revision and this working tree, digit by digit.

    python benchmarks/golden_matrix.py --base REVISION [--only ranks,sft] [--jobs 2]

``golden_cases.py`` lists the runs. Each trains two steps, stops, and resumes to the fourth step, in one thread a
process. All metrics but times and memory, all rollouts and the weights of the last checkpoint must be equal, and so
must be what is shown of them: the data of the report, `dapo data` and `dapo check`. What differs is printed by case,
step and key with both values; exit code 1 then.

The runs of REVISION are kept under build/golden-matrix/COMMIT, so that a second comparison runs the working tree alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from golden import (
    HERE,
    RECIPE,
    Difference,
    Renamed,
    compare_rollouts,
    compare_rows,
    compare_weights,
    environment,
    tree_of,
)
from golden_cases import (
    COMMON,
    LONGER,
    LONGER_SFT,
    NEW_COLUMNS,
    NEW_LOOKS,
    NEW_METRICS,
    RENAMED_COLUMNS,
    RENAMED_LOOKS,
    RENAMED_METRICS,
    SFT,
    SUPERVISED,
    TRAIN,
    Overrides,
    spelled,
)
from golden_looks import check_command, compare_looks, looking

from dapo.models.builtin import ensure_builtin_model
from dapo.observe.metrics import read_metrics

WORK = HERE / "build" / "golden-matrix"
WARM = Path(__file__).with_name("golden_warm.py")
CASES: dict[str, Overrides] = TRAIN | SUPERVISED
LIMIT = 900
"""Seconds for one command, many times what it takes: the machine may be shared."""
MODULES = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
    "pyarrow.parquet",
    "safetensors.torch",
    "matplotlib.pyplot",
    "dapo.cli.main",
    "dapo.run.train",
    "dapo.run.supervised",
)
"""What a run imports. A revision may lack some of them: importing them before the fork only saves time."""
LINES = 12
"""Differences printed of one case."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What all runs share: the warmed-up base model and the folder of the supervised examples."""

    model: Path
    data: Path

    def digest(self, case: str) -> str:
        """Return a digest of the files that a case reads, and of what else decides the digits of a run."""
        found = hashlib.sha256()
        for folder in (self.model, self.data) if case in SUPERVISED else (self.model,):
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                found.update(file.name.encode() + file.read_bytes())
        import torch
        import transformers

        for word in (torch.__version__, transformers.__version__, platform.machine(), platform.python_version()):
            found.update(word.encode())
        return found.hexdigest()


def make_examples(folder: Path) -> Path:
    """Write the supervised examples, sums of three digits, and return their folder."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    sums = [(1 + n % 9, 1 + n // 9, 1 + (n * 7) % 9) for n in range(56)]
    lines = [
        json.dumps({"prompt": f"{a} +{b} +{c} =", "response": f"+{b} ={a + b} +{c} ={a + b + c}"}) for a, b, c in sums
    ]
    (data / "examples.jsonl").write_text("\n".join(lines[:48]))
    (data / "held.jsonl").write_text("\n".join(lines[48:]))
    return data


# ---------------------------------------------------------------------- runs


def commands(case: str, side: str, folder: Path, inputs: Inputs) -> list[list[str]]:
    """Return the two `dapo` commands of a case: the run, and its resume."""
    supervised = case in SUPERVISED
    settings = [f"run.dir={folder}", "run.name=run", f"model.path={inputs.model}", "trainer.steps=2"]
    for part in (COMMON, SFT if supervised else [], CASES[case]):
        settings += [setting.replace("{data}", str(inputs.data)) for setting in spelled(part, side)]
    verb = "sft" if supervised else "train"
    longer = spelled(LONGER_SFT if supervised else LONGER, side)
    return [[verb, RECIPE, *settings], [verb, "--resume", str(folder / "run"), *longer]]


class Runner:
    """Runs `dapo` commands by the package in ``tree``, in children of a process that has done the imports."""

    def __init__(self, tree: Path, modules: Sequence[str] = MODULES) -> None:
        self._warm = subprocess.Popen(
            [sys.executable, "-P", str(WARM), *modules],
            cwd=tree,
            env=environment(tree) | {"COLUMNS": "500"},  # lines break by themselves, whatever the folders are called
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def process(self) -> int:
        """The process that has done the imports, of which each command is a child."""
        return self._warm.pid

    def run(
        self, words: Sequence[str], output: Path, limit: float = LIMIT, begun: Callable[[int], None] | None = None
    ) -> int | None:
        """Return the exit code of `dapo WORDS`, or None if it took longer than ``limit`` seconds and was killed.

        Args:
            begun: called with the id of the command's process when that has begun.
        """
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        print(json.dumps([list(words), str(output)]), file=self._warm.stdin, flush=True)
        child = int(self._warm.stdout.readline())
        late = threading.Event()

        def kill() -> None:
            late.set()
            os.killpg(child, signal.SIGKILL)

        timer = threading.Timer(limit, kill)
        timer.start()
        if begun is not None:
            begun(child)
        code = int(self._warm.stdout.readline())
        timer.cancel()
        return None if late.is_set() else code

    def close(self) -> None:
        """End the process."""
        self._warm.communicate()


class Runners:
    """One runner for each tree and thread that runs cases."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._all: list[Runner] = []

    def of(self, tree: Path) -> Runner:
        """Return this thread's runner for ``tree``."""
        found: dict[Path, Runner] = self._here.__dict__
        if tree not in found:
            found[tree] = Runner(tree)
            self._all.append(found[tree])
        return found[tree]

    def close(self) -> None:
        """End the processes of all runners."""
        for runner in self._all:
            runner.close()


def run_case(runner: Runner, case: str, side: str, folder: Path, inputs: Inputs) -> str | None:
    """Run a case. Return None, or the end of what a failed command printed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder / "output.txt"
    train, resume = commands(case, side, folder, inputs)
    runner.run(check_command(train), folder / "check.txt")  # may end with 1: what it says is compared
    for words in (train, resume):
        if (code := runner.run(words, log)) is None:
            return f"`dapo {words[0]}` took more than {LIMIT} seconds; its output is in {log}"
        if code:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            return f"`dapo {' '.join(words[:3])}` ended with code {code}:\n{end}"
    for name, words in looking(folder):
        if (code := runner.run(words, folder / name)) not in (0, 2 if case in SUPERVISED and words[0] == "data" else 0):
            return f"`dapo {words[0]}` ended with code {code}; its output is in {folder / name}"
    return None


class BaseRuns:
    """The runs of the base revision, each kept once it has ended without an error."""

    def __init__(self, commit: str, inputs: Inputs) -> None:
        self.folder = WORK / commit
        self._inputs = inputs

    def kept(self, case: str) -> bool:
        """Return whether the run of ``case`` is there, made with the present overrides, model and packages."""
        mark = self.folder / case / "key"
        return mark.is_file() and mark.read_text() == self._key(case)

    def make(self, runner: Runner, case: str) -> str | None:
        """Run ``case`` and keep it. Return what ``run_case`` returns."""
        failed = run_case(runner, case, "base", self.folder / case, self._inputs)
        if failed is None:
            (self.folder / case / "key").write_text(self._key(case))
        return failed

    def _key(self, case: str) -> str:
        words = commands(case, "base", Path("folder"), Inputs(Path("model"), Path("data")))  # wherever they lie
        return hashlib.sha256(json.dumps(["with looks", words, self._inputs.digest(case)]).encode()).hexdigest()


# ---------------------------------------------------------------------- comparison


def compare(base: Path, here: Path) -> list[Difference]:
    """Return what differs between the folders of two cases."""
    runs = base / "run", here / "run"
    rows = [read_metrics(run / "metrics.jsonl") for run in runs]
    found = compare_rows(*rows, Renamed(RENAMED_METRICS, NEW_METRICS))
    found += compare_rollouts(*runs, Renamed(RENAMED_COLUMNS, NEW_COLUMNS))
    found += compare_weights(*runs)
    return found + compare_looks(base, here, Renamed(RENAMED_LOOKS, NEW_LOOKS))


def table(found: Mapping[str, Sequence[Difference]]) -> str:
    """Return the differences of all cases as lines: case, where, key, the first unequal pair and how many there are."""
    head = ("case", "where", "key", "base", "here", "unequal")
    rows = [head]
    for case, differences in found.items():
        for one in differences[:LINES]:
            rows.append((case, one.where, one.name, short(one.base), short(one.here), f"{one.count} of {one.of}"))
        if len(differences) > LINES:
            rows.append((case, "", f"and {len(differences) - LINES} more keys", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


def short(text: str, most: int = 28) -> str:
    """Return ``text`` cut to a cell of the table."""
    return text if len(text) <= most else text[: most - 1] + "…"


def chosen(only: str | None) -> list[str]:
    """Return the names of the cases to run, or exit with the names that exist."""
    names = [name.strip() for name in only.split(",")] if only else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        raise SystemExit(f"unknown case: {', '.join(unknown)}; expected some of {', '.join(CASES)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="git revision to compare this working tree with")
    parser.add_argument("--only", metavar="CASE,CASE", help="cases to run; without it all of golden_cases.py")
    parser.add_argument("--jobs", type=int, default=2, help="cases that run at once")
    arguments = parser.parse_args()
    names = chosen(arguments.only)
    asked = ["git", "rev-parse", "--verify", f"{arguments.base}^{{commit}}"]
    commit = subprocess.run(asked, cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()[:12]
    inputs = Inputs(ensure_builtin_model("builtin/signed-sum", WORK / "models"), make_examples(WORK))
    bases = BaseRuns(commit, inputs)
    missing = [name for name in names if not bases.kept(name)]
    begin = time.monotonic()
    with ExitStack() as stack:
        tree = stack.enter_context(tree_of(commit)) if missing else HERE
        runners = stack.enter_context(closing(Runners()))
        pool = stack.enter_context(ThreadPoolExecutor(arguments.jobs))
        made = {name: pool.submit(lambda name: bases.make(runners.of(tree), name), name) for name in missing}
        runs = {
            name: pool.submit(lambda name: run_case(runners.of(HERE), name, "head", WORK / "here" / name, inputs), name)
            for name in names
        }
        failed: dict[str, str] = {}
        found: dict[str, list[Difference]] = {}
        for name in names:
            sides = {"base": made[name].result() if name in made else None, "here": runs[name].result()}
            words = [f"{side}: {text}" for side, text in sides.items() if text is not None]
            if words:
                failed[name] = "\n".join(words)
            elif differences := compare(bases.folder / name, WORK / "here" / name):
                found[name] = differences
            state = "failed" if name in failed else f"{len(found[name])} differ" if name in found else "equal"
            print(f"{name:18}{state}", flush=True)
    seconds = time.monotonic() - begin
    equal = len(names) - len(failed) - len(found)
    print(f"{commit} -> this working tree: {equal} of {len(names)} cases equal, {seconds:.0f} s; runs in {WORK}")
    for name, text in failed.items():
        print(f"\n{name} failed\n{text}")
    if found:
        print("\n" + table(found))
    return 1 if failed or found else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
