"""A whole run of a chat model: its template, its examples, how a response begins and ends; saved, resumed, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_run import assert_every_token_has_a_fate, dapo, write_recipe

from dapo.observe.metrics import read_metrics
from dapo.observe.rollouts import read_rollouts

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if final %}={% endif %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "own.jinja").write_text(TEMPLATE)
    recipe = write_recipe(folder)
    text = recipe.read_text().replace("checkpoint: {every: 2, keep: 2}", "checkpoint: {every: 1, keep: 3}")
    text = text.replace("trainer: {steps: 6}", "trainer: {steps: 2}")
    text = text.replace("algorithm: {", "algorithm: {dynamic_sampling: {mode: 'off'}, ")
    text = text.replace(
        "data:\n  train: [{task: signed_sum, seed: 1, size: 64}]\n",
        "data:\n  train:\n"
        "    - {task: signed_sum, seed: 1, size: 16, weight: 3, levels: [{max_terms: 3}, {min_terms: 4}]}\n"
        "    - {task: signed_sum, name: other, seed: 5, size: 16, weight: 1}\n"
        "  curriculum: {window: 2, raise_at: 0.01, lower_at: 0.001}\n"
        "  chat_template: own.jinja\n  chat_template_kwargs: {final: true}\n  response_prefix: ' +8 +1'\n"
        "  thinking: {enabled: true, open: '+8', close: '-9', budget: 4}\n"
        "  few_shot: [{problem: '1 =', response: '=1'}]\n",
    )
    recipe.write_text(text.replace("max_response_tokens: 24", "max_response_tokens: 24, stop: ['7 ', '+9']"))
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> Path:
    said = dapo("train", "recipe.yaml", cwd=folder).stdout
    (folder / "own.jinja").write_text("another {{ one }}")  # the run has its own
    assert "the model sees" in said
    return folder / "run"


def test_responses_begin_and_end_as_the_recipe_says(done: Path) -> None:
    rows = read_rollouts(done / "rollouts" / "step_000001.parquet").to_pylist()
    assert rows
    assert all(row["prompt"].startswith("1 = =1 ") and row["prompt"].endswith(" = +8 +1") for row in rows)
    assert all(row["response"].startswith(" +8 +1") for row in rows)
    bodies = [row["response"].removeprefix(" +8 +1") for row in rows]
    assert all("7 " not in body and "+9" not in body for body in bodies)
    assert any(body.split()[4:5] == ["-9"] for body in bodies)  # closed after four tokens
    assert_every_token_has_a_fate(read_metrics(done / "metrics.jsonl")[1:])
    line = read_metrics(done / "metrics.jsonl")[1]
    assert 0 < line["response/thinking_forced_share"] <= 1
    assert line["response/thinking_tokens_mean"] > 0
    assert (line["source/signed_sum/groups"], line["source/other/groups"]) == (3, 1)
    assert line["source/signed_sum/level"] in (1, 2)
    assert "stop" in {row["finish"] for row in rows}
    assert all(len(body.split()) <= row["length"] for body, row in zip(bodies, rows, strict=True))


@pytest.mark.whole
def test_a_run_left_in_the_middle_goes_on_to_the_bit(folder: Path, done: Path) -> None:
    dapo("train", "recipe.yaml", "run.name=half", "trainer.steps=1", f"data.chat_template={TEMPLATE}", cwd=folder)
    dapo("train", "--resume", "half", "trainer.steps=2", cwd=folder)
    one, two = (read_metrics(folder / name / "metrics.jsonl")[-1] for name in ("run", "half"))
    same = {k for k in one if k.startswith(("reward/", "response/", "train/", "groups/", "source/"))} - {
        "train/learning_rate"
    }
    assert {k: one[k] for k in same} == {k: two[k] for k in same}
    refused = dapo("train", "--resume", "half", "data.response_prefix=x", cwd=folder, expect=2)
    assert "data.response_prefix" in refused.stderr


def test_an_export_ships_the_template_that_was_trained_with(folder: Path, done: Path) -> None:
    dapo("export", "run", "exported", cwd=folder)
    saved = folder / "exported" / "chat_template.jinja"
    config = json.loads((folder / "exported" / "tokenizer_config.json").read_text())
    assert (saved.read_text() if saved.exists() else config["chat_template"]) == TEMPLATE
