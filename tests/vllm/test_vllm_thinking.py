"""A thinking budget over vLLM in this process: closed by force, marked, and answered as the embedded engine does."""

from __future__ import annotations

import pytest
from thinking_parts import check_thinking

pytestmark = pytest.mark.vllm


def test_what_is_not_closed_in_time_is_closed_and_goes_on(engine, plain):
    check_thinking(engine, plain, engine.version, 2e-5)
