"""The command line. Heavy imports stand inside functions, so that help and refusals come at once."""
