"""Real problems from nothing: what is held out, what is imitated, and the arithmetic of the tables, by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dapo.data.formats import RawProblem
from dapo.data.load import load_problems

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_tasks

    return real_tasks


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_report

    return real_report


@pytest.fixture
def numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_numbers

    return real_numbers


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_problems

    return real_problems


def test_solutions_are_written_as_equations_alone(tasks):
    worked = "She sold 48/2 = <<48/2=24>>24 clips.\nIn all <<48+24=1072>>1072.\n#### 1,072"
    assert tasks.equations(worked) == "48/2=24 48+24=1072 #### 1072"
    assert tasks.equations("No sum at all.\n#### 5") is None
    assert tasks.equations("<<1+1=2>> <<2+1=3>> <<3+1=4>>\n#### 4") is None
    assert tasks.equation({"Equation": "( 76.0 - 25.0 )"}, "51") == "76-25=51 #### 51"
    assert tasks.equation({"Equation": "( ( 3.0 + 5.0 ) * 10.5 )"}, "84") == "(3+5)*10.5=84 #### 84"


def test_an_answer_is_what_follows_the_last_mark(tasks):
    found = re.search(tasks.pattern(tasks.WORDS), "48/2=24 #### 24")
    assert found is not None
    assert found[1] == "24"
    assert re.search(tasks.pattern(tasks.WORDS), "48/2=24") is None
    assert tasks.pattern("gcd") is None


def test_work_is_shown_step_by_step(tasks):
    def asked(text):
        return RawProblem(text, "")

    assert tasks.euclid(asked("GCD of these numbers: 46, 8. Give")) == "46%8=6 8%6=2 6%2=0"
    assert tasks.euclid(asked("of these: 8, 24.")) == "8%24=8 24%8=0"
    if tasks.missing("leg_counting"):
        return
    legs = {"9 sea slugs, 6 praying mantiss?": "9*0=0 6*6=36 0+36=36", "5 ducks, 1 cow?": "5*2=10 1*4=4 10+4=14"}
    assert {text: tasks.legs_of_each(asked(f"if you have {text}\n")) for text in legs} == legs


@pytest.mark.parametrize("name", ["gcd_worked", "leg_counting_worked"])
def test_worked_answers_are_the_generator_s_and_fit_in_a_response(tasks, name):
    pytest.importorskip("reasoning_gym")
    for problem in tasks.procedural(name, 7, 300):
        work = tasks.TASKS[name].worked(problem)
        found = re.findall(r"\d+%(\d+)=0$" if name == "gcd_worked" else r"(-?\d+)$", work)
        assert found == [problem.answer]
        assert len(f"{work} {tasks.MARK} {problem.answer}") < tasks.TASKS[name].response_tokens  # and the end's token
    assert re.search(tasks.pattern(name), f"{work} {tasks.MARK} {problem.answer}")[1] == problem.answer


def test_what_all_texts_share_is_found_at_both_ends(tasks):
    assert tasks.common_ends(["Sum: 1 + 2 =", "Sum: 30 =", "Sum: 4 + 4 ="]) == ("Sum: ", " =")
    assert tasks.common_ends(["abc", "xyz"]) == ()
    assert tasks.common_ends(["aa", "aaa"]) == ("aa",)  # the end is looked for behind the beginning


def test_equal_problems_are_on_one_side_and_about_three_tenths_are_held_out(tasks):
    sides = [tasks.is_held_out(RawProblem(f"How many apples has Anna after {n} days?", ""), 3) for n in range(1000)]
    assert 240 < sum(sides) < 360
    twice = [RawProblem(text, "") for text in ("How many apples has Anna, then?", "how many APPLES has Anna then")]
    assert tasks.is_held_out(twice[0], 3) == tasks.is_held_out(twice[1], 3)


def test_held_out_problems_are_counted_and_taken_out(tasks):
    held_out = [RawProblem("State the answer to this: 3 + 4 =", "7")]
    problems = [RawProblem(f"State the answer to this: {text} =", "7") for text in ("3 + 4", "3+4", "3 - 4")]
    assert tasks.leaks(problems, held_out) == {"problems": 3, "exact": 1, "taken_out": 2}
    kept = tasks.without_held_out([(p, "7") for p in problems], held_out)
    assert [p.problem for p, _ in kept] == ["State the answer to this: 3 - 4 ="]


def test_examples_without_a_response_are_not_written(tasks, tmp_path):
    path = tasks.write_examples(tmp_path / "x.jsonl", [(RawProblem("a", "1"), "1"), (RawProblem("b", "2"), "")])
    assert [json.loads(line) for line in Path(path).read_text().splitlines()] == [{"prompt": "a", "response": "1"}]


def test_public_sets_are_split_without_a_problem_on_both_sides(tasks, monkeypatch, tmp_path):
    for folder in ("svamp", "multiarith", "gsm8k"):
        (tmp_path / folder).mkdir()
    svamp = [
        {"Body": f"Anna has {n} apples", "Question": "How many?", "Equation": f"( {n}.0 + 1.0 )", "Answer": n + 1.0}
        for n in range(40)
    ]
    (tmp_path / "svamp/SVAMP.json").write_text(json.dumps(svamp))
    (tmp_path / "multiarith/test.jsonl").write_text(
        "".join(json.dumps({"input": f"Ben had {n} pens and lost 2.", "target": n - 2}) + "\n" for n in range(2, 42))
    )
    for split, first in (("train", 0), ("test", 50)):
        lines = [
            {"question": f"A sum of {n}?", "answer": f"<<{n}+1={n + 1}>>\n#### {n + 1}"}
            for n in range(first, first + 4)
        ]
        lines.append({"question": "Too long " * 30, "answer": "<<1+1=2>>\n#### 2"})
        (tmp_path / f"gsm8k/{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(tasks, "PUBLIC", tmp_path)
    assert tasks.missing(tasks.WORDS) == ""
    given = tasks.given(tmp_path, tasks.WORDS, 1, 1000, 5)
    assert list(given.held_out) == ["svamp", "multiarith", "gsm8k"]
    assert all(0 < len(problems) <= 5 for problems in given.held_out.values())
    asked = {p.problem for problems in given.held_out.values() for p in problems}
    assert not asked & {p.problem for problems in given.rewarded.values() for p in problems}
    assert len(given.rewarded["gsm8k"]) == 4
    assert {said for p, said in given.imitated if p in given.rewarded["multiarith"]} == {""}
    from dapo.config.schema import DataSource

    for source, of in ((given.train[0], given.rewarded["svamp"]), (given.validation[0], given.held_out["svamp"])):
        assert [p.answer for p in load_problems(DataSource(**source))] == [p.answer for p in of]


def test_missing_data_is_a_reason(tasks, monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "PUBLIC", tmp_path)
    assert "set DAPO_DATA" in tasks.missing(tasks.WORDS)


def answer(problem, sample, right, said="", size="1"):
    return {
        "set": "gcd",
        "problem": problem,
        "question": f"of {problem}",
        "answer": size,
        "sample": sample,
        "greedy": sample < 0,
        "accuracy": float(right),
        "response": said,
    }


def test_accuracies_by_hand(numbers):
    answers = [
        answer(0, -1, 1, "3"),
        answer(0, 0, 1),
        answer(0, 1, 0),
        answer(1, -1, 0, "3"),
        answer(1, 0, 0),
        answer(1, 1, 0),
    ]
    assert numbers.accuracies(answers) == {"sampled": 0.25, "greedy": 0.5, "pass": 0.5}
    assert numbers.distinct(answers) == 0.5


def test_gains_are_paired_by_seed(numbers):
    before = {seed: {"sampled": 0.1 * seed, "greedy": 0.2, "pass": 0.0} for seed in (1, 2, 3)}
    after = {seed: {"sampled": 0.1 * seed + 0.3, "greedy": 0.2 + 0.1 * seed, "pass": 1.0} for seed in (1, 2, 3, 4)}
    found = numbers.gains(before, after)
    assert found["sampled"]["low"] == pytest.approx(found["sampled"]["high"]) == pytest.approx(0.3)
    assert found["greedy"]["mean"] == pytest.approx(0.2)
    assert found["greedy"]["high"] - found["greedy"]["mean"] == pytest.approx(4.30 * 0.1 / 3**0.5)
    assert numbers.gains({}, after) == {}


def test_thirds_by_size(numbers):
    answers = [answer(n, 0, n < 4, size=str(n)) for n in range(6)] + [answer(0, -1, 0)]
    parts = numbers.thirds(answers, lambda problem: int(problem.answer))
    assert parts == [
        {"from": 0, "to": 1, "accuracy": 1.0},
        {"from": 2, "to": 3, "accuracy": 1.0},
        {"from": 4, "to": 5, "accuracy": 0.0},
    ]
    alike = numbers.thirds([answer(n, 0, n == 0) for n in range(4)], lambda problem: 7)
    assert alike == [{"from": 7, "to": 7, "accuracy": 0.25}]


def test_examples_are_the_first_of_their_kind(numbers):
    before = [answer(0, -1, 0, "9"), answer(1, -1, 0, "8"), answer(2, -1, 1, "1")]
    after = [answer(0, -1, 0, "7"), answer(1, -1, 1, "1"), answer(2, -1, 0, "5")]
    found = numbers.examples(before, after, ("of ",))
    assert found["learnt"] == {"problem": "1", "answer": "1", "before": "8", "after": "1"}
    assert found["still wrong"]["after"] == "7"
    assert found["lost"]["problem"] == "2"


def test_imitation_gets_as_long_as_dapo(script):
    assert script.steps_in_time([2.0, 2.0], [0.1] * 50) == 40
    assert script.steps_in_time([0.001], [1.0]) == 1


def test_beside_imitating_longer(numbers, report, tasks):
    """DAPO gets one problem of four more right than the start, imitation two more, in three seeds alike."""
    seeds = {seed: seed_of(1) for seed in (1, 2, 3)}
    for one in seeds.values():
        one["answers"]["longer"] = seed_of(2)["answers"]["after"]
    said = report.findings(numbers.summarise({"gcd": seeds}, tasks.TASKS))
    assert f"- {report.COMPARED[0]}: **none**" in said
    assert f"- {report.COMPARED[2]}: **gcd**" in said
    assert f"- {report.COMPARED[3]}: **gcd**" in said


def seed_of(gain):
    arms = {
        arm: [answer(n, sample, n < right, str(n)) for n in range(4) for sample in (-1, 0, 1)]
        for arm, right in (("before", 1), ("after", 1 + gain))
    }
    leak = {"problems": 9, "exact": 1, "taken_out": 2}
    return {
        "answers": arms,
        "commonest": {"gcd": "1"},
        "parameters": 1000,
        "leaks": {"imitated": leak, "rewarded": leak},
        "steps": {"before": 5, "after": 4},
        "seconds": {"before": 1.0, "after": 2.0},
        "loss": {"trained": [0.5, 0.7], "held_out": 0.9},
        "trained_on": {"gcd": 0.5},
        "ended": "finished",
        "boilerplate": [],
    }


def test_the_tables_and_the_figure_say_what_was_measured(numbers, report, tasks, tmp_path):
    found = {"gcd": {1: seed_of(2), 2: seed_of(2), 3: seed_of(2), 4: None}, "chain_sum": {1: None}}
    made = {
        "machine": {"command": "python x", "cpu": "c", "commit": "r", "date": "d"},
        "tasks": numbers.summarise(found, tasks.TASKS),
    }
    assert list(made["tasks"]) == ["gcd"]
    page = report.markdown(made)
    assert "| gcd | 3 | 100.0 | 25.0 / 25.0 | 75.0 / 75.0 | +50.0 [+50.0, +50.0] |" in page
    assert "not run" in page  # of imitating longer
    assert "| gcd | 1,000 | 5, 4 | 1, 2 | 0.600 / 0.900 | 50.0 | 1, 2, 9 | 1, 2, 9 |" in page
    assert "- DAPO made sampled answers better: **gcd**" in page
    assert "- a right answer among four became rarer: **none**" in page
    assert "always the commonest: **gcd**" in page  # 75 % are less than the 100 % of always saying 1
    assert report.page_block(made).startswith("3 seeds at most, d, one thread of c.")
    assert "imitating for as long" not in page.partition("## What it says")[2]
    alone = report.findings(numbers.summarise({"gcd": {1: seed_of(2), 2: seed_of(2)}}, tasks.TASKS))
    assert alone == ["- Fewer than 3 seeds so far: nothing is concluded from them."]
    report.draw(made, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
    json.dumps(made)


def test_other_settings_are_another_folder(script, tasks, monkeypatch, tmp_path):
    from dataclasses import replace

    first = script.place(tmp_path, "gcd", 1, script.Scale())
    assert first == script.place(tmp_path, "gcd", 1, script.Scale())
    assert first.parent != script.place(tmp_path, "gcd", 1, script.Scale(40, 16)).parent
    monkeypatch.setitem(tasks.TASKS, "gcd", replace(tasks.TASKS["gcd"], steps=7))
    assert first.parent != script.place(tmp_path, "gcd", 1, script.Scale()).parent


def test_seeds_of_problems_never_meet(tasks):
    used = [tasks.HELD_OUT_SEED, tasks.HELD_OUT_LOSS_SEED]
    used += [
        first + seed for first in (tasks.REWARDED_SEED, tasks.IMITATED_SEED, tasks.MORE_SEED) for seed in range(1, 900)
    ]
    assert len(set(used)) == len(used)
