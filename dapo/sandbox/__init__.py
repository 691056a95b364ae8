"""Run programs that a model wrote. The server imports this package, so the package itself imports nothing."""
