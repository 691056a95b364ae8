"""Verifiers: rules that score a response, and the scorer that runs them without trusting them.

``build_scorer`` and ``CompositeScorer`` come from ``dapo.rewards.compose``. Nothing is imported here, because worker
processes pass through this file and would pay for the recipe's schema.
"""
