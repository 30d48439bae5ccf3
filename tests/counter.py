"""Something that can be asked, for crews whose members are processes: they have to find it by its module."""

import os
import time

import numpy as np

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
