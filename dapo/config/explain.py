"""``dapo explain KEY``: everything that is known of a setting, a metric or another trainer's key, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dapo.config.faults import brief, nearest, visible
from dapo.config.peer_names import PEER_KEYS, PEER_WORDS, apart_hint, peer_entry, peer_hint, peer_metric
from dapo.config.presets import PRESETS
from dapo.config.settings import REQUIRED, Setting, generic, settings, value_at
from dapo.errors import RecipeError
from dapo.metrics.printed import printed, words

PAPER = "arXiv 2503.14476"
_PAPER = {
    "algorithm.clip": "section 3.1 (clip-higher), equations 8 and 10",
    "algorithm.dynamic_sampling": "section 3.2 (dynamic sampling), the condition of equation 8 and equation 11",
    "algorithm.loss": "section 3.3 (token-level policy gradient loss), equations 8 and 12",
    "algorithm.overlong_filtering": "section 3.4 (overlong filtering)",
    "algorithm.overlong_punishment": "section 3.4 (soft overlong punishment), equation 13",
    "algorithm.reward_scaling": "section 2.4 (rewards of 1 and -1), equation 7",
    "algorithm.kl_coefficient": "section 2.3 (no KL divergence)",
    "algorithm.advantage": "section 3, equation 9",
    "rollout.prompts_per_step": "section 4.1: 512",
    "rollout.group_size": "section 4.1: 16",
    "rollout.max_response_tokens": "section 4.1: 20,480 tokens, of which 4,096 are the cache",
    "learner.learning_rate": "section 4.1: AdamW, constant 1e-6",
    "learner.warmup": "section 4.1: 20 rollout steps",
    "learner.minibatch_prompts": "section 4.1: 16 gradient updates for each rollout step",
    "validation.samples": "section 4.1: 32 (avg@32)",
    "validation.temperature": "section 4.1: 1.0",
    "validation.top_p": "section 4.1: 0.7",
}
"""Where the paper speaks of a setting: of a key, or of everything below it."""
_PAGES = {
    "algorithm.clip": "docs/losses.md",
    "algorithm.dynamic_sampling": "docs/dynamic_sampling.md",
    "algorithm.loss": "docs/losses.md",
    "algorithm.advantage": "docs/algorithm.md",
    "algorithm.correction": "docs/correction.md",
    "algorithm.old_logprobs": "docs/correction.md",
    "algorithm": "docs/algorithm.md",
    "data": "docs/data.md",
    "rewards": "docs/rewards.md",
    "sandbox": "docs/howto_code_rewards.md",
    "rollout.embedded": "docs/engines.md",
    "rollout.vllm": "docs/engines.md",
    "rollout.server": "docs/vllm_server.md",
    "rollout.engine": "docs/engines.md",
    "validation": "docs/algorithm.md",
}
_RULES = {
    "free": "may change at a resume",
    "ask": "may change at a resume, when the command names it",
    "fixed": "cannot change in a run",
}


def explain(key: str) -> list[str]:
    """Return what is known of a key, as lines.

    Args:
        key: A setting (``algorithm.clip.high``, or its last part where one setting has it), a section, a metric, a word
            of the lines that a run prints, or another trainer's key.

    Raises:
        RecipeError: The key is unknown; the message names the nearest ones.
    """
    key = key.strip()
    if (exact := settings().get(generic(key))) is not None:
        entry = peer_entry(key) if key.endswith("gpus_per_node") else None  # NeMo RL spells its own key like that
        return [*_known(exact), *([] if entry is None else [f"  elsewhere  {entry.hint()}"])]
    shown = [_metric(metric) or [] for metric in printed(key)]
    if shown and (peer := _peer_metric(key)):  # a name that a peer has too
        shown = [peer]
    if known := [*shown, *map(_known, _by_last_part(key))]:
        return [line for one in known for line in (*([""] if one is not known[0] else []), *one)]
    if metric := _peer_metric(key) or _metric(key) or _metric_of_last_part(key):
        return metric
    if hint := peer_hint(key):
        lines = [hint]
        for entry in (*PEER_KEYS, *PEER_WORDS.values()):
            if entry.hint() == hint:
                lines += [line for path in entry.ours for line in ("", *explain(path))]
                break
        return lines
    if hint := apart_hint(key):
        return [f"`{key}`: {hint}"]
    plain = key.lstrip("-").lower().replace("-", "_").replace(" ", "_")  # `--epsilon_high`, `Clip-Higher`
    file = plain.rpartition("/")[2]  # `examples/run_grpo_math.py`
    if (plain := file if file in PEER_WORDS else plain) != key and (peer_hint(plain) or _by_last_part(plain)):
        return explain(plain)
    near = nearest(key) or get_close_matches(key, {*settings(), *_metric_keys(), *words()}, 3, 0.6)
    hint = (
        f"; the nearest are {', '.join(near)}"
        if near
        else ". The name of a section, such as rollout, lists its settings"
    )
    raise RecipeError(
        f"`{visible(key, 120)}` is no setting, no metric and no key of another trainer that is known{hint}"
    )


def _by_last_part(key: str) -> list[Setting]:
    """Return the settings that ``group_size`` abbreviates: at most two, and none if another trainer has that key."""
    ends = [s for s in settings().values() if s.path.endswith(f".{key}")]
    return ends if len(ends) <= 2 and peer_hint(key) is None else []


def _known(s: Setting) -> list[str]:
    return [*(_section(s) if s.section else _setting(s))]


def _setting(s: Setting) -> Iterator[str]:
    yield s.path
    yield f"  {s.doc.replace('``', '`')}"
    yield f"  accepts    {s.expected}"
    yield f"  default    {'none: a recipe must give it' if s.default is REQUIRED else brief(s.default)}"
    presets = {name: value_at(sparse, s.path, REQUIRED) for name, sparse in PRESETS.items()}
    presets = {name: value for name, value in presets.items() if value is not REQUIRED}
    if presets:
        yield "  presets    " + ", ".join(f"{name} {brief(value)}" for name, value in presets.items())
    yield from _below(s.path)
    yield f"  resume     {s.resume}: {_RULES[s.resume]}"
    section = s.path.rpartition(".")[0]
    yield from _pages(s.path, f"docs/configuration.md, table `{section or 'the recipe'}`")


def _section(s: Setting) -> Iterator[str]:
    inside = s.path + (".N" if s.expected.startswith("a list") else "")
    yield f"{s.path}: {s.expected}"
    yield f"  {s.doc.replace('``', '`')}"
    yield from _below(s.path)
    yield from _pages(s.path, f"docs/configuration.md, table `{inside}`")
    yield "  keys"
    fields = [f for f in settings().values() if f.path.rpartition(".")[0] == inside]
    width = max((len(f.path) for f in fields), default=0)
    for f in fields:
        shown = "..." if f.section else "required" if f.default is REQUIRED else brief(f.default)
        yield f"    {f.path:<{width}}  {shown}"


def _below(path: str) -> Iterator[str]:
    """Yield the paper's words on a setting, and other trainers' names for it."""
    if (paper := _nearest_of(_PAPER, path)) is not None:
        yield f"  paper      {PAPER}, {paper}"
    names = [f"{entry.key} ({', '.join(entry.who)})" for entry in PEER_KEYS if path in entry.ours]
    if names:
        yield f"  elsewhere  {'; '.join(dict.fromkeys(names))}"


def _pages(path: str, table: str) -> Iterator[str]:
    page = _nearest_of(_PAGES, path)
    yield f"  page       {table}" + (f"; {page}" if page else "")


def _nearest_of(table: dict[str, str], path: str) -> str | None:
    """Return the entry of the path, or of the nearest section above it."""
    parts = path.split(".")
    return next((table[p] for n in range(len(parts), 0, -1) if (p := ".".join(parts[:n])) in table), None)


def _metric(key: str) -> list[str] | None:
    from dapo.metrics.glossary import lookup  # takes numpy along

    found = lookup(key)
    if found is None:
        return None
    lines = [found.key, f"  {found.meaning}", f"  unit       {found.unit}"]
    if found.better:
        lines.append(f"  better     {found.better}")
    return [*lines, "  page       docs/metrics.md"]


def _metric_keys() -> list[str]:
    from dapo.metrics.glossary import GLOSSARY

    return list(GLOSSARY)


def _metric_of_last_part(key: str) -> list[str] | None:
    """Return the metric that ``acceptance_rate`` or ``pass@4`` abbreviates; None where none or several have that end.

    Those of an evaluation stand for it, as its table prints them.
    """
    if (evaluated := _metric(f"validation/{key}")) is not None:
        return evaluated
    ends = [metric for metric in _metric_keys() if metric.endswith(f"/{key}")]
    return _metric(ends[0]) if len(ends) == 1 else None


def _peer_metric(key: str) -> list[str] | None:
    entry = peer_metric(key)
    if entry is None:
        return None
    lines = [f"`{entry.key}` of {', '.join(entry.who)}: {entry.how or f'the same as `{entry.ours[0]}`'}"]
    return lines + [line for ours in entry.ours for line in ("", *(_metric(ours) or []))]
