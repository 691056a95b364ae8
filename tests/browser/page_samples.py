"""A bundle made up, whose every number follows from the step, and a page that notes what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dapo.metrics.charts import charts_of
from dapo.metrics.glossary import lookup
from dapo.report.page_data import FamilyView, GroupView, PageData, ResponseView, RunView, Tokens

STEPS = 20
VERDICTS = ("kept", "all_correct", "all_wrong", "kept")


def validation_accuracy(step: int) -> float:
    return 0.4 + 0.02 * step


def training_accuracy(step: int) -> float:
    return 0.3 + 0.02 * step


def sample_curves(steps: int = STEPS, shift: float = 0.0) -> dict[str, Any]:
    numbers = list(range(steps + 1))

    def trained(value: Callable[[int], float]) -> list[float | None]:
        return [None if step == 0 else value(step) + shift for step in numbers]

    def evaluated(value: Callable[[int], float]) -> list[float | None]:
        return [value(step) + shift if step % 10 == 0 else None for step in numbers]

    values = {
        "validation/accuracy": evaluated(validation_accuracy),
        "validation/accuracy_low": evaluated(lambda step: validation_accuracy(step) - 0.05),
        "validation/accuracy_high": evaluated(lambda step: validation_accuracy(step) + 0.05),
        "validation/greedy_accuracy": evaluated(lambda step: validation_accuracy(step) + 0.1),
        "reward/accuracy": trained(training_accuracy),
        "reward/accuracy_kept": trained(lambda step: 0.5),
        "groups/kept_share": trained(lambda step: 0.8 - 0.02 * step),
        "groups/all_correct_share": trained(lambda step: 0.02 * step),
        "groups/all_wrong_share": trained(lambda step: 0.2),
        "train/entropy": trained(lambda step: 0.5 - 0.02 * step),
        "train/clip_low": trained(lambda step: 0.001),
        "train/clip_high": trained(lambda step: 0.004),
        "train/clip_dual": trained(lambda step: 0.0),
        "time/generate": trained(lambda step: 1.0),
        "time/learn": trained(lambda step: 2.0),
        "memory/peak_rss_mib": trained(lambda step: 500.0 + step),
    }
    return {
        "steps": numbers,
        "values": values,
        "low": {},
        "high": {},
        "thinned": {"kept": len(numbers), "of": len(numbers), "how": ""},
    }


def sample_tokens(pieces: list[str]) -> Tokens:
    count = len(pieces)
    return {
        "pieces": pieces,
        "sampler": [-0.05 * i - 0.01 for i in range(count)],
        "learner": [-0.05 * i - 0.02 for i in range(count)],
        "ratio": [1.0 + 0.1 * i for i in range(count)],
        "entropy": [0.2 * i for i in range(count)],
        "clip": [i % 4 for i in range(count)],
        "versions": [3 + i // 3 for i in range(count)],
        "given": None,
    }


def sample_response(sample: int, text: str, correct: bool, tokens: bool = False) -> ResponseView:
    pieces = [f"{' ' if i else ''}{word}" for i, word in enumerate(text.split(" "))] + ["<eos>"]
    return {
        "sample": sample,
        "text": text,
        "length": len(pieces),
        "finish": "stop",
        "accuracy": float(correct),
        "rewards": {"accuracy": float(correct), "format": 0.5},
        "reward": float(correct) + 0.25,
        "penalty": 0.0,
        "shaped": float(correct) + 0.25,
        "advantage": 1.0 if correct else -1.0,
        "voter": True,
        "unscored": None,
        "logprob": -0.125,
        "turns": None,
        "ended": None,
        "tokens": sample_tokens(pieces) if tokens else None,
    }


def sample_group(step: int, group: int) -> GroupView:
    verdict = VERDICTS[group % 4]
    correct = {"kept": 2, "all_correct": 4, "all_wrong": 0}[verdict]
    kept = verdict == "kept"
    return {
        "step": step,
        "group": group,
        "born": step,
        "prompt_id": f"id{group % 8}",
        "source": "sums" if group % 2 else "products",
        "problem": f"prompt {group % 8}: {group} + {step} =",
        "prompt": f"<|user|>prompt {group % 8}: {group} + {step} =<|end|>",
        "answer": str(group + step),
        "verdict": verdict,
        "disposition": "trained" if kept else "discarded",
        "why": "Kept: its responses differ." if kept else "Dropped: its responses do not differ.",
        "responses": [
            sample_response(i, f"answer {group + step} of\nsample {i}", i < correct, tokens=group % 4 == 0)
            for i in range(4)
        ],
        "size": 4,
        "correct": correct,
        "scored": 4,
        "length_mean": 5.0,
        "truncated": 0,
        "has_tokens": group % 4 == 0,
    }


def sample_run(name: str = "sample", seed: int | None = 1, shift: float = 0.0, **more: Any) -> RunView:
    groups = [sample_group(step, (step - 1) * 8 + i) for step in range(1, STEPS + 1) for i in range(8)]
    run: dict[str, Any] = {
        "name": name,
        "label": name,
        "folder": f"runs/{name}",
        "family": "family",
        "seed": seed,
        "status": {
            "state": "finished",
            "title": "finished",
            "said": "",
            "step": STEPS,
            "steps": STEPS,
            "started": 1.8e9,
            "updated": 1.8e9 + 60,
            "log": [],
        },
        "sentences": ["It learned: held-out accuracy rose from 40 % to 80 %.", "Entropy fell to 0.1 nats."],
        "tiles": [
            {
                "label": "Held-out accuracy",
                "value": "40.0 % -> 80.0 %",
                "detail": "95 % interval 75 to 85",
                "key": "validation/accuracy",
                "tone": "good",
            },
            {"label": "Entropy", "value": "0.10 nats", "detail": "", "key": "train/entropy", "tone": "warn"},
        ],
        "advice": [
            {
                "rule": "entropy_collapse",
                "severity": "warn",
                "title": "Entropy is falling",
                "said": "It fell from 0.48 to 0.10 nats.",
                "move": "Raise algorithm.clip.high.",
                "first_step": 5,
                "last_step": 20,
                "keys": ["train/entropy", "train/clip_high"],
            }
        ],
        "curves": sample_curves(shift=shift),
        "recipe": {
            "preset": "dapo",
            "made_of": [("model.path", '"a/b"'), ("data.train.0.path", '"train.jsonl"')],
            "resolved": f"run:\n  name: {name!r}\n",
            "difference": [("run.seed", "0", str(seed)), ("trainer.steps", "100", "20")],
        },
        "machines": [
            {"step": 0, "time": 1.8e9, "facts": [("processor", "EPYC, 2 cores"), ("packages", "torch 2.13.0")]},
            {"step": 7, "time": 1.8e9, "facts": [("processor", "Xeon, 4 cores"), ("packages", "torch 2.13.0")]},
        ],
        "processes": [],
        "time": {
            "phases": [("learn", 40.0, 2.0, 2.0), ("generate", 20.0, 1.0, 1.0)],
            "busy": [],
            "ages": [],
            "note": "",
        },
        "rollouts": {
            "steps": list(range(1, STEPS + 1)),
            "groups": groups,
            "prompts": [
                {
                    "id": f"id{k}",
                    "source": "sums" if k % 2 else "products",
                    "prompt": f"prompt {k}",
                    "answer": str(k),
                    "visits": [
                        {
                            "step": one["step"],
                            "group": one["group"],
                            "verdict": one["verdict"],
                            "disposition": one["disposition"],
                            "correct": one["correct"],
                            "scored": 4,
                            "length_mean": 5.0,
                        }
                        for one in groups
                        if one["prompt_id"] == f"id{k}"
                    ],
                }
                for k in range(8)
            ],
            "held_out": [
                {
                    "set": "test",
                    "prompt_id": f"h{k}",
                    "problem": f"held out {k}",
                    "prompt": f"held out {k}",
                    "answer": str(k),
                    "greedy": True,
                    "answers": [(0, f"before {k}", float(k % 2), 3, False), (20, f"after {k}", float(k < 6), 4, False)],
                }
                for k in range(8)
            ],
            "thinned": {"kept": len(groups), "of": len(groups), "how": ""},
        },
        "notes": [],
    }
    return {**run, **more}  # type: ignore[typeddict-item, return-value]


def sample_bundle(
    *runs: RunView, bands: dict[str, Any] | None = None, families: list[FamilyView] | None = None
) -> PageData:
    views = list(runs) or [sample_run()]
    keys = {key for run in views for key in run["curves"]["values"]} | {"train/gap_mean"}
    glossary: dict[str, Any] = {}
    for key in keys:
        metric = lookup(key)
        if metric is not None:
            glossary[key] = {"unit": metric.unit, "meaning": metric.meaning, "better": metric.better or ""}
    return {
        "version": "0",
        "made": 1.8e9,
        "live": False,
        "runs": views,
        "families": families or [],
        "bands": bands or {},
        "charts": charts_of([key for run in views for key in run["curves"]["values"]]),
        "glossary": glossary,
    }


class Seen:
    """An open page, what its console said, and what it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def js(self, expression: str, value: Any = None) -> Any:
        return self.page.evaluate(expression, value)

    def chart(self, name: str) -> Any:
        return self.page.locator(f'#charts figure[data-chart="{name}"], #numbers figure[data-chart="{name}"]')

    def choose(self, label: str, value: str, within: str = "#rollouts [role=tabpanel]:not([hidden])") -> None:
        self.page.locator(within).get_by_label(label, exact=True).select_option(value)

    def rows(self) -> list[str]:
        """The rows of the list in sight."""
        return [
            str(text) for text in self.page.locator("[role=tabpanel]:not([hidden]) .tabulator-row").all_inner_texts()
        ]
