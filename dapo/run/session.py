"""Everything a run needs, composed from its recipe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo.checkpoint.store import CheckpointStore
from dapo.config.check_data import source_name
from dapo.config.schema import Recipe
from dapo.config.secrets import redact
from dapo.data.load import PreparedData, prepare
from dapo.data.mixture import MixtureStream
from dapo.data.render import seen_lines
from dapo.data.stream import EpochStream, content
from dapo.data.unknown import unknown_in_prompts
from dapo.loop.evaluation import Evaluator
from dapo.loop.overlap import Overlap
from dapo.loop.sampling.collector import StreamingCollector
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.stopping import Deadline
from dapo.loop.sync_check import SyncCheck
from dapo.loop.trainer import Trainer
from dapo.metrics.phases import Phases
from dapo.models.builtin import is_builtin
from dapo.models.facts import facts_of
from dapo.models.loaded import LoadedModel
from dapo.models.meter import meter_of
from dapo.observe.console import Console
from dapo.rewards.compose import CompositeScorer, build_scorer
from dapo.run.deployment import Deployment, deployment_of
from dapo.run.engines import check_engine, start_engine
from dapo.run.fits import check_fits
from dapo.run.given import (
    NOTHING_GIVEN,
    Context,
    Given,
    check_beside_engine,
    make_engine_of,
    make_scorer_of,
    make_stream_of,
)
from dapo.run.learners import make_learner, without_adapter
from dapo.run.parts import (
    check_model,
    check_model_path,
    facts_without_weights,
    make_algorithm,
    make_facts,
    make_model,
    make_schedule,
    make_tokenizer,
)
from dapo.run.places import Places, open_places
from dapo.run.sampling import make_sampling, make_validation_sampling
from dapo.run.texts import make_texts
from dapo.run.weights import delete_weights, weights_folder
from dapo.system import core_count
from dapo.types.batch import Prompt
from dapo.types.evaluation import EvaluationProgress
from dapo.types.evidence import ClusterLost
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine, Learner, MayBeQuick, PromptStream, Recorder, Scorer

# Engine steps by which verdicts lag that may take a while; quick ones need no lag.
WORKER_VERDICT_LAG = 16
MOST_REWARD_WORKERS = 8  # unless the recipe says otherwise
SECONDS_A_TURN = 0.1
"""With generation beside learning: how long the driver waits for a response before it looks at scores again."""


def make_scorer(recipe: Recipe, output: Path | None = None) -> CompositeScorer:
    """The recipe's rewards; what reward functions print is appended to ``output`` (None: dropped)."""
    sources = [*recipe.data.train, *recipe.data.validation]
    return build_scorer(
        recipe.rewards,
        sources={source_name(source) for source in sources},
        tasks={source.task for source in sources if source.task},
        output=output,
        workers=recipe.run.reward_workers or max(1, min(MOST_REWARD_WORKERS, core_count() - 1)),
        memory_mib=recipe.run.reward_memory_mib,
    )


@dataclass(slots=True)
class Session:
    """The objects of one run, made in the order in which a mistake is cheapest to find."""

    recipe: Recipe
    deployment: Deployment
    scorer: Scorer
    loaded: LoadedModel | None  # of a learner or an engine of this process; None: both live elsewhere
    facts: ModelFacts
    tokenizer: Any
    data: PreparedData
    engine: Engine
    rollouts: Rollouts
    weights: Path | None  # through which the learner publishes
    folder: Path | None  # of the run
    say: Callable[[str], None]
    closing: ExitStack  # whatever is to be ended, the newest first
    given: Given = NOTHING_GIVEN
    places: Places | None = None  # of ranks and engines on a cluster

    @classmethod
    def make(
        cls,
        recipe: Recipe,
        console: Console,
        folder: Path | None = None,
        *,
        training: bool = True,
        given: Given = NOTHING_GIVEN,
    ) -> Session:
        """The parts of a run whose files live in ``folder`` (None: it leaves none).

        Without ``training`` the recipe's training data are placeholders, and nothing is said of them.

        Raises:
            RecipeError: a package that the recipe needs is missing.
            ModelError: a device, name or folder that cannot be; before the data is read. Weights come last.
            ClusterError: there is no room on the cluster that the recipe names.
            DataError: the data cannot be read, or a task refuses its options.
        """
        deployment = deployment_of(recipe, engine_given=given.engine is not None, training=training)
        _check_here(recipe, deployment)
        with ExitStack() as undo:  # what is there already, if something after it cannot be made
            if given.scorer is None:
                scorer: Scorer = make_scorer(recipe, None if folder is None else folder / "rewards.txt")
                undo.callback(scorer.close)
            tokenizer = make_tokenizer(recipe.model, recipe.data.chat_template)
            texts = make_texts(recipe, tokenizer)
            data = _prepared(recipe, tokenizer, console, training)
            context = Context(recipe, tokenizer, data.train, folder)
            if given.scorer is not None:
                scorer = make_scorer_of(given.scorer, context)
                undo.callback(scorer.close)
            places = open_places(recipe, deployment)
            if places is not None:
                undo.callback(places.close)
                undo.enter_context(places.told_if_lost())
                console.say(places.sentence())
            loaded, facts = _model_of(recipe, deployment, console)
            check_fits(recipe, facts, data, training=training)
            weights = weights_folder(recipe, deployment, facts, folder, places)
            undo.callback(delete_weights, recipe, deployment, weights)
            context = replace(context, facts=facts, loaded=loaded, longest=_longest(recipe, data), weights=weights)
            if given.engine is not None:
                engine = make_engine_of(given.engine, context)
            else:
                engine = start_engine(recipe, deployment, context, training=training, places=places)
            undo.callback(engine.close)
            return cls(
                recipe=recipe,
                deployment=deployment,
                scorer=scorer,
                loaded=loaded,
                facts=facts,
                tokenizer=tokenizer if loaded is None else loaded.tokenizer,
                data=data,
                engine=engine,
                rollouts=Rollouts(engine, scorer, texts),
                weights=weights,
                folder=folder,
                say=console.say,
                closing=undo.pop_all(),
                given=given,
                places=places,
            )

    @property
    def prompts(self) -> list[Prompt]:
        """What is trained on, for the run's table of prompts."""
        return self.data.train

    def evaluator(self, watch: Callable[[EvaluationProgress], None] | None = None) -> Evaluator | None:
        """None without validation data. ``watch`` hears how far an evaluation is."""
        validation = self.recipe.validation
        sets: dict[str, list[Prompt]] = {
            name: prompts[: validation.limit] for name, prompts in self.data.validation.items()
        }
        if not any(sets.values()):
            return None
        return Evaluator(
            rollouts=self.rollouts,
            prompts=sets,
            sampling=make_validation_sampling(self.recipe, self.facts),
            samples=validation.samples,
            greedy=validation.greedy,
            seed=self.recipe.run.seed,
            watch=watch,
        )

    def learner(self, *, training: bool = True) -> Learner:
        """Without ``training`` it is asked for nothing but its weights and log-probabilities."""
        learner = make_learner(
            self.recipe,
            self.facts,
            self.loaded,
            weights=self.weights,
            run=self.folder,
            training=training,
            say=self.say,
            places=self.places,
            engine=self.engine,
        )
        self.closing.callback(learner.close)
        return learner

    def sync_check(self, learner: Learner) -> SyncCheck:
        """After a publish: has the engine the learner's weights? See ``dapo.loop.sync_check``."""
        validation = [prompt for prompts in self.data.validation.values() for prompt in prompts]
        return SyncCheck(
            self.rollouts,
            learner,
            self.data.train or validation,
            make_sampling(self.recipe, self.facts),
            seed=self.recipe.run.seed,
            tolerance=self.recipe.trainer.sync_check_tolerance,
        )

    def trainer(self, recorder: Recorder, checkpoints: CheckpointStore, deadline: Deadline | None = None) -> Trainer:
        """``deadline``: of ``trainer.max_hours``; None: begun here."""
        recipe, rollout, deployment = self.recipe, self.recipe.rollout, self.deployment
        phases = Phases(recorder.span, meter=meter_of(None if self.loaded is None else self.loaded.device))
        algorithm, learner = make_algorithm(recipe), self.learner()
        sampling = make_sampling(recipe, self.facts)
        collector = StreamingCollector(
            rollouts=self.rollouts,
            stream=self.stream(),
            algorithm=algorithm,
            sampling=sampling,
            settings=recipe.algorithm.dynamic_sampling,
            prompts_per_step=rollout.prompts_per_step,
            group_size=rollout.group_size,
            run_seed=recipe.run.seed,
            verdict_lag=_verdict_lag(recipe, self.scorer),
            phases=phases,
            watch=recorder.filling,
            reads_answers=all(r.kind in ("math", "exact") for r in recipe.rewards if r.name == "accuracy"),
            overlaps=deployment.overlaps,
            turn=SECONDS_A_TURN if deployment.overlaps and deployment.overlap_turns is None else None,
        )
        trainer = Trainer(
            collector=collector,
            learner=learner,
            engine=self.engine,
            algorithm=algorithm,
            schedule=make_schedule(recipe),
            evaluator=self.evaluator(recorder.evaluating),
            checkpoints=checkpoints,
            recorder=recorder,
            recipe=recipe,
            fingerprint=dict(self.facts.fingerprint),
            facts={
                "recipe": redact(recipe.model_dump(mode="json")),
                "validation": {name: content(prompts) for name, prompts in self.data.validation.items()},
            },
            phases=phases,
            check_sync=self.sync_check(learner),
            overlap=Overlap(collector, phases, deployment.overlap_turns) if deployment.overlaps else None,
            deadline=deadline,
        )
        if self.places is not None:
            self.places.tell(trainer.stopping.lose)
        return trainer

    def lost(self) -> ClusterLost | None:
        """How its cluster was lost, if it was."""
        return None if self.places is None else self.places.lost()

    def stream(self) -> PromptStream:
        """The prompts that training takes, from the first one."""
        recipe, prompts = self.recipe, self.data.train
        if self.given.stream is not None:
            context = Context(recipe, self.tokenizer, prompts, self.folder, self.facts, self.loaded)
            return make_stream_of(self.given.stream, context)
        if self.data.parts:
            return MixtureStream(
                self.data.parts, seed=recipe.run.seed, shuffle=recipe.data.shuffle, curriculum=recipe.data.curriculum
            )
        return EpochStream(prompts, seed=recipe.run.seed, shuffle=recipe.data.shuffle, epochs=recipe.data.epochs)

    def close(self) -> None:
        """End all parts, also those after one that cannot be ended."""
        self.closing.close()


def _check_here(recipe: Recipe, deployment: Deployment) -> None:
    """Refuse what this program and this machine lack, before anything is read or started."""
    if deployment.kind == "given":
        check_beside_engine(recipe)
    else:
        check_engine(recipe)
    if deployment.on_ray and deployment.learner_hosts:
        check_model_path(recipe.model.path)  # the devices are those of other machines
    else:
        check_model(recipe.model)


def _model_of(recipe: Recipe, deployment: Deployment, console: Console) -> tuple[LoadedModel | None, ModelFacts]:
    """Return the model, None if this process needs none, and its facts."""
    if not deployment.model_here:
        return None, make_facts(recipe, console)
    # A learner elsewhere sends its adapter merged into the weights.
    loaded = make_model(recipe if deployment.learner == "here" else without_adapter(recipe), console)
    return loaded, facts_of(loaded)


def _prepared(recipe: Recipe, tokenizer: Any, console: Console, training: bool) -> PreparedData:
    """The data; what became of each source, and the first prompt, are told. What is wrong with it, or too long for the
    model, is told before weights."""
    data = prepare(recipe.data, tokenizer)
    for line in [*data.report.lines(training=training), *(seen_lines(data.train[0], tokenizer) if training else ())]:
        console.say(line)
    for warning in unknown_in_prompts(data, tokenizer) if training else ():
        console.warn(warning)
    if not is_builtin(recipe.model.path):
        check_fits(recipe, facts_without_weights(recipe.model, tokenizer), data, training=training)
    return data


def _verdict_lag(recipe: Recipe, scorer: Scorer) -> int:
    """Return the number of engine steps after which a verdict takes effect."""
    asked = recipe.algorithm.dynamic_sampling.verdict_lag
    if asked is not None:
        return asked
    return 0 if isinstance(scorer, MayBeQuick) and scorer.quick else WORKER_VERDICT_LAG


def _longest(recipe: Recipe, data: PreparedData) -> int:
    """Tokens of the longest sequence that the engine can be asked for."""
    prompts = [*data.train, *(prompt for prompts in data.validation.values() for prompt in prompts)]
    response = max(recipe.rollout.max_response_tokens, recipe.validation.max_response_tokens or 0)
    return max((len(prompt.token_ids) for prompt in prompts), default=1) + response
