"""dapo: a trainer for language models with the DAPO recipe on tasks whose answers a program can check."""

__version__ = "0.1.0"
