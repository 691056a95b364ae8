"""The package from Python: what ``import dapo`` gives. The command line is the same rooms through another door."""
