"""Settings that nothing reads because of another setting.

A setting that only one kind of run can read is refused elsewhere. Where a preset or a file may have set it for another
run, it is a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dapo.config.check_data import CHAT_ONLY, ENVIRONMENT
from dapo.config.check_teacher import on_server, taught_alone, teachers
from dapo.config.checks import ratio_against
from dapo.config.deployment import Deployment
from dapo.config.faults import Broken
from dapo.config.mixed import mixed_by_spread
from dapo.config.schema import Clip, DataSource, EnvironmentSection, Recipe, Reward
from dapo.config.schema.kinds import GroupAdvantage
from dapo.config.settings import generic, settings, value_of

Readers = Iterator[tuple[bool, list[str], str]]
"""Whether something reads settings, their keys (each stands for all below it), and why nothing does."""


def check_unread(r: Recipe) -> Broken:
    """Yield settings that differ from their defaults and have no effect."""
    for part in (_of_data, _of_rewards, _of_programs, _of_episodes, _of_training):
        for read, keys, said in part(r):
            for key in () if read else keys:
                if value_of(r, key) != settings()[generic(key)].default:
                    yield key, said


def unread(r: Recipe, changed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the paths among ``changed`` that have no effect, each once, with the first reason."""
    told = set[str]()
    for part in (_engines, _cluster, _sampling, _shaping, _loss, _run):
        for read, keys, reason in part(r):
            for path in () if read else changed:
                if path not in told and any(path == key or path.startswith(f"{key}.") for key in keys):
                    told.add(path)
                    yield path, reason


def _below(section: str, names: str) -> list[str]:
    return [f"{section}.{name}" for name in names.split()]


def _of_data(r: Recipe) -> Readers:
    data, thinking = r.data, r.data.thinking
    for part in ("train", "validation"):
        for n, source in enumerate(getattr(data, part)):
            yield from _of_a_source(f"data.{part}.{n}", source)
    for n, source in enumerate(data.train):
        yield source.task is not None, [f"data.train.{n}.levels"], "are options of a procedural `task`"
    chat = data.prompt not in ("template", "raw") and data.prompt_template is None
    yield chat, _below("data", " ".join(CHAT_ONLY)), "is only read with prompt: chat; write it into the template"
    yield thinking.enabled, _below("data.thinking", "open close"), _ONLY_THINKING
    unknown = "needs data.thinking.enabled: true: else it is unknown where thinking ends"
    yield thinking.enabled, ["data.thinking.budget"], unknown
    yield thinking.budget is not None, ["data.thinking.end"], "is only read with data.thinking.budget"
    levelled = any(source.levels for source in data.train)
    yield levelled, ["data.curriculum"], "is only read where a training source has `levels`"
    mixed = levelled or any(source.weight is not None for source in data.train)
    endless = "has no meaning where sources have weights or levels: they end at no one time"
    yield not mixed, ["data.epochs"], endless


_ONLY_THINKING = "is only read with data.thinking.enabled: true"


def _of_a_source(key: str, source: DataSource) -> Readers:
    made = source.task is not None
    yield made, [f"{key}.options"], "are arguments of a procedural `task`"
    yield made, [f"{key}.seed"], "is that of a procedural `task`; files are shuffled by run.seed"
    own = "belongs to a folder or hub data set, not to a procedural task"
    yield source.task in (None, ENVIRONMENT), [f"{key}.split"], own


_KINDS = {
    "code": "tests entry_point partial memory_mib",
    "service": "url api batch concurrency retries outage_limit api_key_variable model template options parser",
    "last_number": "tolerance",
}
"""Settings of a reward that one kind alone reads."""


def _of_rewards(r: Recipe) -> Readers:
    plays = r.environment.kind is not None
    for n, reward in enumerate(r.rewards):
        key = f"rewards.{n}"
        for kind, names in _KINDS.items():
            yield reward.kind == kind, _below(key, names), f"is only read with kind: {kind}"
        own = reward.kind == "function"
        yield own, [f"{key}.function"], f"is only read with kind: function, not {reward.kind}"
        yield not own, [f"{key}.reads"], "a function gets both: completion.final_text and .text"
        yield reward.kind != "environment", [f"{key}.reads"], "is not read with kind: environment"
        played, alone = reward.reads in ("turn", "episode"), reward.reads in ("answer", "response")
        one = "is only read with environment.kind: without one a response is one turn"
        yield plays or not played, [f"{key}.reads"], one
        yield plays or not alone or r.data.thinking.enabled, [f"{key}.reads"], _ONLY_THINKING
        if reward.kind == "service":
            yield from _of_a_service(key, reward)


def _of_a_service(key: str, reward: Reward) -> Readers:
    yield reward.api != "dapo", _below(key, "model template options"), "is not read with api: dapo"
    yield reward.api == "openai", [f"{key}.parser"], "is only read with api: openai"
    yield reward.api != "openai", [f"{key}.batch"], "is not read with api: openai: a request has one question"


def _of_programs(r: Recipe) -> Readers:
    kind, judges = r.sandbox.kind, any(reward.kind == "code" for reward in r.rewards)
    calls = "python" in r.environment.tools
    used = judges or calls
    yield used, ["sandbox"], "is only read with a reward of kind: code, or with environment.tools: [python]"
    other = "is only read with environment.tools: [python]; a reward of kind: code has its own"
    yield calls or not used, _below("sandbox", "timeout memory_mib"), other
    yield kind == "http" or not used, _below("sandbox", "url api_key_variable"), "is only read with kind: http"
    yield kind == "local" or not used, ["sandbox.require"], "is only read with kind: local, which is tried"


def _of_episodes(r: Recipe) -> Readers:
    kind, section = r.environment.kind, "environment"
    if kind is None:
        yield False, _below(section, " ".join(EnvironmentSection.model_fields)), "is only read with environment.kind"
    if kind is None or r.run.stage == "sft":
        return
    yield kind == "agent", _below(section, "other_sampling run"), "is only read with environment.kind: agent"
    yield kind != "tools", [f"{section}.args"], "are arguments of a function or class, and kind is tools"
    bounded = r.environment.max_turn_tokens is not None
    yield bounded, [f"{section}.long_turn"], "is only read with environment.max_turn_tokens"
    tools = [f"{section}.tools"]
    yield kind != "verifiers", tools, "an environment of `verifiers` has tools of its own"
    yield kind != "agent", tools, "kind: agent calls its own tools and names them in its requests; take them out"


def _of_training(r: Recipe) -> Readers:
    ranks = "is only read with learner.ranks above 1; take it out, or set learner.ranks"
    yield r.learner.ranks > 1, _below("learner", "reshard_after_forward cpu_offload"), ranks
    beside = (
        "is only read with rollout.max_staleness of 1 or more, where generation goes on during learning; set it to "
        "null (rollout.overlap_turns=null)"
    )
    yield Deployment(r).overlaps, ["rollout.overlap_turns"], beside
    stops = "is only read with stop strings (rollout.stop)"
    yield bool(r.rollout.stop), ["rollout.include_stop_str_in_output"], stops
    trackers = "names numbers of trackers; set logging.trackers, or take it out"
    yield bool(r.logging.trackers), ["logging.also"], trackers
    a, section = r.algorithm, "algorithm.dynamic_sampling"
    filters, mode = a.dynamic_sampling.mode == "filter", a.dynamic_sampling.mode
    yield filters, [f"{section}.oversample"], f"mode: {mode} never dispatches more than P; take it out"
    own = "is not read when `keep` names a rule of yours; take one of them out"
    yield a.dynamic_sampling.keep is None, [f"{section}.band"], own
    one_sum, kind = not a.advantage.by_reward, f"advantage.kind: {a.advantage.kind}"
    yield one_sum, ["algorithm.shaping"], f"is not read by {kind}, which sees each reward by itself"
    several = f"needs one reward, and {kind} has several; put the KL into the loss"
    yield one_sum, ["algorithm.kl_in_reward"], several
    served, teacher = [on_server(path) for path in teachers(r).values()], "algorithm.teacher"
    yield not served or not all(served), [f"{teacher}.offload"], "has no effect: every teacher is on a server"
    local = "is only read with a teacher on a server"
    yield not served or any(served), _below(teacher, "patience api_key_variable"), local


_ONE_ENGINE = "there is one engine, in the trainer's process"


def _engines(r: Recipe) -> Readers:
    found = Deployment(r)
    read = {
        "embedded": found.engine_facts.ours,
        "vllm": found.engine == "vllm",
        "server": found.engine == "vllm_server",
    }
    for section, is_read in read.items():
        yield is_read, [f"rollout.{section}"], f"rollout.engine is {r.rollout.engine}"
    yield found.pool, _below("rollout", "turn_steps lockstep"), _ONE_ENGINE
    yield found.overlaps, ["rollout.embedded.recompute_cache"], "rollout.max_staleness is 0"


def _cluster(r: Recipe) -> Readers:
    """Yield settings for other processes: engines of a pool, ranks, a learner that overlaps them."""
    found, on_ray = Deployment(r), r.launch.backend == "ray"
    ray_alone = _below("cluster", "address nodes gpus_per_node colocate cpus_per_host")
    yield on_ray, ray_alone, f"launch.backend is {r.launch.backend}"
    yield found.pool or on_ray, ["cluster.start_timeout"], _ONE_ENGINE
    yield found.pool, _below("cluster", "engine_timeout max_engine_restarts"), _ONE_ENGINE
    apart = ["cluster.max_learner_restarts", "learner.timeout"]
    yield found.learner != "here", apart, "the learner is in the trainer's process"
    yield found.ranks > 1 or found.route == "broadcast", ["learner.timeout"], "learner.ranks is 1"


def _sampling(r: Recipe) -> Readers:
    d, section = r.algorithm.dynamic_sampling, "algorithm.dynamic_sampling"
    mode = f"{section}.mode is {d.mode}"
    yield d.mode == "filter", _below(section, "oversample lookahead unfinished"), mode
    yield d.mode in ("filter", "replace"), _below(section, "cap surplus max_age on_max_age"), mode
    yield d.mode == "replace", [f"{section}.replace"], mode
    ahead = [f"{section}.lookahead"]
    yield d.max_age > 0 or d.on_max_age != "wait", ahead, f"{section}.max_age is 0"
    carried = d.surplus == "carry" and d.unfinished == "carry"
    yield carried, ahead, "surplus and unfinished are not both carried"
    yield d.mode != "off", _below(section, "metric mixed keep correct_at tolerance band"), f"{section}.mode is off"
    spread = mixed_by_spread(r)
    yield not spread, [f"{section}.correct_at"], "groups are mixed by their spread"
    yield spread, [f"{section}.tolerance"], "groups are mixed by what is correct"
    yield d.keep is None, [f"{section}.tolerance"], f"{section}.keep is a rule of yours"
    at_once = "with rollout.max_staleness, and without rollout.overlap_turns, scores and replies take effect on arrival"
    yield not Deployment(r).by_the_clock, [f"{section}.verdict_lag", "environment.lag"], at_once


def _shaping(r: Recipe) -> Readers:
    a = r.algorithm
    by_rewards = ["rewards", *_below("run", "reward_workers reward_memory_mib")]
    yield r.scorer is None, by_rewards, "scorer is one of yours"
    yield r.data.stream is None, _below("data", "shuffle epochs curriculum"), "data.stream is one of yours"
    punishment, scaling, advantage = "algorithm.overlong_punishment", "algorithm.reward_scaling", "algorithm.advantage"
    penalty = _below(punishment, "max_length cache_length factor")
    yield a.overlong_punishment.enabled, penalty, f"{punishment}.enabled is false"
    bounds = _below(scaling, "source_min source_max target_min target_max")
    yield a.reward_scaling.enabled, bounds, f"{scaling}.enabled is false"
    yield a.shaping is None, [punishment, scaling], "algorithm.shaping is a function of yours"
    yield not a.advantage.by_reward, [scaling], f"{advantage}.kind is {a.advantage.kind}"
    unscaled = isinstance(a.advantage, GroupAdvantage) and a.advantage.scale == "none"
    yield not unscaled, _below(advantage, "ddof eps"), f"{advantage}.scale is none"
    norm, section = a.advantage_norm, "algorithm.advantage_norm"
    if norm is not None:
        yield (norm.mean, norm.std) != ("none", "none"), [section], "it takes neither a mean nor a deviation"
        yield norm.std != "none", _below(section, "ddof eps"), f"{section}.std is none"
        yield norm.mean != "none", [f"{section}.leave_one_out"], f"{section}.mean is none"
    factor, votes = ["algorithm.truncated_factor"], a.truncated_vote
    yield a.shaping is None, factor, "algorithm.shaping is a function of yours"
    yield not a.advantage.by_reward, factor, f"{advantage}.kind is {a.advantage.kind}"
    silent = "truncated responses neither vote nor carry loss: set algorithm.truncated_vote, or no overlong_filtering"
    yield not a.overlong_filtering if votes is None else votes, factor, silent


def _loss(r: Recipe) -> Readers:
    a, kind = r.algorithm, r.algorithm.loss.kind
    bounds = [f"algorithm.clip.{name}" for name in Clip.model_fields if name not in a.loss.clips]
    yield False, bounds, f"algorithm.loss.kind is {kind}"
    with_kl, none = bool(a.kl_coefficient), "algorithm.kl_coefficient is 0"
    yield with_kl, _below("algorithm", "kl_estimator kl_in_reward"), none
    yield with_kl or ":" in kind, ["algorithm.reference"], none
    yield not a.kl_in_reward, ["algorithm.kl_estimator"], "algorithm.kl_in_reward is true: there it is k1"
    of_rewards = _below("algorithm", "reward_scaling advantage advantage_norm advantage_clip truncated_factor")
    yield not taught_alone(r), of_rewards, "no reward has a weight, and the teacher trains alone"
    yield a.teacher.term == "loss", ["algorithm.teacher.estimator"], "algorithm.teacher.term is advantage"
    control, adapts = "algorithm.entropy_control", a.entropy_control.target is not None
    yield adapts, _below(control, "delta min max"), f"{control}.target is null"
    sampler = "the ratio runs against the sampler's log-probabilities"
    yield ratio_against(r) != "sampler", ["algorithm.correction.cap"], sampler


def _run(r: Recipe) -> Readers:
    lora = _below("model.lora", "lora_alpha target_modules use_rslora modules_to_save")
    yield r.model.lora.rank is not None, lora, "model.lora.rank is null"
    yield r.learner.schedule != "constant", ["learner.final_ratio"], "learner.schedule is constant"
    yield r.checkpoint.best is not None, ["checkpoint.best_is"], "checkpoint.best is null"
    stop, early = r.trainer.early_stop.metric is not None, _below("trainer.early_stop", "best_is patience min_change")
    yield stop, early, "trainer.early_stop.metric is null"
