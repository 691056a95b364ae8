"""Episodes of several turns over vLLM: what trains is what it sampled."""

from __future__ import annotations

import pytest
from test_run_environment import assert_recomputed, playing

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]


def test_a_plain_forward_pass_gives_the_log_probabilities_of_all_model_tokens(tmp_path):
    vllm = ("rollout.engine=vllm", "rollout.vllm.kv_cache_mib=64")
    with playing(tmp_path, *vllm, heads=2) as (_, learner, groups):
        assert_recomputed(learner, groups)
