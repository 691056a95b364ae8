"""Compare what ``dapo import`` makes of public files with what an independent reader finds: `make test-imports`.

``files.json`` names the files: repository, commit, path, blob, and ten decisive keys as ``plain_reader`` finds them.
The files themselves are not part of this repository. DIR holds checkouts as OWNER/NAME; a file of another version is
passed over.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from dapo.errors import RecipeError
from dapo.importing.convert import Imported, import_file
from tests.imports.plain_reader import KEYS, read

TABLE = Path(__file__).with_name("files.json")
OURS = {
    "group": "rollout.group_size",
    "batch": "rollout.prompts_per_step",
    "response": "rollout.max_response_tokens",
    "rate": "learner.learning_rate",
    "kl": "algorithm.kl_coefficient",
    "clip_low": "algorithm.clip.low",
    "clip_high": "algorithm.clip.high",
    "filter": "algorithm.dynamic_sampling.mode",
    "penalty": "algorithm.overlong_punishment.enabled",
}
FAULTS = ("called a default", "another value", "another method in silence", "crash")


def expected(system: str, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the values that our settings may have by the file; a key is left out where the file has none."""
    result = {key: list(found.get(key, [])) for key in OURS}
    if system in ("trl", "ms-swift"):
        result["batch"] = _products(found)
        result["penalty"] = [True] if any("soft_overlong" in str(v) for v in found.get("penalty", [])) else []
    if system in ("verl", "skyrl"):
        result["kl"] = _kl(found, system == "skyrl")
    if system == "nemo-rl" and found.get("rate_megatron"):
        result["rate"] += found["rate_megatron"]
    if system == "skyrl":
        result["penalty"] = [value > 0 if isinstance(value, int) else value for value in result["penalty"]]
    result["filter"] = ["off" if value in (False, "null", "") else "on" for value in result["filter"]]
    return {key: values for key, values in result.items() if values}


def _kl(found: dict[str, list[Any]], by_default: bool) -> list[Any]:
    """Coefficients of a KL term that is switched on, in the loss or in the reward; 0 where it is off."""
    switches = {name: found.get(name, []) for name in ("kl_switch", "kl_in_reward")}
    in_loss = switches["kl_switch"] or [by_default]
    result = list(found.get("kl", [])) if True in in_loss else []
    result += found.get("kl_of_reward", []) if True in switches["kl_in_reward"] else []
    off = False in in_loss and True not in switches["kl_in_reward"] and any(switches.values())
    return result + ([0.0] if off else [])


def _products(found: dict[str, list[Any]]) -> list[Any]:
    """Prompts of a step: rows of a device, slices and devices, by the group."""

    def one(name: str, default: int) -> int | None:
        values = found.get(name, [])
        known = [v for v in values if isinstance(v, int)]
        return default if not values else known[-1] if len(known) == len(values) else None

    group = one("group", 8)
    devices, nodes = one("processes", 1), one("nodes", 1)
    slices = one("slices", 0) or one("accumulated", 1)
    rows = one("rows", 8 if "global" not in found else 1)
    if whole := one("whole", 0):
        return [whole // group] if group else []
    if (step := one("global", 0)) and group:
        return [step * (one("slices", 1) or 1) // group]
    if None in (group, devices, nodes, slices, rows) or not found.get("rows"):
        return []
    return [max(1, rows * slices * devices * nodes // group)]


def outcomes(made: Imported, wanted: dict[str, list[Any]]) -> dict[str, str]:
    """Return one word for each key that the file has."""
    result = {}
    for key, values in wanted.items():
        line = made.reading.lines.get(OURS[key])
        if line is not None and getattr(line, "fill_in", False):
            result[key] = "FILL IN"
            continue
        value = None if line is None else line.value
        if key == "filter":
            value = "off" if value == "off" else "on"
        if key.startswith("clip_") and line is None and made.reading.lines.get("algorithm.loss.kind"):
            continue  # another loss, which has no clip
        known = [v for v in values if not isinstance(v, str) or key == "filter"]
        if value in known or any(_close(value, v) for v in known):
            result[key] = "same"
        elif line is None or not line.given:
            result[key] = "called a default"
        else:
            result[key] = "same" if not known else "another value"
    return result


def _close(a: Any, b: Any) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float) and abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def judge(path: Path, system: str, found: dict[str, list[Any]]) -> tuple[str, str]:
    """Return the outcome of one file and its detail."""
    grpo = found["method"] == ["grpo"]
    try:
        made = import_file(path, system)
    except RecipeError as error:
        return ("refused" if grpo else "refused: another method"), " ".join(str(error).split())[:250]
    except Exception as error:
        return "crash", repr(error)[:150]
    if not grpo and "CAUTION" not in made.text.splitlines()[0]:
        return "another method in silence", str(found["method"][0])
    words = outcomes(made, expected(system, found))
    for fault in FAULTS:
        if keys := [key for key, word in words.items() if word == fault]:
            shown = {k: getattr(made.reading.lines.get(OURS[k]), "value", None) for k in keys}
            return fault, f"{shown} in the file: { {k: expected(system, found)[k] for k in keys} }"
    named = [key for key, word in words.items() if word == "FILL IN"]
    first = "CAUTION" in made.text.splitlines()[0]
    how = "with FILL IN" if named else "with a CAUTION" if first else "right"
    return how, ", ".join(named) or (made.text.splitlines()[0][:150] if first else "")


def blob(path: Path) -> str:
    """Return git's name of a file's contents, shortened."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()[:12]


def main() -> int:
    """Compare, print every outcome that is not right, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path, help="checkouts as OWNER/NAME")
    parser.add_argument("--all", action="store_true", help="print right ones, too")
    parser.add_argument("--json", type=Path, help="write the outcomes by file")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    by_system: Counter[tuple[str, str]] = Counter()
    told = {}
    for row in json.loads(TABLE.read_text(encoding="utf-8")):
        root = (arguments.dir / row["repo"]).resolve()
        path = root / row["path"]
        if not path.is_file() or blob(path) != row["blob"]:
            counts["not there in this version"] += 1
            continue
        found = read(path, row["system"])
        if {key: values for key, values in found.items() if values} != row["found"]:
            counts["the reader finds something else than the table has"] += 1
        with contextlib.chdir(root):
            outcome, detail = judge(path, row["system"], found)
        counts[outcome] += 1
        by_system[row["system"], outcome] += 1
        told[f"{row['repo']}/{row['path']}"] = [outcome, detail]
        if arguments.all or outcome not in ("right", "refused: another method"):
            print(f"{outcome:<28} {row['system']:<8} {row['path']}\n{'':<29}{detail}")
    print()
    for (system, outcome), number in sorted(by_system.items()):
        print(f"{system:<10} {outcome:<28} {number}")
    print()
    for outcome, number in counts.most_common():
        print(f"{number:>5}  {outcome}")
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 1 if any(counts[fault] for fault in FAULTS) else 0


assert set(OURS) == set(KEYS) - {"method"}
if __name__ == "__main__":
    sys.exit(main())
