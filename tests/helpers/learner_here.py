"""A learner of one process: in the tests' own, with its worker within reach, or behind a transport."""

from __future__ import annotations

from exchanges import by_folder
from inline_transport import InlineTransport

from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import LearnerHosts, WorkerHere
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.processes.transport import HostSpec


class LearnerHere(LearnerDriver):
    """A driver over one worker of this process, made of what its step takes."""

    def __init__(self, *args, weights=None, asynchronous=False, **named):
        self.worker = Worker(PolicyStep(*args, **named))
        self.loaded, self.step = self.worker.loaded, self.worker.step
        super().__init__(WorkerHere(self.worker), by_folder(weights), asynchronous=asynchronous)

    def watch_gradients(self):
        """Return what will hold the gradients of the next optimizer step, by parameter."""
        found, optimizer = {}, self.step.optimizer
        make_step = optimizer.step

        def step(rate):
            found.update({name: each.grad.clone() for name, each in self.loaded.model.named_parameters()})
            return make_step(rate)

        optimizer.step = step
        return found


def learner_apart(make, *args, weights, asynchronous=False):
    """A driver over the worker that ``make(*args)`` returns."""
    hosts = LearnerHosts(InlineTransport(), [HostSpec("learner", make, args)])
    return LearnerDriver(hosts, by_folder(weights), asynchronous=asynchronous)
