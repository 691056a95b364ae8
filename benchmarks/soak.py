"""A small cluster left alone: a run over Ray for an hour, while engines, ranks and environments are killed and frozen.

    python benchmarks/soak.py                               # an hour, a loss about every two minutes
    python benchmarks/soak.py --minutes 5 --every 30        # five minutes, a loss about every half a minute
    python benchmarks/soak.py --every inf                   # nothing is killed
    python benchmarks/soak.py --timeout 120                 # on a machine with much other work

Two ranks, two engines and two hosts for environments on a Ray cluster of this machine. Random weights write episodes of
up to three turns, in which they call tools that raise, hang and end their process (``soak_tools.py``). The learning
rate is next to nothing, so every step is like the others: what grows then, grows with time. Each loss takes a random
host, in whatever it does, and waits until the run has gone on. At the end the run is interrupted as by a person, and
what it wrote is counted: every step once and in order, every group with one end, no process and no shared memory left.
Shared memory is the whole machine's: nothing else may use it meanwhile.

Processes are those that were seen at a look or before a loss, and those that carry the run's mark: what a killed host
left behind counts too. Exit code 1 where something of that is not so. Results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import describe_machine, refuse_changes
from soak_tools import WORDS

from dapo.models.tiny import make_tiny_model
from dapo.observe.jsonl import read_jsonl
from dapo.observe.rollouts import read_rollouts

HERE = Path(__file__).resolve().parent
GROUP = 8  # responses of a prompt
MARKER = "DAPO_SOAK"  # in the environment of every process of the run
OVERRIDES = (
    "launch.backend=ray",
    "learner.ranks=2",
    "rollout.engines=2",
    "rollout.prompts_per_step=16",
    f"rollout.group_size={GROUP}",
    "rollout.max_response_tokens=24",
    "learner.minibatch_prompts=8",
    "environment.kind=tools",
    "environment.tools=[soak_tools:look_up]",
    "environment.tool_format=soak_tools:read_calls",
    "environment.workers=2",
    "environment.max_turns=3",
    "environment.max_turn_tokens=6",
    "environment.timeout=5",
    "rewards=[{name: accuracy, kind: function, function: 'soak_tools:even'}]",
    "algorithm.overlong_filtering=false",
    "algorithm.overlong_punishment.enabled=false",
    "cluster.cpus_per_host=0.25",
    "learner.learning_rate=1e-12",
    "cluster.max_engine_restarts=10000",
    "cluster.max_learner_restarts=1000",
    "trainer.steps=1000000",
    "validation.every=0",
    "checkpoint.every=20",
    "logging.console=plain",
)
KINDS = {
    "engine killed": signal.SIGKILL,
    "rank killed": signal.SIGKILL,
    "environment host killed": signal.SIGKILL,
    "environment worker killed": signal.SIGKILL,
    "engine frozen": signal.SIGSTOP,
    "rank frozen": signal.SIGSTOP,
}
WORKER = "environment worker"
"""A process that a host for environments started; the host itself replaces it and says nothing."""
PATIENCE = 10  # timeouts for a run to go on: hosts start again in several
LOOK = 15.0  # seconds between two looks
MIB = 2**20


@dataclass(frozen=True)
class Loss:
    """What was done to a host, and how long until the run had done two steps more than before."""

    minute: float
    kind: str
    host: str
    step: int
    seconds: float


@dataclass(frozen=True)
class Look:
    """What a run has, at one moment."""

    minute: float
    step: int
    processes: int
    driver_mib: float
    hosts_mib: float
    ray_mib: float
    driver_files: int
    shared_mib: float


def descendants(process: int) -> list[int]:
    """Everything that it started, at whatever depth."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = [], [process]
    while new:
        new = [one for one, parent in parents.items() if parent in new]
        found += new
    return found


def resident(process: int) -> float:
    """MiB; 0 of one that has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    return 0.0


def plays(process: int) -> bool:
    """Whether it is a worker that plays environments; its guard has the same command and children."""
    with suppress(OSError):
        return b"dapo.environments.worker" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def born(process: int) -> int:
    """Ticks of the system at which it started; 0 of one that has ended."""
    with suppress(OSError):
        said = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return 0 if said[0] in "ZX" else int(said[19])
    return 0


def marked(marker: str) -> list[int]:
    """Processes whose environment has this mark; one that writes its title over its environment is not found."""
    found, wanted = [], f"{MARKER}={marker}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Family:
    """All processes that came of one, also those whose parent has ended: nobody's descendants, they would be missed."""

    def __init__(self, first: int, marker: str) -> None:
        self._first, self._marker = first, marker
        self._known: set[tuple[int, int]] = set()

    def living(self) -> list[int]:
        """Descendants of the first one, which are remembered from now on."""
        found = descendants(self._first)
        self._known |= {(one, born(one)) for one in found}
        return found

    def left(self) -> list[int]:
        """What lives of all that was ever seen, or has the mark; without the first."""
        known = {one for one, at in self._known if at and born(one) == at}
        return sorted({one for one in {*known, *marked(self._marker)} if born(one)} - {self._first})


class Watched:
    """A run, seen from outside: by its files and its processes."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.folder, self.began, self.patience = folder / "soak", time.monotonic(), PATIENCE * timeout
        self.shared_before = self._shared()
        model = make_tiny_model(folder / "model", vocabulary=len(WORDS) + 3, words=WORDS)
        command = [sys.executable, "-m", "dapo", "train", "quickstart", *OVERRIDES, f"model.path={model}"]
        command += [f"learner.timeout={timeout:g}", f"cluster.engine_timeout={timeout:g}"]
        paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])  # for ``soak_tools``
        self._said = (folder / "said.txt").open("w")
        self.process = subprocess.Popen(
            [*command, f"run.dir={folder}", "run.name=soak"],
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": paths, MARKER: str(folder)},
        )
        self.family = Family(self.process.pid, str(folder))

    @property
    def minute(self) -> float:
        return (time.monotonic() - self.began) / 60

    @property
    def step(self) -> int:
        """The last one that is written; -1 before the first."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_bytes().splitlines() if file.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else -1

    @property
    def log(self) -> str:
        file = self.folder / "log.txt"
        return file.read_text() if file.exists() else ""

    @property
    def losses_said(self) -> int:
        """Lines of the run that say that an engine is lost, the learner, or a host for environments."""
        said = r"engine-\d+ is lost \(|Restart \d+ of at most|environment-\d+ is started again"
        return len(re.findall(said, self.log))

    def hosts(self) -> dict[str, int]:
        """Processes of ranks, engines and hosts for environments that live, by their names."""
        living = set(self.family.living())
        named = dict(re.findall(r"((?:engine|rank|environment)-\d+) is process (\d+) on ", self.log))
        return {name: int(process) for name, process in named.items() if int(process) in living}

    def victims(self, kind: str) -> dict[str, int]:
        """Processes that a loss of this kind may take, by their names."""
        of_kind = {name: one for name, one in self.hosts().items() if name.startswith(kind.split()[0])}
        if not kind.startswith(WORKER):
            return of_kind
        below = {name: [one for one in descendants(host) if plays(one)] for name, host in of_kind.items()}
        return {f"worker of {name}": found[-1] for name, found in below.items() if found}

    def look(self) -> Look:
        hosts, all_of_it = set(self.hosts().values()), self.family.living()
        return Look(
            minute=self.minute,
            step=self.step,
            processes=len(all_of_it) + 1,
            driver_mib=resident(self.process.pid),
            hosts_mib=sum(map(resident, hosts)),
            ray_mib=sum(resident(one) for one in all_of_it if one not in hosts),
            driver_files=len(os.listdir(f"/proc/{self.process.pid}/fd")),
            shared_mib=self._shared() - self.shared_before,
        )

    def await_step(self, step: int) -> None:
        """Until it is done; see ``wait``."""
        self.wait(f"step {step} was not done", lambda: self.step >= step)

    def wait(self, failed: str, done: Callable[[], Any]) -> None:
        """Until ``done`` returns something true; ``failed`` says what did not happen.

        Raises:
            SystemExit: the run has ended, or it did not happen within ``patience`` seconds.
        """
        began = time.monotonic()
        while not done():
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended by itself, exit code {self.process.returncode}: {self.folder}")
            if time.monotonic() - began > self.patience:
                raise SystemExit(f"{failed} within {self.patience:g} s: {self.folder}")
            time.sleep(0.2)

    def interrupt(self) -> tuple[int, list[int]]:
        """As a person does, once. Its exit code, and which of its processes are left."""
        self.family.living()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(self.patience)
        self._said.close()
        time.sleep(2.0)  # for the last of Ray's to be taken by the system
        return code, self.family.left()

    @staticmethod
    def _shared() -> float:
        with suppress(OSError):
            return sum(one.stat().st_size for one in Path("/dev/shm").rglob("*") if one.is_file()) / MIB
        return 0.0


def lose(run: Watched, kind: str, chosen: random.Random) -> Loss:
    """Do it to a random host at a random moment of a step. Steps that a lost rank undoes are done again first."""
    time.sleep(chosen.random())
    run.wait(f"no process for {kind!r} was there", lambda: run.victims(kind))  # it may be being replaced
    victims = run.victims(kind)
    name = chosen.choice(sorted(victims))
    at, minute, said, process = run.step, run.minute, run.losses_said, victims[name]
    began = time.monotonic()
    os.kill(process, KINDS[kind])
    if not kind.startswith(WORKER):  # by the run: until then steps may still be done without it
        run.wait(f"{name} ({kind}) was not missed", lambda: run.losses_said > said)
    run.await_step(max(at, run.step) + 2)
    return Loss(minute, kind, name, at, time.monotonic() - began)


def pause(chosen: random.Random, every: float) -> float:
    """Draw the minutes until the next loss; ``every``: seconds in the mean, or infinity."""
    return math.inf if math.isinf(every) else chosen.expovariate(1 / every) / 60


def watch(run: Watched, minutes: float, every: float, seed: int) -> tuple[list[Look], list[Loss]]:
    """Look at it, and lose hosts, for so long. ``every``: mean seconds between two losses."""
    chosen, looks, losses = random.Random(seed), [], []
    order: Iterator[str] = iter(())
    run.await_step(3)
    next_loss = run.minute + pause(chosen, every)
    while not looks or run.minute < minutes:
        run.await_step(0)  # or say that it has ended
        if run.minute >= next_loss:
            kind = next(order, None)
            if kind is None:  # each kind once in every six
                order = iter(chosen.sample(list(KINDS), len(KINDS)))
                kind = next(order)
            losses.append(lose(run, kind, chosen))
            print(f"{losses[-1].minute:6.1f} min  step {losses[-1].step:5d}  {kind}: {losses[-1].host}, on after "
                  f"{losses[-1].seconds:.1f} s", flush=True)  # fmt: skip
            next_loss = run.minute + pause(chosen, every)
        looks.append(run.look())
        time.sleep(LOOK if run.minute + LOOK / 60 < next_loss else max(0.0, (next_loss - run.minute) * 60))
    return looks, losses


def count(folder: Path) -> dict[str, int | bool]:
    """Of what the run wrote: whether each step is there once, and how each group ended."""
    rows = read_jsonl(folder / "metrics.jsonl")  # as they were written: ``read_metrics`` would hide a second one
    fates: dict[int, list[str]] = {}
    once = True
    for file in sorted((folder / "rollouts").iterdir()):
        samples: dict[int, list[int]] = {}
        ends_here: dict[int, dict[str, None]] = {}
        for row in read_rollouts(file, ["group", "sample", "disposition"]).to_pylist():
            samples.setdefault(row["group"], []).append(row["sample"])
            ends_here.setdefault(row["group"], {})[row["disposition"]] = None
        once = once and all(sorted(of_one) == list(range(GROUP)) for of_one in samples.values())
        for group, found in ends_here.items():
            fates.setdefault(group, []).extend(found)
    ends = [[fate for fate in of_one if fate != "carried"] for of_one in fates.values()]
    last = rows[-1]
    waiting = sum(of_one[-1] == "carried" for of_one in fates.values())
    dispatched = int(last["total/groups/dispatched"])
    return {
        "steps": int(last["step"]),
        "each step once, in order": [row["step"] for row in rows] == list(range(1, len(rows) + 1)),
        "groups dispatched": dispatched,
        "groups trained": Counter(end for of_one in ends for end in of_one)["trained"],
        "as many as the steps say": sum(of_one == ["trained"] for of_one in ends)
        == sum(int(row.get("groups/trained", 0)) for row in rows),
        "no group with two ends": all(len(of_one) <= 1 for of_one in ends),
        "each response of a group once": once,
        "waiting groups are those that the last step names": waiting == last["groups/waiting"],
        "no group is missing": len(fates) + last["groups/unfinished"] == dispatched,
        "no group that was not dispatched": all(0 <= group < dispatched for group in fates),
        **{said: int(sum(row.get(f"environment/{key}") or 0 for row in rows)) for key, said in FAILURES.items()},
    }


FAILURES = {
    "calls": "calls of tools in trained groups",
    "tool_errors": "of these, calls that raised",
    "errors": "episodes whose environment failed",
    "timeouts": "calls that hung",
    "replayed": "turns played again",
    "not_repeatable": "episodes that went otherwise when played again",
}
FIGURES = {
    "processes": "processes",
    "driver_mib": "driver, MiB",
    "hosts_mib": "ranks, engines and hosts for environments, MiB",
    "ray_mib": "Ray and guards, MiB",
    "driver_files": "open files of the driver",
    "shared_mib": "shared memory, MiB",
}


def table(result: dict[str, Any], looks: list[Look], losses: list[Loss]) -> str:
    """As Markdown."""
    machine, counted = result["machine"], result["counted"]
    quarter = max(1, len(looks) // 4)
    lines = [
        "# A small cluster left alone",
        "",
        f"{machine['cpu']}, Python {machine['python']}, torch {machine['packages']['torch']}, commit "
        f"{machine['commit']}, {machine['date']}: `{machine['command']}`.",
        "",
        f"{looks[-1].minute:.0f} minutes, {counted['steps']:,} steps, {len(losses)} losses; ended by an interrupt with "
        f"exit code {result['exit code']}. Every look and every loss: soak.json.",
        "",
        "| of all processes of the run | first quarter | last quarter | largest |",
        "| --- | --- | --- | --- |",
    ]
    for name, label in FIGURES.items():
        values = [float(asdict(look)[name]) for look in looks]
        first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        lines.append(f"| {label} | {first:,.0f} | {last:,.0f} | {max(values):,.0f} |")
    lines += ["", "| what was lost | times | until two more steps were done, median [least, greatest] s |"]
    lines += ["| --- | --- | --- |"]
    for kind in KINDS:
        took = [loss.seconds for loss in losses if loss.kind == kind]
        if took:
            lines.append(f"| {kind} | {len(took)} | {statistics.median(took):.1f} [{min(took):.1f}, {max(took):.1f}] |")
    lines += ["", "| counted at the end | |", "| --- | --- |"]
    lines += [f"| {what} | {value if isinstance(value, bool) else f'{value:,}'} |" for what, value in counted.items()]
    return "\n".join([*lines, ""])


INTERRUPTED = 130


def wrong(code: int, counted: dict[str, int | bool]) -> list[str]:
    """Return what is not as it should be."""
    none = (FAILURES["not_repeatable"], "processes left", "shared memory left, MiB")
    return [
        *["exit code"] * (code != INTERRUPTED),
        *(what for what, value in counted.items() if value is False or (what in none and value)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=120.0, help="mean seconds between two losses")
    parser.add_argument("--seed", type=int, default=0, help="of what is lost, and when")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds after which a silent host is lost")
    parser.add_argument("--work", type=Path, default=None, help="for the run's folder; else a temporary one")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.json")
    options = parser.parse_args()
    refuse_changes(options.out)
    machine = describe_machine()
    if options.work is not None:
        machine["command"] = machine["command"].replace(str(options.work), "WORK")
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=options.work))
    run = Watched(folder, options.timeout)
    try:
        looks, losses = watch(run, options.minutes, options.every, options.seed)
        code, left = run.interrupt()
    finally:
        run.process.kill()
    counted = {**count(run.folder), "processes left": len(left)}
    counted["shared memory left, MiB"] = round(run._shared() - run.shared_before)
    result = {"machine": machine, "exit code": code, "counted": counted,
              "looks": [asdict(look) for look in looks], "losses": [asdict(loss) for loss in losses]}  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    text = table(result, looks, losses)
    options.out.with_suffix(".md").write_text(text)
    print(text)
    if found := wrong(code, counted):
        raise SystemExit(f"not as it should be: {', '.join(found)}; the run is in {run.folder}")


if __name__ == "__main__":
    main()
