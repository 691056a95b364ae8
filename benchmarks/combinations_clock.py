"""Draw runs in which the wall clock decides: generation overlaps learning, rewards and environments are slow or fail.

    python benchmarks/combinations_clock.py --work WORK [--first 1] [--count 100] [--minutes 30] [--kills 0.3]
        [--all KEY=VALUE ...]

Digits do not repeat there (``combinations.py`` compares them elsewhere), so properties are checked. Each command ends
within ``--limit`` seconds; the account of groups and tokens closes; no step is recorded twice; no response ends twice;
no token is older than ``rollout.max_staleness`` allows; no process is left. A share ``--kills`` of the runs gets
SIGTERM or SIGKILL at random moments and is resumed: after SIGTERM the run says that it was interrupted. A run is drawn
from its number; ``--all`` sets keys of every run, such as ``rollout.engine=vllm`` in an environment that has vLLM. The
folder of a run that breaks a property is kept. The exit code is 1 then, and where a setting was in two runs or more and
all of them were refused.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from combinations import (
    CHOICES,
    EPISODES,
    REFUSED,
    REWARDS,
    Choice,
    accepted,
    always_refused,
    command,
    each,
    open_accounts,
    output_end,
    taken,
)
from golden import HERE
from golden_matrix import Runner
from judge import serving
from soak import MARKER, Family

from dapo.models.builtin import ensure_builtin_model
from dapo.observe.jsonl import Record, read_jsonl
from dapo.observe.rollouts import read_rollouts
from dapo.observe.status import RunStatus, read_status

EARLY, LATE = 10.0, 1.5
"""Most seconds until a signal: from the begin of a command that comes no further, or from its last awaited step."""
LAST = 20.0
"""Seconds in which all processes of a command must have ended after it."""
LOOK = 1.0
"""Seconds between two looks at the processes of a run."""
FINE = ("ended", "unfilled", "refused")
STOPPED = (130, 143, -signal.SIGTERM)
"""Exit codes after SIGTERM: saved after a step, ended before the first step, and ended before the command listened."""
KILLED = -signal.SIGKILL
DECIDES = ("rollout.max_staleness", "rollout.overlap_turns", "rollout.engine", "rollout.turn_steps", "rollout.slots")
"""Settings that are drawn here, and not as ``combinations.py`` does."""

SHAPES = ((2, 2), (2, 4), (3, 3), (4, 2), (4, 4), (8, 2))  # groups of a step, responses of a group
CLOCK: list[Choice] = [
    (
        0.8,
        [
            [f"rollout.prompts_per_step={groups}", f"rollout.group_size={size}", f"learner.minibatch_prompts={groups}"]
            for groups, size in SHAPES
        ],
    ),
    (
        0.7,
        [
            [f"rollout.max_response_tokens={tokens}", f"algorithm.overlong_punishment.cache_length={tokens // 3}"]
            for tokens in (3, 6, 12, 32)
        ],
    ),
    (0.4, each("rollout.slots", 2, 3, 5, 8, 40)),
    (0.25, each("rollout.engines", 2)),
    (0.3, each("validation.every", 1)),
]
SCORED: list[Choice] = [(1.0, each("run.reward_workers", 1, 2))]
FUNCTIONS = ("quick", "slow", "raising", "late")
GAMES = ("tries", "Counting", "thinks", "asks")
AGENTS = ("asks",)


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal to one command: so many seconds after the command recorded so many rows of metrics."""

    number: int
    rows: int
    seconds: float

    @contextmanager
    def to(self, run: Path) -> Iterator[Callable[[int], None]]:
        """Give what sends it to a process, if that lives so long."""
        goal, ended = recorded(run) + self.rows, threading.Event()
        threads: list[threading.Thread] = []

        def send(process: int) -> None:
            while recorded(run) < goal:
                if ended.wait(0.05):
                    return
            if not ended.wait(self.seconds):
                with suppress(ProcessLookupError):
                    os.kill(process, self.number)

        def begun(process: int) -> None:
            threads.append(threading.Thread(target=send, args=(process,), daemon=True))
            threads[-1].start()

        try:
            yield begun
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def recorded(run: Path) -> int:
    """Return how many rows of metrics a run has recorded."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@dataclass
class Drawn:
    """A run: its settings, what its judge does, and the signals that it gets, one a command."""

    overrides: list[str]
    staleness: int
    every: int
    judge: dict[str, float] = field(default_factory=dict)
    signals: list[Sent] = field(default_factory=list)


def drawn(number: int, kills: float, everywhere: Sequence[str] = ()) -> Drawn:
    """Return the run of a number.

    Args:
        kills: share of the runs that get signals.
        everywhere: settings that every run has.
    """
    chance = random.Random(f"clock {number}")
    staleness, every = chance.choice([1, 1, 2, 3]), chance.choice([1, 2])
    kept = [*everywhere, f"rollout.max_staleness={staleness}"]
    kind, judge = chance.choice(["function", "function", "service", "environment"]), dict[str, float]()
    choices = [*CLOCK, *without_decided(CHOICES)]
    if kind == "function":
        name = chance.choice(FUNCTIONS)
        kept.append(
            f"rewards=[{{name: accuracy, kind: function, function: 'benchmarks.combinations_rewards:{name}', "
            f"timeout: {1 if name == 'late' else 10}}}]"
        )
        choices += SCORED + REWARDS
    elif kind == "service":
        judge = {
            "latency": chance.choice([0.0, 0.2, 1.5]),
            "failures": chance.choice([0.0, 0.3]),
            "leaves": chance.choice([0.0, 1.0, 3.0]),
            "away": chance.choice([0.0, 0.0, 3.0]),
        }
        kept.append(f"rewards=[{{name: accuracy, kind: service, url: '{{url}}', batch: {chance.choice([1, 4, 16])}}}]")
    else:
        kept.append("rewards=[{name: accuracy, kind: environment}]")
        name = chance.choice(GAMES)
        where = "kind=agent environment.run" if name in AGENTS else "kind"
        kept += f"environment.{where}=benchmarks.combinations_games:{name}".split()
        choices += [
            one for one in EPISODES if not any(key.startswith(("rewards", "environment.kind")) for key in one[1][0])
        ]
    tried = [one.replace("{url}", "http://127.0.0.1:1") for one in kept]
    overrides = accepted(taken(choices, chance), chance, tried)
    chance = random.Random(f"signals {number}")
    hit = chance.random() < kills
    signals = [drawn_signal(chance) for _ in range(chance.choice([1, 2, 2, 3]))] if hit else []
    return Drawn([*kept, *overrides], staleness, every, judge, signals)


def drawn_signal(chance: random.Random) -> Sent:
    rows = chance.choice([0, 0, 1, 1, 2, 3, 4])
    seconds = chance.uniform(0.0, LATE if rows else EARLY)
    return Sent(chance.choice([signal.SIGTERM, signal.SIGKILL]), rows, seconds)


def without_decided(choices: Sequence[Choice]) -> Iterator[Choice]:
    for share, sets in choices:
        if left := [one for one in sets if not any(word.startswith(DECIDES) for word in one)]:
            yield share, left


# ---------------------------------------------------------------------- properties


def broken(run: Path, staleness: int) -> list[str]:
    """Return what must not be in a run's folder, one line each. An evaluation may have a line of metrics of its own."""
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "total/groups/dispatched" in row and row["step"]]
    accounts = open_accounts(rows[-1]) if rows else []
    return [*wrong_steps(rows), *accounts, *too_old(rows, staleness), *ended_twice(run / "rollouts")]


def wrong_steps(rows: Sequence[Record]) -> Iterator[str]:
    """Yield the steps that were recorded twice or not at all."""
    counted = Counter(row["step"] for row in rows)
    for step in range(1, max(counted, default=0) + 1):
        if counted[step] != 1:
            yield f"step {step} is recorded {counted[step]} times"


def too_old(rows: Sequence[Record], staleness: int) -> Iterator[str]:
    for row in rows:
        if (row.get("policy/staleness_max") or 0) > staleness:
            yield f"step {row['step']} trained tokens of age {row['policy/staleness_max']}, {staleness} is the bound"


def ended_twice(rollouts: Path) -> Iterator[str]:
    """Yield the responses that trained, or ended in another way, more than once. A copy is meant to."""
    ends: dict[tuple[int, int], list[str]] = {}
    for file in sorted(rollouts.glob("step_*.parquet")):
        for row in read_rollouts(file, ["group", "sample", "disposition"]).to_pylist():
            if row["disposition"] not in ("carried", "copied"):
                ends.setdefault((row["group"], row["sample"]), []).append(f"{row['disposition']} in {file.stem}")
    for (group, sample), found in ends.items():
        if len(found) > 1:
            yield f"response {sample} of group {group} ended {len(found)} times: {', '.join(found)}"


def badly_stopped(code: int, before: RunStatus | None, after: RunStatus | None) -> list[str]:
    """Return what is wrong with a command that got SIGTERM and ended with ``code``; [] if it had ended before.

    Args:
        before: the status that the command found.
        after: the status that it left; the same where it ended before it wrote one.
    """
    if code == 0:
        return []
    if code not in STOPPED:
        return [f"SIGTERM ended the command with code {code}"]
    if after is not None and after != before and after.state not in ("interrupted", "finished"):
        return [f"after SIGTERM the status says {after.state}"]
    return []


class Processes:
    """All processes of the runs of one runner, seen while they run."""

    def __init__(self, runner: Runner, mark: str) -> None:
        self._family = Family(runner.process, mark)
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at them every ``LOOK`` seconds."""
        self._ended.clear()
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def left(self) -> list[int]:
        """Return those that are left ``LAST`` seconds after the last command, and kill them."""
        until = time.monotonic() + LAST
        while (found := self._family.left()) and time.monotonic() < until:
            time.sleep(0.2)
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return found

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            self._family.living()


# ---------------------------------------------------------------------- runs


def train(
    runner: Runner, processes: Processes, one: Drawn, words: list[str], run: Path, limit: float
) -> tuple[str, list[str]]:
    """Train with the signals on the way, and resume; return what became of it in a word, and lines for a person."""
    log = run.with_suffix(".txt")
    for sent in [*one.signals, None]:
        before, resumes = status_of(run), any((run / "checkpoints").glob("step_*"))
        if not resumes:
            shutil.rmtree(run, ignore_errors=True)
        with processes.watched(), sent.to(run) if sent is not None else nullcontext() as begun:
            code = runner.run(["train", "--resume", str(run)] if resumes else words, log, limit, begun)
        if code is None:
            return "hangs", [f"more than {limit:g} s; signals {one.signals}", said(run), *output_end(log)]
        if left := processes.left():
            return "broken", [f"processes {left} are left after a command that ended with {code}"]
        if code == REFUSED:
            return "refused", output_end(log)
        if (
            sent is not None
            and sent.number == signal.SIGTERM
            and (found := badly_stopped(code, before, status_of(run)))
        ):
            return "broken", [*found, *output_end(log)]
        if code not in (KILLED, *STOPPED):
            break
    if code == 0:
        found = broken(run, one.staleness)
        return ("broken" if found else "ended"), found
    status = status_of(run)
    if status is not None and status.state == "unfilled" and status.said:
        return "unfilled", [status.said]
    return "failed", [f"exit code {code}", *output_end(log)]


def status_of(run: Path) -> RunStatus | None:
    return read_status(run / "status.json")


def said(run: Path) -> str:
    """Return what the status of a run says it does."""
    status = status_of(run)
    return "no status" if status is None else f"status {status.state}, step {status.step}: {status.doing}"


def try_one(
    runner: Runner, processes: Processes, number: int, folder: Path, model: Path, asked: argparse.Namespace
) -> tuple[str, list[str], list[str]]:
    """Train one drawn run; return what became of it in a word, lines for a person, and its settings."""
    one = drawn(number, asked.kills, asked.all)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with serving(**one.judge) as judge:
        url = f"http://127.0.0.1:{judge.server_port}/score"
        overrides = [*(word.replace("{url}", url) for word in one.overrides), f"model.path={model}"]
        words = command(overrides, folder, "run", number, one.every)
        word, lines = train(runner, processes, one, words, folder / "run", asked.limit)
    if word not in FINE:
        lines = [" ".join(one.overrides), *lines]
    return word, lines, one.overrides


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--first", type=int, default=1, help="number of the first run")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--kills", type=float, default=0.3, help="share of the runs that are killed and stopped")
    parser.add_argument("--all", nargs="*", default=[], metavar="KEY=VALUE", help="settings that every run has")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of one command; a longer one hangs")
    asked = parser.parse_args()
    work, until = asked.work.resolve(), time.monotonic() + 60 * asked.minutes
    model = ensure_builtin_model("builtin/signed-sum", work / "models")
    os.environ[MARKER] = mark = f"clock-{os.getpid()}"
    tried: list[tuple[str, Sequence[str]]] = []
    with closing(Runner(HERE)) as runner:
        processes = Processes(runner, mark)
        for number in range(asked.first, asked.first + asked.count):
            if time.monotonic() > until:
                break
            folder, began = work / f"clock-{number}", time.monotonic()
            word, lines, overrides = try_one(runner, processes, number, folder, model, asked)
            tried.append((word, overrides))
            took = f"run {number}: {word}, {time.monotonic() - began:.0f} s"
            print(took, *lines, sep="\n  " if lines else "", flush=True)
            if word in FINE:
                shutil.rmtree(folder)
    words = Counter(word for word, _ in tried)
    print(
        ", ".join(f"{count} {word}" for word, count in words.items()), f"others than {', '.join(FINE)} stay in {work}"
    )
    never = always_refused(tried)
    for one in never:
        print(f"never tried, every run with it was refused: {one}")
    return 1 if never or set(words) - set(FINE) else 0


if __name__ == "__main__":
    sys.exit(main())
