"""Rendering, tokens, and the report of everything that was left out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dapo.config.schema import Data, TrainSource
from dapo.data import prepare
from dapo.data.leaks import SharedProblems, overlap_key
from dapo.data.load import find_conflicts, load_problems
from dapo.errors import DataError
from dapo.types.batch import content_id

SHARED = Path(os.environ.get("DAPO_DATA", Path(__file__).parents[4] / "shared" / "data"))


class WordTokenizer:
    """One token per word; optionally with a chat template, and with <s> and </s> added as special tokens."""

    def __init__(self, chat: str | None = None, bos: bool = False, appends_eos: bool = False) -> None:
        self.chat_template = chat
        self.bos_token = "<s>" if bos else None
        self.eos_token_id = 1
        self.appends_eos = appends_eos
        self.words = {"<s>": 0, "</s>": 1}

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        rows = []
        for text in texts:
            row = [self.words.setdefault(word, len(self.words)) for word in text.split()]
            if add_special_tokens:
                row = ([0] if self.bos_token else []) + row + ([1] if self.appends_eos else [])
            rows.append(row)
        return {"input_ids": rows}

    def apply_chat_template(self, messages: list[Any], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        assert add_generation_prompt
        if self.chat_template == "no system" and messages[0]["role"] == "system":
            raise RuntimeError("System role not supported")
        if self.chat_template == "no bos":
            return str(messages[-1]["content"])
        turns = " ".join(f"[{m['role']}] {m['content']}" for m in messages)
        return f"{self.bos_token or ''} {turns} [assistant]".strip()


def jsonl(path: Path, *problems: tuple[str, str]) -> TrainSource:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in problems))
    return TrainSource(path=str(path))


def texts(prompts: list[Any]) -> list[str]:
    return [prompt.text for prompt in prompts]


@pytest.fixture
def one(tmp_path: Path) -> TrainSource:
    return jsonl(tmp_path / "one.jsonl", ("What is {x}?", "2"))


# ---------------------------------------------------------------- rendering


@pytest.mark.parametrize(
    ("settings", "chat", "expected"),
    [
        ({}, None, "What is {x}?"),
        ({}, "yes", "[user] What is {x}? [assistant]"),
        ({"prompt": "raw"}, "yes", "What is {x}?"),
        ({"prompt_template": "Q: {problem} \\boxed{} A:"}, "yes", "Q: What is {x}? \\boxed{} A:"),
        ({"instruction": "Use \\boxed{}."}, None, "What is {x}?\n\nUse \\boxed{}."),
        ({"instruction": "Box it.", "prompt_template": "Q: {problem}\nA:"}, None, "Q: What is {x}?\n\nBox it.\nA:"),
        ({"system_prompt": "Think."}, "yes", "[system] Think. [user] What is {x}? [assistant]"),
        ({"prompt": "chat", "instruction": "Box it."}, "yes", "[user] What is {x}?\n\nBox it. [assistant]"),
    ],
)
def test_prompts(one: TrainSource, settings: dict[str, str], chat: str | None, expected: str) -> None:
    (prompt,) = prepare(Data(train=[one], **settings), WordTokenizer(chat)).train
    assert prompt.text == expected
    assert prompt.problem == "What is {x}?"
    assert prompt.answer == "2"
    assert prompt.id == content_id("What is {x}?")
    assert prompt.source == "one"


@pytest.mark.parametrize(
    ("settings", "chat", "message"),
    [
        ({"prompt": "chat"}, None, "the tokenizer has no chat template"),
        ({"system_prompt": "Think."}, None, "needs `data.prompt: chat`"),
        ({"system_prompt": "Think."}, "no system", "remove `data.system_prompt` if the template accepts none"),
    ],
)
def test_contradictory_prompt_settings(one: TrainSource, settings: Any, chat: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(Data(train=[one], **settings), WordTokenizer(chat))


def test_the_beginning_of_sequence_token_stands_once(one: TrainSource) -> None:
    for chat, settings in ((None, {}), ("yes", {}), (None, {"prompt_template": "<s> {problem}"})):
        tokenizer = WordTokenizer(chat, bos=True)
        ids = prepare(Data(train=[one], **settings), tokenizer).train[0].token_ids.tolist()
        assert ids[0] == 0
        assert ids.count(0) == 1


def test_a_chat_template_alone_decides_about_special_tokens(one: TrainSource) -> None:
    tokenizer = WordTokenizer("no bos", bos=True, appends_eos=True)
    assert prepare(Data(train=[one]), tokenizer).train[0].token_ids.tolist() == [2, 3, 4]


def test_a_prompt_does_not_end_the_sequence(one: TrainSource) -> None:
    """Some tokenizers append the end token; behind it a response would be a new text."""
    tokenizer = WordTokenizer(bos=True, appends_eos=True)
    ids = prepare(Data(train=[one]), tokenizer).train[0].token_ids
    assert ids.tolist() == [0, 2, 3, 4]
    assert ids.dtype == "int64"


def test_with_a_tokenizer_of_transformers(one: TrainSource) -> None:
    tiny = pytest.importorskip("dapo.models.tiny")
    tokenizer = tiny.make_word_tokenizer(["What", "is", "{x}?", "[user]"])
    (prompt,) = prepare(Data(train=[one]), tokenizer).train
    assert prompt.token_ids.tolist() == [3, 4, 5]
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    (prompt,) = prepare(Data(train=[one]), tokenizer).train
    assert prompt.text == "[user] What is {x}?"
    assert prompt.token_ids.tolist() == [6, 3, 4, 5]


# ---------------------------------------------------------------- what is left out


def test_overlong_prompts_are_dropped_and_counted_or_refused(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ("a b c", "1"), ("a b c d e", "2"), ("a b", "3"))
    prepared = prepare(Data(train=[source], max_prompt_tokens=3), WordTokenizer())
    assert texts(prepared.train) == ["a b c", "a b"]
    assert (prepared.report.train[0].overlong, prepared.report.train[0].longest) == (1, 3)
    assert "1 over-long prompts dropped" in prepared.report.lines()[0]
    with pytest.raises(DataError, match=r"a: 1 prompts are longer than .*: 3` \(the longest has 5 .*a\.jsonl, line 2"):
        prepare(Data(train=[source], max_prompt_tokens=3, overlong_prompts="refuse"), WordTokenizer())
    with pytest.raises(DataError, match=r"no training prompt is left:\ntraining .*3 over-long prompts dropped"):
        prepare(Data(train=[source], max_prompt_tokens=1), WordTokenizer())


def test_repeats_are_dropped_and_conflicts_kept_and_reported(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a.jsonl", ("p q", "1"), ("p  q", "1"), ("r", "2"), ("p q", "3"), ("r", "2"))
    second = jsonl(tmp_path / "b.jsonl", ("r", "2"), ("s", "1"), ("s", "2"))
    prepared = prepare(Data(train=[first, second]), WordTokenizer())
    assert [(p.text, p.answer) for p in prepared.train] == [
        ("p q", "1"),
        ("r", "2"),
        ("p q", "3"),
        ("s", "1"),
        ("s", "2"),
    ]
    assert [(s.read, s.repeats, s.prompts) for s in prepared.report.train] == [(5, 2, 3), (3, 1, 2)]
    conflicts = prepared.report.conflicts
    assert [(c.problem, c.answers) for c in conflicts] == [("p q", ("1", "3")), ("s", ("1", "2"))]
    assert [row.rpartition("/")[2] for row in conflicts[0].rows] == ["a.jsonl, line 1", "a.jsonl, line 4"]
    assert any("2 training problems stand with several answers" in line for line in prepared.report.lines())


def test_unanswered_problems_that_differ_in_their_other_fields_are_no_repeats(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"task": "Write a program.", "tests": n} for n in (1, 2, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = TrainSource(path=str(path), fields={"problem": "task", "answer": "", "tests": "tests"})
    assert [dict(p.extra) for p in prepare(Data(train=[source]), WordTokenizer()).train] == [{"tests": 1}, {"tests": 2}]


LONG = "How many of the first hundred numbers are prime and odd"


def test_problems_of_validation_are_taken_out_of_training_by_content(tmp_path: Path) -> None:
    train = jsonl(
        tmp_path / "train.jsonl", (LONG + "?", "24"), (LONG.upper() + " ?!", "x"), ("4 +7 =", "11"), ("4 -7 =", "-3")
    )
    held_out = jsonl(tmp_path / "held.jsonl", (f"{LONG}.", "24"), ("4   +7 =", "11"))
    other = jsonl(tmp_path / "other.jsonl", ("z", "1"))
    prepared = prepare(Data(train=[train], validation=[held_out, other]), WordTokenizer())
    assert texts(prepared.train) == ["4 -7 ="]
    assert texts(prepared.validation["held"]) == [f"{LONG}.", "4   +7 ="]
    assert prepared.report.train[0].in_validation == 3
    # two problems, one of them in two wordings: both counts are said in one line
    assert prepared.report.overlap == {"held": SharedProblems(problems=2, records=3), "other": SharedProblems()}
    assert (
        "overlap     2 problems of held were in the training data, in 3 of its records, which were taken out"
        in prepared.report.lines()
    )


def test_few_letters_are_compared_with_their_signs() -> None:
    assert overlap_key("4 +7 -8 =") != overlap_key("4 -7 +8 =")
    assert overlap_key(LONG) == overlap_key(LONG.title() + "?")


ASKED = "What is the value of this expression: "


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("22 - 11", "22 + 11"), ("22 - 11", "2211"), ("22 11", "2211"), ("22 * 11", "22 / 11"), ("3.5", "35")),
        *(("1/2", "12"), ("2^3", "23"), ("$2^{3}$", "$23$"), (r"\frac{1}{2}", r"\frac{12}{}"), ("3:4", "3/4")),
        *(("-5 + 3", "5 + 3"), ("x - 3", "x + 3"), ("x - y", "x + y"), ("x^2 - sin x", "x^2 + sin x")),
        *((r"\sqrt{2} - x", r"\sqrt{2} + x"), ("5% of 20", "5 of 20"), ("5! of 20", "5 of 20"), ("(1,2)", "(12)")),
        *(("x < 4", "x > 4"), ("2 × 3", "2 ÷ 3"), ("(x)(-1)", "(x)(1)"), ("7 - (2)", "7 + (2)")),
        *(("apples - pears", "apples + pears"), ("apples - pears", "apples pears"), ("men / women", "men women")),
        *(("(2 + 3) * 4", "2 + (3 * 4)"), ("(0, 1)", "[0, 1]"), ("(0, 1)", "(0, 1]"), ("{5}", "5"), ("{1,2}", "(1,2)")),
        *(
            ("x²", "x2"),
            ("x²", "x₂"),
            ("x^{12}", "x^12"),
            ("x¹²", "x¹2"),
            ("10⁻³", "10-3"),
            ("2ⁿ", "2n"),
            ("2½", "21/2"),
        ),
        *(("√2", "2"), ("√2 + 1", "√(2 + 1)"), ("√ab", "ab"), ("|x|", "x"), ("|x - 1|", "|x| - 1"), ("‖x‖", "|x|")),
        *(("x ∈ A", "x ∉ A"), ("A ∪ B", "A ∩ B"), ("A ⊂ B", "A ⊆ B"), ("p ∧ q", "p ∨ q"), ("∀x", "∃x"), ("¬p", "p")),
        *(
            ("a × b", "a · b"),
            (r"a \times b", r"a \cdot b"),
            (r"2 \cdot 3", "23"),
            (r"\sin x", r"\cos x"),
            ("≈ x", "= x"),
        ),
        *((r"\Delta x", r"\delta x"), ("P(X < x)", "P(x < x)"), ("x y", "xy"), ("x_1", "x1"), ("x_1", "x^1")),
        *(
            ("f'(x)", "f(x)"),
            ("f''(x)", "f'(x)"),
            ("A'B", "AB"),
            ("AB' = 3", "AB = 3"),
            ("5'6", "56"),
            ("f(1,200)", "f(1200)"),
        ),
        *(
            ("1, 2", "12"),
            ("a, b", "a b"),
            ("a; b", "a, b"),
            ("3, sin x", "3 sin x"),
            ("3-sin x", "3 sin x"),
            ("3-ab", "3 ab"),
        ),
        *(("2 ** 3 ** 4", "2 3 4"), ("2 ^ 3", "2 ** 3"), ("ℤ", "ℝ"), ("ℝ", "R"), ("3!", "3"), ("x!", "x"), ("5°", "5")),
        *(
            (r"\lfloor x \rfloor", r"\lceil x \rceil"),
            ("⌊x⌋", "⌈x⌉"),
            ("a mod b", "a b"),
            ("a # b", "a b"),
            ("a & b", "a b"),
        ),
    ],
)
def test_signs_belong_to_a_problem(one: str, other: str) -> None:
    assert overlap_key(ASKED + one) != overlap_key(ASKED + other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("22 - 11", "22-11"), ("22 - 11?", "22 − 11."), ("$22 - 11$", "22 - 11"), ("1,000 + 2", "1000+2")),
        *(("1{,}000", "1000"), ("$(1, 2)$", "(1,2)"), ("a two-digit number", "a two digit number")),
        *(("**Find** x", "find x"), ("the AIME-style sum", "the AIME style sum"), (r"\( x+1 \)", "$x + 1$")),
        *(
            (r"\left( x \right)", "(x)"),
            (r"2\times3", "2 × 3"),
            (r"2 \cdot 3", "2·3"),
            (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        ),
        *(
            ("x^{2}", "x^2"),
            ("x²", "x^2"),
            ("x^{-3}", "x⁻³"),
            (r"\sqrt{2}", "√2"),
            (r"x \leq 4", "x ≤ 4"),
            ("２＋３", "2+3"),
        ),
        *(("the $x$-axis", "the x-axis"), ('don’t "stop"', "don't stop"), ("Find\u00a0it\u200b now", "find it now")),
        *(
            ("caf\u00e9s", "cafe\u0301s"),
            ("the sum, which is", "the sum which is"),
            ("A box", "a box"),
            ("𝑥 + 1", "x + 1"),
        ),
    ],
)
def test_layout_does_not_belong_to_a_problem(one: str, other: str) -> None:
    assert overlap_key(ASKED + one) == overlap_key(ASKED + other)


def test_sums_that_are_not_in_validation_stay_in_training(tmp_path: Path) -> None:
    sums = [(f"What is {a} {sign} {b}? Write the number.", "1") for a in range(60) for b in range(60) for sign in "+-*"]
    train = jsonl(tmp_path / "train.jsonl", *sums)
    held_out = jsonl(tmp_path / "held.jsonl", *sums[::50])
    prepared = prepare(Data(train=[train], validation=[held_out]), WordTokenizer())
    assert prepared.report.train[0].in_validation == len(sums[::50])
    assert len(prepared.train) == len(sums) - len(sums[::50])


def test_a_removal_of_another_wording_is_shown_with_both_texts(tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", (LONG, "24"), (LONG.upper(), "24"), ("4 -7 =", "-3"))
    held_out = jsonl(tmp_path / "held.jsonl", (LONG, "24"))
    lines = prepare(Data(train=[train], validation=[held_out]), WordTokenizer()).report.lines()
    first = next(n for n, line in enumerate(lines) if line.startswith("overlap"))
    shown = [line for line in lines[first + 1 :] if LONG.lower() in line.lower()]
    assert len(shown) == 1  # the one that could be a mistake; nothing is to be seen in two equal texts
    assert repr(LONG.upper()) in shown[0]
    assert repr(LONG) in shown[0]


def test_procedural_repeats_belong_to_the_distribution() -> None:
    train = TrainSource(task="signed_sum", size=3000, options={"max_terms": 3})
    held = TrainSource(task="signed_sum", size=50, seed=1, name="held_out", options={"max_terms": 3})
    prepared = prepare(Data(train=[train], validation=[held]), WordTokenizer())
    report = prepared.report.train[0]
    assert report.repeats > 500
    assert report.prompts == len(prepared.train) == 3000 - report.in_validation
    assert not {p.id for p in prepared.train} & {p.id for p in prepared.validation["held_out"]}
    assert prepared.report.conflicts == []


# ---------------------------------------------------------------- the public sets


def shared(name: str) -> TrainSource:
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is not here; set DAPO_DATA to the folder of the public sets")
    return TrainSource(path=str(SHARED / name), name=name.partition("/")[0])


def test_the_conflicts_of_the_dapo_set() -> None:
    """Eleven by exact text; a twelfth problem appears twice with other white space at its end and another answer."""
    source = shared("dapo_math_17k/train.jsonl")
    conflicts = find_conflicts(load_problems(source))
    answers: dict[str, set[str]] = {}
    for line in Path(str(source.path)).read_text().splitlines():
        row = json.loads(line)
        answers.setdefault(row["problem"], set()).add(row["answer"])
    exact = {text.strip() for text, found in answers.items() if len(found) > 1}
    assert len(exact) == 11
    assert len(conflicts) == 12
    assert exact < {conflict.problem for conflict in conflicts}


def test_overlap_of_the_dapo_set_with_evaluation_sets() -> None:
    sets = ("aime_2024", "aime_2025", "math_500", "amc_2023")
    data = Data(
        train=[shared("dapo_math_17k/train.jsonl")],
        validation=[shared(f"{name}/test.jsonl") for name in sets],
        max_prompt_tokens=10_000,
    )
    prepared = prepare(data, WordTokenizer())
    shared_problems = {name: overlap.problems for name, overlap in prepared.report.overlap.items()}
    assert shared_problems == {
        "aime_2024": 0,
        "aime_2025": 0,
        "math_500": 6,
        "amc_2023": 8,
    }  # z^4 - z^2 + 1 is none of z^4 + z^2 + 1
    assert sum(o.records for o in prepared.report.overlap.values()) == prepared.report.train[0].in_validation
    held_out = {overlap_key(p.problem) for prompts in prepared.validation.values() for p in prompts}
    assert not held_out & {overlap_key(p.problem) for p in prepared.train}


def test_both_forms_of_the_dapo_set_are_one() -> None:
    forms = [load_problems(shared(f"dapo_math_17k/train.{suffix}")) for suffix in ("jsonl", "parquet")]
    assert [(p.problem, p.answer) for p in forms[0]] == [(p.problem, p.answer) for p in forms[1]]
