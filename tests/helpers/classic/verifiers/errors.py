"""Errors of an episode."""


class Error(Exception):
    pass


class OverlongPromptError(Error):
    pass
