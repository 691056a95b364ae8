"""Slurm's part of a launch: options of sbatch as settings of ``slurm``, and the script that a job runs."""

from __future__ import annotations

import re

from dapo.importing.reading import Reading

KEY = "sbatch --"
_SHORT = {"N": "nodes", "A": "account", "p": "partition", "t": "time", "q": "qos", "C": "constraint", "J": "job-name"}
_SHORT |= {
    "c": "cpus-per-task",
    "G": "gpus",
    "n": "ntasks",
    "o": "output",
    "e": "error",
    "d": "dependency",
    "w": "nodelist",
}
_ALONE = {"exclusive", "requeue", "no-requeue", "parsable", "wait", "hold", "verbose", "quiet", "overcommit"}
_PASSED_ON = re.compile(
    "partition|account|qos|constraint|time|mem(-per-gpu|-per-cpu)?|exclusive|reservation|exclude|nodelist|licenses|comment"
)
_OTHERWISE = {
    "job-name": "the job has the run's name: run.name",
    "output": "`dapo launch` keeps the job's output in the run's folder",
    "error": "`dapo launch` keeps the job's output in the run's folder",
    "requeue": "slurm.requeue, on unless switched off",
    "no-requeue": "slurm.requeue: false",
    "ntasks-per-node": "`dapo launch` starts one task on each machine",
    "ntasks": "`dapo launch` starts one task on each machine",
}


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return sbatch's options by their long names, and the words after them: the job's script and its arguments."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, equals, value = _SHORT.get(word[1:2], word[1:2]), word[2:], word[2:].removeprefix("=")
        if not equals and name not in _ALONE and rest:
            value = rest.pop(0)
        found[name] = value
    return found, rest


def convert(r: Reading) -> None:
    """Write the options of sbatch as lines of ``slurm``; what has none is listed."""
    names = [key.removeprefix(KEY) for key in r.source.settings if key.startswith(KEY)]
    if not names:
        return
    passed_on: dict[str, str | int | bool] = {}
    founds = []
    for name in names:
        found = r.find(KEY + name)
        value = "" if found is None or found.value is True else str(found.value)
        gpus = re.fullmatch(r"(?:gpu:)?(?:[\w.-]+:)?(\d{1,4})", value)
        if name == "nodes" and value.isdigit() and 0 < int(value) <= 10_000:
            r.put("slurm.nodes", int(value), found)
            continue
        if name in ("gres", "gpus-per-node") and gpus:
            passed_on["gpus-per-node"] = int(gpus[1])
        elif name == "cpus-per-task" and value.isdigit() and int(value):
            passed_on[name] = int(value)
        elif _PASSED_ON.fullmatch(name):
            passed_on[name] = value or True
        else:
            r.drop(found, _OTHERWISE.get(name, "slurm.options takes further options of sbatch"), idle=True)
            continue
        founds.append(found)
    if passed_on:
        r.put("slurm.options", passed_on, *founds)
    if "gpus-per-node" in passed_on:
        asked = r.find(KEY + "gpus-per-node") or r.find(KEY + "gres")
        r.put("learner.ranks", "auto", asked)
        r.put("rollout.engines", "auto", asked)
        r.say("all GPUs of the job learn and generate in turns: learner.ranks, rollout.engines (docs/scaling.md)")
