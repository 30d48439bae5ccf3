"""Something that can be asked, for crews whose members are processes: they have to find it by its module.

As a program it hires one on Ray, prints the number of its process, and waits to be killed.
"""

import functools
import os
import time

import numpy as np

from boonta.core.crew import Resources
from boonta.core.faults import Broken


class Counter:
    def __init__(self, start):
        self.count = start

    def add(self, n):
        self.count += n
        return self.count

    def both(self):
        return np.arange(100_000), self.count

    def length(self, array):
        return len(array)

    def fail(self):
        raise Broken("no more")

    def die(self):
        os._exit(3)

    def sleep(self, seconds=3600):
        time.sleep(seconds)

    def ready(self):
        pass

    def number(self):
        return os.getpid()


def main():
    from boonta.transport.ray import Cluster

    crew = Cluster("", 1)
    member = crew.hire("counter", functools.partial(Counter, 0), Resources(0.5))
    print(crew.get(crew.ask(member, "number"), 300.0), flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    from tests.counter import Counter

    main()
