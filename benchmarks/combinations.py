"""Draw combinations of settings; train each undisturbed, and killed anywhere and resumed: the digits must be the same.

    python benchmarks/combinations.py --work WORK [--first 1] [--count 100] [--minutes 30]

A combination is drawn from its number: losses, corrections, dynamic sampling, engines, overlap, ranks, environments,
adapters, precision. Settings that a recipe refuses together are left out one by one. Each trains five small steps. Its
second run is killed by SIGKILL at a random moment, resumed, sometimes killed again, and resumed to its end. All metrics
but times, all rollouts and the last weights must be equal, and the account of groups and tokens must close. A folder is
kept where they are not, with both runs; exit code 1 then. The code is 1, too, where a setting was in two runs or more
and all of them were refused: such a setting is never tried.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from golden import HERE, compare_rollouts, compare_rows, compare_weights
from golden_matrix import Runner

from dapo.config import load_recipe
from dapo.errors import RecipeError
from dapo.models.builtin import ensure_builtin_model
from dapo.observe.metrics import read_metrics

STEPS = 5
REFUSED = 2  # exit code of `dapo train`
LIMIT = 600.0  # seconds of one command, many times what it takes
KILLS = 3  # of one run at most
COMMON = [
    "run.reward_workers=1",
    "data.train.0.size=60",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "rollout.max_response_tokens=24",
    "algorithm.dynamic_sampling.cap={groups: 12, then: train_partial}",
    "learner.learning_rate=2e-3",
    "learner.minibatch_prompts=2",
    "learner.warmup=2",
    "validation.every=2",
    "validation.samples=1",
    "validation.limit=4",
    "logging.console=plain",
    "logging.rollouts=all",
    f"trainer.steps={STEPS}",
]
SAMPLING = "algorithm.dynamic_sampling"
TEMPLATE = (
    "'{% for message in messages %}{{ message.content }} "
    '{% if message.role == "assistant" %}<eos> {% endif %}{% endfor %}\''
)
"""Of chats, for a model of words whose only special token for an end is ``<eos>``."""
Choice = tuple[float, Sequence[Sequence[str]]]
"""How often one of several sets of overrides is taken."""


def each(key: str, *values: object) -> list[list[str]]:
    return [[f"{key}={value}"] for value in values]


CHOICES: list[Choice] = [
    (0.6, each("preset", "grpo", "gspo", "cispo", "sapo", "clip-cov", "kl-cov", "dr-grpo")),
    (0.5, each("algorithm.old_logprobs", "sampler", "learner", "interpolated")),
    (
        0.4,
        [
            [f"algorithm.correction.kind={kind}", "algorithm.old_logprobs=learner"]
            for kind in (
                "none",
                "report",
                "untruncated",
                "truncate",
                "truncate_sequence",
                "mask_token",
                "mask_sequence",
            )
        ],
    ),
    (
        0.4,
        [
            ["algorithm.kl_coefficient=0.05"],
            ["algorithm.kl_coefficient=0.05", "algorithm.kl_in_reward=true"],
            ["algorithm.kl_coefficient=0.05", "algorithm.reference.refresh_every=2"],
        ],
    ),
    (
        0.2,
        [
            ["algorithm.entropy_coefficient=0.01"],
            ["algorithm.entropy_control.target=0.3", "algorithm.entropy_control.delta=0.01"],
        ],
    ),
    (
        0.25,
        each(
            "algorithm.loss.reduction",
            *("token_mean", "prompt_mean", "sequence_mean", "{kind: micro_batch_mean, sequences: 2}"),
        ),
    ),
    (0.2, [["algorithm.clip={low: 0.1, high: 0.1, dual: 1.2}"]]),
    (0.2, each("algorithm.advantage.scale", "batch_std", "none")),
    (0.2, [["algorithm.advantage.baseline=leave_one_out"]]),
    (0.4, each(f"{SAMPLING}.mode", "off", "mask", "replace")),
    (0.4, [*each(f"{SAMPLING}.lookahead", 0, 2), [f"{SAMPLING}.oversample=2"]]),
    (0.4, [[f"{SAMPLING}.surplus=discard"]]),
    (0.5, each(f"{SAMPLING}.unfinished", "drain", "discard")),
    (0.3, [*each(f"{SAMPLING}.max_age", 0, 1), [f"{SAMPLING}.max_age=1", f"{SAMPLING}.on_max_age=drop"]]),
    (0.2, [[f"{SAMPLING}.verdict_lag=3"]]),
    (0.2, [[f"{SAMPLING}.mixed=spread"], [f"{SAMPLING}.band=[0.1, 0.9]"]]),
    (
        0.25,
        each(
            f"{SAMPLING}.cap",
            *("{groups: 1, then: fill}", "{groups: 1.5, then: train_partial}", "{tokens: 300, then: train_partial}"),
        ),
    ),
    (
        0.3,
        [
            ["data.train.0.size=16", f"{SAMPLING}.selection.greso.target=0.25"],
            ["data.train.0.size=16", f"{SAMPLING}.selection.retire={{at: 0.75, review: 0.2}}"],
            [
                "data.train.0.size=12",
                f"{SAMPLING}.selection.easy={{at: 0.75, share: 0.3}}",
                f"{SAMPLING}.selection.hard={{at: 0.25, share: 0.3}}",
            ],
        ],
    ),
    (
        0.25,
        [
            ["data.train.0.size=8", "data.epochs=2"],
            ["data.train.0.levels=[{max_terms: 3}, {max_terms: 5}]", "data.curriculum.window=4"],
            ["data.train.1={task: signed_sum, name: more, seed: 9, size: 30}"],
        ],
    ),
    (0.5, each("rollout.slots", 5, 8, 16, 40)),
    (0.2, each("rollout.engine", "generate")),
    (
        0.2,
        [
            ["rollout.temperature=1.2"],
            ["rollout.top_p=0.8", "algorithm.old_logprobs=learner"],
            ["rollout.top_k=5", "algorithm.old_logprobs=learner"],
        ],
    ),
    (0.2, [["rollout.stop=['=']"], ["rollout.stop=['+1']", "rollout.include_stop_str_in_output=true"]]),
    (
        0.2,
        [
            ["data.thinking={enabled: true, open: '?', close: '-1'}"],
            ["data.thinking={enabled: true, open: '?', close: '-1', budget: 6, end: '-1'}"],
        ],
    ),
    (0.2, [["data.response_prefix='+1 ='"]]),
    (
        0.35,
        [
            ["rollout.engines=2", "rollout.turn_steps=8"],
            ["rollout.max_staleness=1", "rollout.overlap_turns=2", "rollout.turn_steps=8"],
            ["rollout.max_staleness=2", "rollout.overlap_turns=3", "rollout.turn_steps=8"],
            ["learner.ranks=2"],
            ["learner.ranks=2", "learner.replicas=2"],
            ["learner.ranks=2", "learner.context_parallel=2"],
        ],
    ),
    (0.3, [["learner.epochs_per_rollout=2"]]),
    (0.4, each("learner.microbatch_tokens", 64, 200)),
    (0.3, each("learner.minibatch_prompts", 1, "null")),
    (0.2, [["learner.schedule_unit=optimizer"]]),
    (0.2, [["model.lora.rank=4"]]),
    (0.15, [["model.dtype=bfloat16"]]),
    (0.1, [["model.attention=padded"]]),
    (
        0.3,
        [
            ["algorithm.overlong_filtering=false"],
            ["rollout.max_response_tokens=12", "algorithm.overlong_punishment.cache_length=8"],
        ],
    ),
    (0.3, [["checkpoint.asynchronous=true"]]),
]
"""Each independent of the others."""
REWARDS: list[Choice] = [
    (
        0.3,
        [
            [
                "rewards.1={name: short, kind: regex, pattern: '^.{0,30}$', weight: 0.5}",
                "algorithm.reward_scaling.source_max=1.5",
            ]
        ],
    ),
]
EPISODES: list[Choice] = [
    (1.0, [["rewards=[{name: accuracy, kind: environment}]", "rollout.max_response_tokens=40"]]),
    (1.0, [["rollout.stop_token_ids=[1,5,9]"]]),
    (1.0, each("environment.kind", "benchmarks.combinations_games:tries", "benchmarks.combinations_games:Counting")),
    (1.0, [["environment.max_turns=3", "environment.max_turn_tokens=6", "environment.workers=1"]]),
    (1.0, each("environment.lag", 0, 2, 16)),
    # A sequence-wise loss or correction needs all turns of an episode in one pass.
    (
        0.35,
        [
            [
                "environment.rows=turns",
                "data.prompt=chat",
                f"data.chat_template={TEMPLATE}",
                "learner.microbatch_tokens=200",
            ]
        ],
    ),
]


def drawn(chance: random.Random) -> list[str]:
    """Return overrides that a recipe accepts together."""
    return accepted(taken(CHOICES + (EPISODES if chance.random() < 0.35 else REWARDS), chance), chance)


def accepted(overrides: Iterable[str], chance: random.Random, kept: Sequence[str] = ()) -> list[str]:
    """Return the overrides that a recipe accepts together, and beside those that are kept in any case."""
    left = list(overrides)
    while left:
        try:
            load_recipe("quickstart", [*COMMON, *kept, *left])
        except RecipeError as error:
            named = [one for one in left if one.split("=")[0] in str(error)]
            left.remove(chance.choice(named or left))
        else:
            break
    return left


def taken(choices: Sequence[Choice], chance: random.Random) -> Iterator[str]:
    for share, sets in choices:
        if chance.random() < share:
            yield from chance.choice(sets)


def command(overrides: Sequence[str], folder: Path, name: str, seed: int, every: int) -> list[str]:
    """Return the words of `dapo train` for one run of a combination."""
    own = [f"run.dir={folder}", f"run.name={name}", f"run.seed={seed}", f"checkpoint.every={every}"]
    return ["train", "quickstart", *COMMON, *overrides, *own]


def killed_and_resumed(runner: Runner, words: list[str], run: Path, took: float, chance: random.Random) -> int | None:
    """Train with kills on the way. Return the exit code of the last command, None where it took too long."""
    code = None
    for left in reversed(range(KILLS + 1)):
        limit = max(1.0, took * chance.uniform(0.2, 1.0)) if left else LIMIT
        if any((run / "checkpoints").glob("step_*")):
            code = runner.run(["train", "--resume", str(run)], run.with_suffix(".txt"), limit)
        else:
            shutil.rmtree(run, ignore_errors=True)
            code = runner.run(words, run.with_suffix(".txt"), limit)
        if code is not None:
            break
    return code


def differences(whole: Path, cut: Path) -> list[str]:
    """Return what differs between the two runs, and where the account does not close, one line each."""
    rows = [read_metrics(run / "metrics.jsonl") for run in (whole, cut)]
    found = [str(one) for one in compare_rows(*rows) + compare_rollouts(whole, cut) + compare_weights(whole, cut)]
    return found + open_accounts(rows[0][-1])


def open_accounts(last: Mapping[str, Any]) -> list[str]:
    """Return a line for groups and for tokens whose account does not close in a run's last row of metrics."""
    found: list[str] = []
    if not last["step"]:  # the data ended before the first step: there is no account
        return found
    for what, held, every, ends in (
        ("groups", ("groups/waiting", "groups/unfinished"), "total/groups/dispatched", "total/groups/{}"),
        ("tokens", ("cost/held_tokens",), "counters/generated_tokens", "total/cost/{}_tokens"),
    ):
        names = ("trained", "filled", "discarded", "expired", *(["rejected"] if what == "tokens" else []))
        counted = sum(last[key] or 0 for key in (*held, *(ends.format(name) for name in names)))
        if counted != last[every]:
            found.append(f"  {what}: {counted} have an end or are held, {last[every]} began")
    return found


def try_one(runner: Runner, number: int, folder: Path, model: Path) -> tuple[str, list[str], list[str]]:
    """Run one combination; return what became of it in a word, lines for a person, and its settings."""
    chance = random.Random(number)
    every = chance.choice([1, 2])
    overrides = drawn(chance)
    return *compared(runner, number, folder, [*overrides, f"model.path={model}"], every, chance), overrides


def compared(
    runner: Runner, number: int, folder: Path, overrides: list[str], every: int, chance: random.Random
) -> tuple[str, list[str]]:
    """Train whole, and killed and resumed; return what became of it in a word, and lines for a person."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    code = runner.run(command(overrides, folder, "whole", number, every), folder / "whole.txt", LIMIT)
    took = time.monotonic() - began
    if code == REFUSED:
        return "refused", output_end(folder / "whole.txt")
    if code != 0:
        return "failed", [" ".join(overrides), *output_end(folder / "whole.txt")]
    words = command(overrides, folder, "cut", number, every)
    code = killed_and_resumed(runner, words, folder / "cut", took, chance)
    if code != 0:
        return "failed", [" ".join(overrides), f"  the resumed run ended with {code}", *output_end(folder / "cut.txt")]
    if found := differences(folder / "whole", folder / "cut"):
        return "differs", [" ".join(overrides), *found]
    return "equal", []


def always_refused(tried: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the settings that two runs or more had, all of them refused; ``tried``: word and settings of each run."""
    runs, refused = Counter[str](), Counter[str]()
    for word, overrides in tried:
        runs.update(overrides)
        refused.update(overrides if word == "refused" else [])
    return sorted(one for one, count in runs.items() if count > 1 and refused[one] == count)


def output_end(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-6:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--first", type=int, default=1, help="number of the first combination")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no combination after so long")
    asked = parser.parse_args()
    work, until = asked.work.resolve(), time.monotonic() + 60 * asked.minutes
    model = ensure_builtin_model("builtin/signed-sum", work / "models")
    tried: list[tuple[str, Sequence[str]]] = []
    with closing(Runner(HERE)) as runner:
        for number in range(asked.first, asked.first + asked.count):
            if time.monotonic() > until:
                break
            folder = work / f"combination-{number}"
            word, lines, overrides = try_one(runner, number, folder, model)
            tried.append((word, overrides))
            print(f"combination {number}: {word}", *lines, sep="\n  " if lines else "", flush=True)
            if word in ("equal", "refused"):
                shutil.rmtree(folder)
    words = Counter(word for word, _ in tried)
    print(", ".join(f"{count} {word}" for word, count in words.items()), f"runs that are not equal stay in {work}")
    never = always_refused(tried)
    for one in never:
        print(f"never tried, every run with it was refused: {one}")
    return 1 if words["differs"] or words["failed"] or never else 0


if __name__ == "__main__":
    sys.exit(main())
