"""Scripts that measure; ``python -m benchmarks.gpu`` from the repository's folder is one of them."""
