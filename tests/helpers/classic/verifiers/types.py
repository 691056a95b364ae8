"""Parts of a model's turn."""

from types import SimpleNamespace


class Usage(SimpleNamespace):
    pass


class ToolCall(SimpleNamespace):
    pass


class ResponseMessage(SimpleNamespace):
    pass


class Response(SimpleNamespace):
    pass
