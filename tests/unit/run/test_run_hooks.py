"""Hooks of the user, held to their contract at the call: each mistake is refused by the hook's name and its return."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_recipe import small_recipe

from dapo.algorithms.losses import LossInputs
from dapo.errors import DapoError, HookError
from dapo.run.algorithm import make_algorithm, make_objective
from dapo.types.enums import Verdict

VALUES, VOTERS = np.array([1.0, 0.0, 1.0, np.nan]), np.array([True, True, True, False])
LENGTHS, TRUNCATED = np.array([3, 4, 5, 6]), np.array([False, False, True, False])


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """Write a module ``mine`` and bind its function ``f`` as the algorithm of a recipe."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def bind(key, source):
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        (tmp_path / "mine.py").write_text(
            "import numpy as np\nimport torch\nfrom dapo import Objective\n"
            f"from dapo.types.enums import Verdict\n{source}\n"
        )
        settings = {
            "keep": {"dynamic_sampling": {"keep": "mine:f"}},
            "shaping": {"shaping": "mine:f"},
            "advantage": {"advantage": {"kind": "mine:f"}},
            "loss": {"loss": {"kind": "mine:f"}},
        }[key]
        recipe = small_recipe(algorithm=settings)
        return make_objective(recipe) if key == "loss" else make_algorithm(recipe)

    yield bind
    sys.modules.pop("mine", None)


def loss_inputs(*, grad=True, advantages=(1.0, 1.0, -1.0, -1.0, 0.5)):
    logprobs = torch.tensor([-0.5, -1.0, -0.2, -2.0, -0.1], requires_grad=grad)
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach().clone(),
        advantages=torch.tensor(advantages),
        loss_mask=torch.tensor([True, True, True, True, False]),
        rows=torch.tensor([0, 0, 1, 1, 1]),
        num_rows=2,
        entropy=torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]),
    )


def refused(call, *words):
    with pytest.raises(HookError) as caught:
        call()
    for word in ("mine:f", *words):
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 'kept'", ["str 'kept'", "Verdict.KEPT"]),
        ("return True", ["bool True", "Verdict.KEPT"]),
        ("return np.bool_(True)", ["Verdict.KEPT"]),
        ("pass", ["None", "return"]),
        ("return Verdict", ["<enum 'Verdict'>", "Verdict.KEPT"]),
        ("return values[voters].shape[7]", ["IndexError", "mine.py line 6", "docs/hooks.md"]),
    ],
)
def test_keep_rule_returns_a_verdict(hook, body, words):
    algorithm = hook("keep", f"def f(values, voters):\n    {body}")
    message = refused(lambda: algorithm.judge(VALUES, VOTERS), *words)
    assert message.startswith("algorithm.dynamic_sampling.keep: ")


def test_good_keep_rule_is_passed_through(hook):
    algorithm = hook("keep", "def f(values, voters):\n    values[:] = 0\n    return Verdict.OUT_OF_BAND")
    given = VALUES.copy()
    assert algorithm.judge(given, VOTERS) is Verdict.OUT_OF_BAND
    np.testing.assert_array_equal(given, VALUES)  # what a hook does to its arguments stays its own


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return rewards", ["ndarray of shape [4]", "two", "return shaped, penalties"]),
        ("return rewards, 0.0", ["penalties", "float 0.0", "4 responses"]),
        ("return rewards[:2], rewards[:2]", ["shaped rewards", "[2]", "4 responses"]),
        ("return rewards / 0, 0 * rewards", ["shaped rewards", "inf", "response 0"]),
        ("return torch.tensor(rewards), torch.tensor(rewards)", ["Tensor", "numpy"]),
        ("return rewards > 0, 0 * rewards", ["bool"]),
        ("return 1 / 0", ["ZeroDivisionError", "mine.py line 6"]),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_shaping_returns_two_arrays(hook, body, words):
    algorithm = hook("shaping", f"def f(rewards, lengths, truncated):\n    {body}")
    message = refused(lambda: algorithm.shape(VALUES, LENGTHS, TRUNCATED), *words)
    assert message.startswith("algorithm.shaping: ")


def test_good_shaping_may_leave_nan_where_nothing_was_scored(hook):
    algorithm = hook("shaping", "def f(r, lengths, truncated):\n    return (2 * r - 1).astype('float32'), 0 * lengths")
    shaped, penalties = algorithm.shape(VALUES, LENGTHS, TRUNCATED)
    np.testing.assert_array_equal(shaped, [1, -1, 1, np.nan])
    assert shaped.dtype == penalties.dtype == np.float64


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [r - np.mean(r) for r in rewards]", ["nan", "response 0 of group 0"]),
        ("return [r - np.nanmean(r) for r in rewards]", ["response 3 of group 0", "no vote", "np.where(voters_G"]),
        ("return [0 * r + 1.0 for r in np.nan_to_num(rewards)]", ["response 3 of group 0", "1.0", "no vote"]),
        ("return np.concatenate(rewards)", ["shape [8]", "2 groups"]),
        ("return rewards[:1]", ["list [array", "2 groups"]),
        ("return [0.0 for r in rewards]", ["group 0", "float 0.0", "4 responses"]),
        ("return [np.zeros(3) for r in rewards]", ["group 0", "[3]", "4 responses"]),
        ("return (np.zeros(4) for r in rewards)", ["generator", "a list"]),
        ("return None", ["None"]),
        ("raise KeyError('x')", ["KeyError", "mine.py line 6"]),
        ("raise SystemExit(3)", ["SystemExit: 3", "mine.py line 6"]),
        ("return [np.where(v, 1e39, 0.0) for v in voters]", ["1e+39", "response 0 of group 0", "float32"]),
    ],
)
def test_advantage_returns_one_finite_array_a_group(hook, body, words):
    algorithm = hook("advantage", f"def f(rewards, voters):\n    {body}")
    message = refused(lambda: algorithm.advantages([VALUES, VALUES], [VOTERS, VOTERS]), *words)
    assert message.startswith("algorithm.advantage.kind: ")


def test_good_advantage_keeps_its_third_argument(hook):
    source = "def f(rewards, voters, parts):\n    return [np.where(v, p['a'], 0.0) for v, p in zip(voters, parts)]"
    algorithm = hook("advantage", source)
    from dapo.algorithms.algorithm import takes_parts

    assert takes_parts(algorithm.advantages)
    (found,) = algorithm.advantages([VALUES], [VOTERS], [{"a": VALUES}])
    np.testing.assert_array_equal(found, [1, 0, 1, 0])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return (-x.logprobs * x.advantages).mean(), {}", ["shape []", "[5]", "unreduced"]),
        ("return (-x.logprobs * x.advantages).sum(), {}", ["shape []", "unreduced"]),
        ("return -x.logprobs * x.advantages", ["Tensor of shape [5]", "return loss, {}"]),
        ("return torch.zeros(2).index_add(0, x.rows, x.logprobs), {}", ["shape [2]", "[inputs.rows]"]),
        ("return (-x.logprobs * x.advantages)[x.loss_mask], {}", ["shape [4]", "every token"]),
        ("return -x.logprobs.detach() * x.advantages, {}", ["no gradient", "detach"]),
        ("return x.logprobs.detach().numpy(), {}", ["array", "tensor"]),
        ("return (-x.logprobs * x.advantages).bfloat16(), {}", ["bfloat16", "float32"]),
        ("return -x.logprobs * x.advantages / 0, {}", ["inf", "token 0"]),
        ("return (x.logprobs - x.old_logprobs).sqrt(), {}", ["gradient", "token 0"]),
        ("return -x.logprobs * x.advantages, {'sure': x.logprobs}", ["flag 'sure'", "float32", "bool"]),
        ("return -x.logprobs * x.advantages, {'sure': x.loss_mask.sum() > 1}", ["flag 'sure'", "shape []", "[5]"]),
        ("return -x.logprobs * x.advantages, {'a/b': x.loss_mask}", ["'a/b'", "slash"]),
        ("return -x.logprobs * x.advantages, x.loss_mask", ["flags", "Tensor of shape [5]", "{}"]),
        ("return -x.logprobs * x.advantages - 0.1 * x.entropy, {}", ["inputs.entropy", "needs", "detach()"]),
        ("return x.logprobs - x.reference_logprobs, {}", ["TypeError", "mine.py line 6", "`needs`"]),
        ("return -x.logprobs * x.advantages.mul_(2), {}", ["inputs.advantages", "in place"]),
        ("r = x.logprobs.exp() * x.advantages; r.sum().backward(); return r, {}", ["RuntimeError", "backward"]),
        ("return None", ["None"]),
    ],
)
def test_loss_returns_one_number_a_token_with_a_gradient(hook, body, words):
    objective = hook("loss", f"def f(x):\n    {body}")
    message = refused(lambda: objective.loss(loss_inputs()), *words)
    assert message.startswith("algorithm.loss.kind: ")


def test_good_loss_is_not_changed(hook):
    objective = hook("loss", "def f(x):\n    return -x.logprobs * x.advantages, {'sure': x.logprobs > -0.5}")
    for _ in range(2):  # the first call is looked at more closely
        inputs = loss_inputs()
        loss, flags = objective.loss(inputs)
        assert torch.equal(loss, -inputs.logprobs * inputs.advantages)
        assert set(flags) == {"sure"}
        loss.sum().backward()
        assert torch.equal(inputs.logprobs.grad, -inputs.advantages)
    loss, _ = objective.loss(loss_inputs(grad=False))
    assert not loss.requires_grad


def test_an_objective_keeps_what_it_says_of_itself(hook):
    objective = hook(
        "loss",
        "def g(x):\n    return -x.logprobs * x.advantages - 0.1 * x.entropy, {}\n"
        "f = Objective(g, needs=frozenset({'entropy'}))",
    )
    assert objective.needs == {"entropy"}
    inputs = loss_inputs()
    entropy = (inputs.logprobs * 0.1).exp()
    objective.loss(LossInputs(**{name: getattr(inputs, name) for name in inputs.__slots__} | {"entropy": entropy}))


def test_flags_keep_their_names_in_later_calls(hook):
    objective = hook(
        "loss",
        "calls = []\ndef f(x):\n    calls.append(1)\n"
        "    return -x.logprobs * x.advantages, {f'n{len(calls)}': x.loss_mask}",
    )
    objective.loss(loss_inputs())
    refused(lambda: objective.loss(loss_inputs()), "n2", "n1", "every call")


def test_shapes_are_looked_at_in_every_call(hook):
    objective = hook(
        "loss",
        "calls = []\ndef f(x):\n    calls.append(1)\n    loss = -x.logprobs * x.advantages\n"
        "    return (loss if len(calls) < 2 else loss.sum()), {}",
    )
    objective.loss(loss_inputs())
    refused(lambda: objective.loss(loss_inputs()), "shape []")


def test_nan_of_the_model_is_not_blamed_on_the_loss(hook):
    objective = hook("loss", "def f(x):\n    return -x.logprobs * x.advantages, {}")
    inputs = loss_inputs()
    with torch.no_grad():
        inputs.logprobs[0] = torch.nan
    objective.loss(inputs)


def test_what_a_machine_refuses_is_not_blamed_on_a_hook(hook):
    algorithm = hook("keep", "def f(values, voters):\n    raise MemoryError('none left')")
    with pytest.raises(MemoryError):
        algorithm.judge(VALUES, VOTERS)


def test_the_error_travels_from_a_rank():
    error = pickle.loads(pickle.dumps(HookError("algorithm.loss.kind: mine:f returned None")))
    assert isinstance(error, DapoError)
    assert str(error) == "algorithm.loss.kind: mine:f returned None"


def test_built_in_functions_are_called_directly():
    recipe = small_recipe()
    assert make_algorithm(recipe).advantages.func.__name__ == "group_advantages"
    assert make_objective(recipe).loss.func.__name__ == "clipped_loss"


READS = """
def loss(inputs):
    return -inputs.logprobs * inputs.advantages * inputs.extra["late"], {}
def late(rows, seeds):
    return [{"late": np.arange(len(row.token_ids)) >= 1} for row in rows]
"""


def test_a_loss_reads_the_arrays_that_its_objective_makes(hook):
    from learner_rows import make_rows

    objective = hook("loss", READS + "f = Objective(loss, reads={'late': 'response'}, extra=late)")
    rows = make_rows(0, 1, 2, length=lambda random: 3)
    made = objective.extra(rows, [7, 8])
    assert [extra["late"].tolist() for extra in made] == [[False, True, True]] * 2
    rows = [replace(row, extra=extra) for row, extra in zip(rows, made, strict=True)]
    tensors = objective.extra_tensors(rows)
    assert tensors["late"].tolist() == [False, True, True] * 2
    inputs = replace(loss_inputs(), extra={"late": torch.tensor([False, True, True, True, True])})
    assert objective.loss(inputs)[0].tolist() == pytest.approx([0.0, 1.0, -0.2, -2.0, 0.05])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", ["None", "a list of mappings", "one for each of 2 responses"]),
        ("return [{}]", ["list [{}]", "one for each of 2 responses"]),
        ("return [1 for row in rows]", ["int 1", "a mapping from names to numpy arrays"]),
        ("return [{'late': np.zeros(9)} for row in rows]", ["extra 'late' has the shape [9]", "of 3 (tokens"]),
        ("return [{'late': [1]} for row in rows]", ["extra 'late' is list, expected a numpy array"]),
        ("return rows[7]", ["IndexError", "mine.py line 12"]),
    ],
)
def test_a_maker_of_arrays_returns_one_mapping_for_each_response(hook, body, words):
    from learner_rows import make_rows

    source = (
        f"{READS}\ndef wrong(rows, seeds):\n    {body}\nf = Objective(loss, reads={{'late': 'response'}}, extra=wrong)"
    )
    objective = hook("loss", source)
    refused(lambda: objective.extra(make_rows(0, 1, 2, length=lambda random: 3), [7, 8]), *words)


def test_arrays_that_are_missing_or_span_other_tokens_are_named(hook):
    from learner_rows import make_rows

    objective = hook("loss", READS + "f = Objective(loss, reads={'late': 'sequence'})")
    (row,) = make_rows(0, 1, 1, length=lambda random: 3)
    with pytest.raises(HookError, match=r"reads extra 'late', and response 0 of group 0 has none"):
        objective.extra_tensors([row])
    with pytest.raises(HookError, match=r"extra 'late' has the shape \[3\], expected .* \(span 'sequence'"):
        objective.extra_tensors([replace(row, extra={"late": np.ones(3)})])
    refused(lambda: objective.loss(loss_inputs()), "KeyError: 'late'", "`reads`")


@pytest.mark.parametrize("source", ["f = g", "f = Objective(g)"])
def test_options_reach_a_loss_of_ones_own(hook, source, tmp_path):
    hook("loss", "def g(inputs, *, scale=1.0):\n    return -scale * inputs.logprobs * inputs.advantages, {}\n" + source)

    def loss(**options):
        return make_objective(small_recipe(algorithm={"loss": {"kind": "mine:f", "options": options}})).loss

    plain, doubled = (loss(**options)(loss_inputs())[0] for options in ({}, {"scale": 2.0}))
    assert doubled.tolist() == pytest.approx((2 * plain).tolist())
    refused(lambda: loss(scales=2.0), "algorithm.loss.options.scales: 2.0", "its options are scale")


def test_options_reach_an_advantage_of_ones_own(hook):
    hook("advantage", "def f(rewards, voters, *, scale):\n    return [scale * (r - r[0]) for r in rewards]")
    recipe = small_recipe(algorithm={"advantage": {"kind": "mine:f", "options": {"scale": 3.0}}})
    (found,) = make_algorithm(recipe).advantages([np.array([1.0, 2.0])], [np.array([True, True])])
    assert found.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    ("key", "source", "has"),
    [
        ("loss", "def f(inputs, beta=1.0, *, cap=2.0):\n    return inputs.logprobs, {}", "its options are beta, cap"),
        ("loss", "def g(inputs, beta=1.0):\n    return inputs.logprobs, {}\nf = Objective(g)", "its options are beta"),
        ("loss", "def f(inputs):\n    return inputs.logprobs, {}", "it takes no options"),
        ("advantage", "def f(rewards, voters, decay=1.0):\n    return rewards", "its options are decay"),
        ("advantage", "def f(rewards, voters):\n    return rewards", "it takes no options"),
    ],
)
@pytest.mark.parametrize("name", ["bta", "inputs", "rewards"])
def test_an_option_that_a_function_does_not_take_is_refused_by_name(hook, key, source, has, name):
    hook(key, source)  # writes the module
    recipe = small_recipe(algorithm={key: {"kind": "mine:f", "options": {name: 2.0}}})
    make = make_objective if key == "loss" else make_algorithm
    message = refused(lambda: make(recipe), f"algorithm.{key}.options.{name}: 2.0", has)
    assert message.endswith("or add the argument to the function")


def test_a_function_that_takes_any_option_is_given_all(hook):
    hook("loss", "def f(inputs, **options):\n    return inputs.logprobs * options['scale'], {}")
    recipe = small_recipe(algorithm={"loss": {"kind": "mine:f", "options": {"scale": 2.0}}})
    inputs = loss_inputs()
    torch.testing.assert_close(make_objective(recipe).loss(inputs)[0], inputs.logprobs * 2.0)
