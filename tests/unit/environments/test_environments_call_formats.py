"""Tool calls: formats, what templates show, schemas of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from each import each
from pydantic import Field

from dapo.environments.call_formats import FORMATS, detect, read_calls
from dapo.environments.tools import Tool, ToolError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", 'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
        ("llama3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}<|eom_id|>'),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]</s>'),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}'),
        ("python", "[add(a=1)]"),
    ],
)
def test_every_format_reads_its_calls_and_no_others(name, text):
    calls, problem = read_calls(FORMATS[name], text, 3)
    assert problem is None
    assert [(call.id, call.name, dict(call.arguments)) for call in calls] == [("t0003c000", "add", {"a": 1})]
    assert read_calls(FORMATS[name], "The sum is 3.", 0) == ((), None)
    assert read_calls(None, text, 0) == ((), None)


def test_several_calls_of_one_turn_are_read_in_order():
    two = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert [call.name for call in read_calls(FORMATS["hermes"], two + two.replace('"a"', '"b"'), 0)[0]] == ["a", "b"]
    llama = '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}'
    assert [call.name for call in read_calls(FORMATS["llama3"], llama, 0)[0]] == ["a", "b"]
    assert [call.name for call in read_calls(FORMATS["python"], "[a(), b(x='1')]", 0)[0]] == ["a", "b"]


@each(
    ("name", "text", "problem"),
    [
        ("hermes", "<tool_call>{}", "without its </tool_call>"),
        ("hermes", "<tool_call>{}</tool_call>", "a call is"),
        ("hermes", '<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "are no JSON object"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"b": NaN}}</tool_call>', "NaN is no number of JSON"),
        ("llama3", '{"name": "a", "parameters": ', "no JSON"),
        ("llama3", '{"name": "a", "parameters": {"b": -Infinity}}', "-Infinity is no number of JSON"),
        ("mistral", "[TOOL_CALLS] [{]", "no JSON"),
        ("python", "[a(1)]", "named arguments"),
        ("python", "[a(b=c)]", "no literals"),
        ("python", "[a(]", "no Python"),
    ],
)
def test_a_broken_call_is_a_problem_in_words(name, text, problem):
    calls, said = read_calls(FORMATS[name], text, 0)
    assert calls == ()
    assert problem in said


@each(
    ("rendered", "name"),
    [
        ('<tool_call>\n{"name": "probe_call", "arguments": {"probe_argument": 1}}\n</tool_call>', "hermes"),
        ('{"name": "probe_call", "parameters": {"probe_argument": 1}}', "llama3"),
        ('[TOOL_CALLS] [{"name": "probe_call", "arguments": {"probe_argument": 1}}]', "mistral"),
        ("[probe_call(probe_argument=1)]", "python"),
        ("probe_call", None),
        ("", None),
    ],
)
def test_the_format_is_found_from_what_a_template_shows(rendered, name):
    assert detect(rendered) == name


def test_a_typed_function_is_its_own_schema():
    def find(
        text: str,
        most: int = 3,
        share: float = 0.5,
        exact: bool = False,
        kind: Literal["a", "b"] = "a",
        words: list[str] | None = None,
        extra: Optional[dict] = None,  # noqa: UP045
    ) -> Any:
        """Find a text.

        Slowly.
        """

    tool = Tool.of(find)
    parameters = tool.schema["function"]["parameters"]
    assert tool.schema["function"]["description"] == "Find a text.\n\nSlowly."
    assert parameters["required"] == ["text"]
    assert parameters["properties"] == {
        "text": {"type": "string"},
        "most": {"type": "integer"},
        "share": {"type": "number"},
        "exact": {"type": "boolean"},
        "kind": {"enum": ["a", "b"], "type": "string"},
        "words": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "extra": {"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]},
    }
    given = {"text": "x", "share": 1, "words": ["a"], "extra": None}
    assert tool.check(given) == {"text": "x", "share": 1.0, "words": ["a"], "extra": None}
    assert isinstance(tool.check(given)["share"], float)
    with pytest.raises(ToolError, match=r"'words\.0': input should be a valid string, found 1"):
        tool.check({"text": "x", "words": [1]})
    with pytest.raises(ToolError, match="'most': input should be a valid integer, found True"):
        tool.check({"text": "x", "most": True})


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Line:
    points: list[Point]


def test_a_parameter_may_be_a_dataclass_of_others():
    def draw(line: Line, wide: float = 1.0) -> None: ...

    tool = Tool.of(draw)
    assert set(tool.schema["function"]["parameters"]["$defs"]) == {"Point"}
    assert tool.check({"line": {"points": [{"x": 1}]}}) == {"line": Line([Point(1)])}
    with pytest.raises(ToolError, match=r"'line\.points\.0\.x': input should be a valid integer, found '1'"):
        tool.check({"line": {"points": [{"x": "1"}]}})


def test_bounds_and_descriptions_of_annotated_parameters_hold():
    def roll(sides: Annotated[int, Field(ge=2, le=6, description="of the die")]) -> int: ...

    tool = Tool.of(roll)
    described = tool.schema["function"]["parameters"]["properties"]["sides"]
    assert described == {"type": "integer", "minimum": 2, "maximum": 6, "description": "of the die"}
    assert tool.check({"sides": 6}) == {"sides": 6}
    with pytest.raises(ToolError, match=r"'sides': .* less than or equal to 6, found 9"):
        tool.check({"sides": 9})


def test_a_value_that_fits_no_member_of_a_union_is_told_of_each():
    def find(key: int | str) -> None: ...

    with pytest.raises(ToolError, match=r"valid integer, found 2\.5; .* valid string, found 2\.5"):
        Tool.of(find).check({"key": 2.5})


def test_a_function_that_json_cannot_call_is_refused():
    def untyped(a): ...

    def odd(a: ToolError): ...

    def many(*a: int): ...

    for function, why in ((untyped, "has no type"), (odd, "a type that JSON lacks"), (many, "has no name in a call")):
        with pytest.raises(ToolError, match=why):
            Tool.of(function)
    with pytest.raises(ToolError, match="use a named function"):
        Tool.of(lambda a: a)
