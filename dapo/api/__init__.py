"""The package from Python: the names that ``import dapo`` gives, for the same actions as the command line."""
