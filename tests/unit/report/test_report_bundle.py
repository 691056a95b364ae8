import base64
import gzip
import itertools
import json
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_folders import HOSTILE, make_group, make_prompt
from quick import quick

from dapo.observe.rollouts import write_rollouts
from dapo.observe.samples import Sample
from dapo.report import choose
from dapo.report.bundle import Budget, bundle_of
from dapo.report.choose import choose_rollouts, held_out_of, live_rollouts, spread
from dapo.report.page_data import RunView
from dapo.report.page_files import write_report
from dapo.report.reader import read_run

ALL = 10_000_000


def noise(step, n, sample, letters=400):
    """Text that does not pack well."""
    return "".join(random.Random(f"{step} {n} {sample}").choices("abcdefghijklmnopqrstuvwxyz ", k=letters))


def advice(first, last):
    words = dict.fromkeys(("rule", "title", "said", "move"), "")
    return {**words, "severity": "warn", "keys": [], "first_step": first, "last_step": last}


def packed(value):
    return len(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), 6))


def test_a_small_run_is_whole(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=5))
    rollouts, notes = choose_rollouts(run, [], ALL)
    assert notes == []
    assert rollouts["steps"] == [1, 2, 3, 4, 5]
    assert [(g["step"], g["group"]) for g in rollouts["groups"]] == [
        (s, s * 1000 + n) for s in range(1, 6) for n in range(6)
    ]
    assert all(len(group["responses"]) == 4 for group in rollouts["groups"])
    assert sum(group["has_tokens"] for group in rollouts["groups"]) == 10
    assert len(rollouts["prompts"]) == 8
    assert rollouts["thinned"] == {"kept": 30, "of": 30, "how": "Nothing was left out."}


def test_what_matters_most_comes_first(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=40, groups=12, text=noise))
    rollouts, _ = choose_rollouts(run, [advice(17, 23)], 120_000)
    kept = rollouts["groups"]
    assert 20 < len(kept) < 200
    steps = Counter(group["step"] for group in kept)
    assert {1, 17, 23, 40} <= set(steps)
    kinds = {(group["verdict"], group["disposition"]) for group in kept}
    assert len(kinds) == 6  # every kind that there is
    assert any(group["has_tokens"] for group in kept)
    longest = rollouts["prompts"][0]
    assert len(longest["visits"]) == 60
    assert sum(group["prompt_id"] == longest["id"] for group in kept) > 1
    assert rollouts["thinned"]["kept"] == len(kept)
    assert rollouts["thinned"]["of"] == 480
    assert f"{len(kept)} of 480 groups" in rollouts["thinned"]["how"]
    assert [g["step"] for g in kept] == sorted(g["step"] for g in kept)


@pytest.mark.parametrize("limit", quick([20_000, 60_000, 200_000], [60_000]))
def test_the_bytes_are_kept(tmp_path, make_run, limit):
    run = read_run(make_run(tmp_path / "run", steps=30, text=noise))
    rollouts, _ = choose_rollouts(run, [], limit)
    size = packed(rollouts)
    assert size <= 1.02 * limit
    assert size >= 0.6 * limit  # and used


def test_no_bytes_no_groups(tmp_path, make_run):
    rollouts, _ = choose_rollouts(read_run(make_run(tmp_path / "run")), [], 0)
    assert (rollouts["groups"], rollouts["prompts"], rollouts["held_out"]) == ([], [], [])


def test_one_group_too_large_does_not_keep_out_the_others(tmp_path, make_run):
    def text(step, n, sample):
        return noise(step, n, sample, 20_000 if (step, n) == (1, 0) else 400)

    run = read_run(make_run(tmp_path / "run", steps=3, text=text))
    rollouts, _ = choose_rollouts(run, [], 40_000)
    groups = {group["group"] for group in rollouts["groups"]}
    assert 1000 not in groups
    assert {1001, 3000} <= groups


def test_token_records_leave_room_for_others(tmp_path, make_run, monkeypatch):
    run = read_run(make_run(tmp_path / "run", steps=12, text=noise))
    whole = choose_rollouts(run, [], ALL)[0]
    monkeypatch.setattr(choose, "TOKEN_SHARE", 0.02)
    few = choose_rollouts(run, [], 100_000)[0]
    tokens = [sum(group["has_tokens"] for group in each["groups"]) for each in (few, whole)]
    assert 0 < tokens[0] < tokens[1] == 24
    for group in few["groups"]:
        assert group["has_tokens"] == any(response["tokens"] for response in group["responses"])


def test_every_group_has_its_turn_once(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=9))
    index = choose.index_of(run)
    places = list(choose._order(run, index, [advice(2, 3)]))
    assert len(places) == len(set(places)) == index.groups


def test_damaged_files_are_told(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=9))
    for step in range(2, 8):
        run.folder.rollout_file(step).write_bytes(b"no parquet")
    rollouts, notes = choose_rollouts(run, [], ALL)
    assert rollouts["steps"] == [1, 8, 9]
    assert len(notes) == 4
    assert notes[0].startswith("step_000002.parquet cannot be read")
    assert notes[-1] == "3 more rollout files cannot be read."


def test_the_ends_and_the_steps_of_warnings_are_the_first_to_be_shown(tmp_path, make_run, monkeypatch):
    monkeypatch.setattr(choose, "SPREAD", 3)
    index = choose.index_of(read_run(make_run(tmp_path / "run", steps=21)))
    assert choose._steps_first(index, [advice(7, 9), advice(0, 99)]) == [0, 20, 6, 8, 10]  # places: step 1 is 0


@given(st.integers(0, 500), st.integers(2, 60))
def test_spread(count, wanted):
    places = spread(count, wanted)
    assert len(places) <= wanted
    assert places == sorted(set(places))
    if count:
        assert (places[0], places[-1]) == (0, count - 1)
        gaps = [b - a for a, b in itertools.pairwise(places)]
        assert not gaps or max(gaps) - min(gaps) <= 1


@given(st.integers(0, 300))
def test_halving_has_every_place_once(count):
    assert sorted(choose._halving(count)) == list(range(count))


def test_held_out_problems_that_changed_most_come_first():
    def sample(step, n, accuracy, greedy=True, text=""):
        return Sample(step, "set", f"p{n}", f"problem {n}", str(n), text, accuracy, 3, False, greedy)

    before = [sample(0, 1, 1.0), sample(0, 2, 0.0), sample(0, 3, None)]
    after = [sample(5, 1, 1.0), sample(5, 2, 1.0), sample(5, 3, 0.0)]
    sampled = [sample(5, 1, 0.0, False, "first"), sample(5, 1, 1.0, False, "second")]
    made = held_out_of([*before, *after, *sampled])
    assert [(h["prompt_id"], h["greedy"]) for h in made] == [("p2", True), ("p1", True), ("p3", True), ("p1", False)]
    assert made[0]["answers"] == [(0, "", 0.0, 3, False), (5, "", 1.0, 3, False)]
    assert made[3]["answers"] == [(5, "first", 0.0, 3, False)]  # one of the sampled
    many = held_out_of([sample(step, 1, 0.0) for step in range(0, 1000, 10)])
    steps = [answer[0] for answer in many[0]["answers"]]
    assert (steps[0], steps[-1], len(steps)) == (0, 990, choose.ANSWERS)


def test_a_page_of_the_server_starts_with_the_newest_step(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=4))
    rollouts = live_rollouts(run, first=2)
    assert rollouts["steps"] == [1, 2, 3, 4]
    assert [(g["group"], g["responses"]) for g in rollouts["groups"]] == [(4000, []), (4001, [])]
    assert (rollouts["thinned"]["kept"], rollouts["thinned"]["of"]) == (2, 6)
    run.folder.rollout_file(4).write_bytes(b"half")
    assert live_rollouts(run)["groups"][0]["group"] == 3000
    assert live_rollouts(read_run(make_run(tmp_path / "none", parts="")))["steps"] == []


HOW = ["good", "collapsed", "unfilled", "crashed", "killed", "running", "interrupted"]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("how", quick(HOW, ["good", "unfilled", "killed", "running"]))
def test_the_bundle_of_every_kind_of_run(tmp_path, make_run, how, live):
    bundle = bundle_of([read_run(make_run(tmp_path / "run", how=how))], live=live)
    view = bundle["runs"][0]
    json.dumps(bundle, allow_nan=False)
    assert set(view) == set(RunView.__annotations__)
    assert bundle["live"] is live
    assert bundle["bands"] == {}
    assert view["status"]["step"] == 12
    assert view["recipe"]["preset"] == "dapo"
    assert set(view["curves"]["values"]) - {"step"} <= set(bundle["glossary"])
    assert bundle["glossary"]["train/entropy"]["unit"] == "nats"
    assert all(tile["key"] in bundle["glossary"] for tile in view["tiles"] if tile["key"])


def test_seeds_of_one_recipe_make_a_band(tmp_path, make_run):
    runs = [read_run(make_run(tmp_path / name / "run", seed=seed)) for seed, name in enumerate("abc")]
    bundle = bundle_of(runs, live=False)
    assert [view["label"] for view in bundle["runs"]] == ["a/run", "b/run", "c/run"]
    assert [view["seed"] for view in bundle["runs"]] == [0, 1, 2]
    assert {view["family"] for view in bundle["runs"]} == set(bundle["bands"])
    assert bundle["bands"][runs[0].family]["train/entropy"]["steps"] == list(range(1, 13))


@pytest.mark.whole
def test_many_runs_share_the_budget(tmp_path, make_run):
    runs = [read_run(make_run(tmp_path / f"run{n}", steps=400, parts="spans")) for n in range(6)]
    bundle = bundle_of(runs, live=False, budget=Budget(points=300))
    assert {len(view["curves"]["steps"]) for view in bundle["runs"]} == {150}


def test_a_run_that_nothing_is_known_of(tmp_path, make_run):
    folder = make_run(tmp_path / "run", parts="")
    (folder / "metrics.jsonl").unlink()
    (folder / "recipe.resolved.yaml").write_text("[")
    bundle = bundle_of([read_run(folder)], live=False)
    json.dumps(bundle, allow_nan=False)
    assert bundle["runs"][0]["notes"]


# ---------------------------------------------------------------------------------------------------- files


def bundle_in(html):
    block = re.search(r'<script type="application/octet-stream" id="bundle">([A-Za-z0-9+/=]+)</script>', html)
    return json.loads(gzip.decompress(base64.b64decode(block[1])))


@pytest.mark.whole
def test_the_report_on_disk(tmp_path, make_run):
    folder = make_run(tmp_path / "run", text=lambda s, n, g: HOSTILE)
    written = write_report([read_run(folder)], tmp_path / "out")
    assert {path.relative_to(tmp_path / "out").as_posix() for path in written.files} >= {"report.html", "trace.json"}
    found = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == set(written.files)  # and nothing else, no temporary file
    html = (tmp_path / "out" / "report.html").read_text()
    assert HOSTILE[:20] not in html
    bundle = bundle_in(html)
    assert bundle == json.loads(json.dumps(written.bundle))
    assert bundle["runs"][0]["rollouts"]["groups"][0]["responses"][0]["text"] == HOSTILE
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]


@pytest.mark.whole
def test_a_page_stays_below_its_limit(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=2)
    known = [make_prompt(n) for n in range(8)]
    for step in range(1, 31):
        groups = [make_group(step, n, 12, 8, known, noise) for n in range(12)]
        write_rollouts(folder / "rollouts" / f"step_{step:06d}.parquet", step, groups)
    run = read_run(folder)
    base = write_report([run], tmp_path / "base").files[0].stat().st_size
    limit = base - 300_000
    written = write_report([run], tmp_path / "small", limit)
    size = written.files[0].stat().st_size
    assert 0.9 * limit < size <= limit
    assert 0 < written.bundle["runs"][0]["rollouts"]["thinned"]["kept"] < 360
