"""Verifiers: rules that score a response, and the scorer that runs them without trusting them."""

from dapo.rewards.compose import CompositeScorer, build_scorer

__all__ = ["CompositeScorer", "build_scorer"]
