import ast
import re
from pathlib import Path

import pytest
from metrics_page import render

from dapo.config.peer_names import peer_metric
from dapo.metrics.glossary import AREAS, GLOSSARY, lookup
from dapo.types.enums import Disposition, Verdict

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("train/loss", "train/loss"),
        ("validation/accuracy", "validation/accuracy"),
        ("validation/aime/accuracy", "validation/<set>/accuracy"),
        ("validation/reasoning_gym/chain_sum/pass@4", "validation/<set>/pass@<k>"),
        ("validation/maj@32", "validation/maj@<k>"),
        ("reward/format", "reward/<name>"),
        ("reward/format_kept", "reward/<name>_kept"),
        ("reward/unscored/timeout", "reward/unscored/<reason>"),
        ("validation/unscored_no reason given", "validation/unscored_<reason>"),
        ("validation/gym/sums/unscored_timeout", "validation/<set>/unscored_<reason>"),
        ("validation/gym/sums/accuracy_unscored_wrong", "validation/<set>/accuracy_unscored_wrong"),
        ("custom/temperature", "custom/<name>"),
    ],
)
def test_a_logged_key_finds_its_line(key, line):
    assert lookup(key) is GLOSSARY[line]


@pytest.mark.parametrize(
    "key",
    [
        "loss",
        "train/los",
        "train/loss/x",
        "validation/pass@k",
        "validation/aime/pass@",
        "validation//accuracy",
        "validation/<set>/accuracy",
        "reward/",
        "reward/a/b",
        "xtrain/loss",
        "",
    ],
)
def test_other_keys_find_nothing(key):
    assert lookup(key) is None


def test_every_line_is_whole_and_stands_once():
    lines = [metric for area in AREAS.values() for metric in area()]
    assert len({metric.key for metric in lines}) == len(lines)
    for metric in lines:
        assert metric.meaning.endswith("."), metric.key
        assert "\n" not in metric.meaning
        assert metric.unit, metric.key


def test_what_section_6_of_the_algorithm_asks_for_is_there():
    wanted = [
        *(f"groups/{verdict}" for verdict in Verdict),
        *(f"groups/{disposition}" for disposition in Disposition),
        *("sampling/acceptance_rate", "sampling/generated_tokens", "sampling/trained_tokens", "sampling/trained_share"),
        *("sampling/refills", "groups/age_mean", "groups/age_max"),
        *("train/clip_low", "train/clip_high", "train/clip_dual", "train/clip_high_probability", "train/entropy"),
        *("response/length_mean", "response/length_correct_p50", "response/length_wrong_p90"),
        *("response/truncated_share", "response/penalty_mean", "reward/raw", "reward/raw_kept"),
        *("train/gap_mean_current", "train/gap_mean_older", "train/loss_tokens", "train/grad_norm"),
        *("train/learning_rate", "memory/peak_rss_mib"),
        *(f"time/{phase}" for phase in ("generate", "score", "learn", "publish", "evaluate", "save")),
        *("counters/training_steps", "counters/rollout_steps", "counters/optimizer_steps"),
    ]
    assert [key for key in wanted if lookup(key) is None] == []


def test_exactly_times_memory_and_work_done_again_are_marked_as_clock():
    for metric in GLOSSARY.values():
        begins = ("time/", "memory/", "environment/seconds_", "environment/waited", "environment/replayed")
        measured = metric.key.startswith(begins) or metric.key.endswith("_seconds")
        assert metric.clock == measured, metric.key


def test_every_metric_named_in_the_source_has_a_line():
    areas = "|".join(sorted({key.split("/")[0] for key in GLOSSARY if "/" in key}))
    shape = re.compile(rf"({areas})/[\w@/]*\w")
    missing = []
    for file in (ROOT / "dapo").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        whole = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in pieces)
        for node in whole:
            text = node.value if isinstance(node.value, str) else ""
            if not shape.fullmatch(text):
                continue
            prefix = any(key.startswith(f"{text}_") for key in GLOSSARY)  # "response/length", joined with "_mean" later
            theirs = file == ROOT / "dapo/metrics/peers.py" and peer_metric(text) is not None
            if not prefix and not theirs and lookup(text) is None:
                missing.append(f"{file.relative_to(ROOT)}:{node.lineno} {text}")
    assert missing == []


def test_docs_metrics_is_current():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == render(), "run `python tests/helpers/metrics_page.py`"
