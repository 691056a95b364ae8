"""How fast products are: the least of three tries, and nothing left changed."""

import torch

from dapo.models import precision
from dapo.models.precision import PRECISIONS, product_rate, product_seconds


def test_the_quickest_of_three_tries_counts(monkeypatch):
    clock = [0.0]
    takes = iter([9.0, 0.5, 0.5, *[0.25] * 4, 1.0])  # the first product is a warm-up

    def product(left, right):
        clock[0] += next(takes)

    monkeypatch.setattr(precision.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(precision.torch, "mm", product)
    assert product_seconds(lambda: (torch.ones(1, 1), torch.ones(1, 1)), spend=1.0) == 0.25
    assert next(takes, None) is None


def test_measuring_leaves_threads_and_precision_as_they_were():
    threads = torch.get_num_threads()
    torch.set_float32_matmul_precision("high")
    try:
        rates = {name: product_rate(name, 16, 32, rows=4) for name in PRECISIONS}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.get_num_threads() == threads
    assert rates.keys() == PRECISIONS.keys()
    assert all(rate > 0 for rate in rates.values())
