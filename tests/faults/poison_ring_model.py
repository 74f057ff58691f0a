"""A model that counts in a ring, in which one record is poison.

Arguments: those of ``counting_ring_model.py``, then those of ``poison.py``.
"""

import counting_ring_model
from poison import swallow

loss, optimizer = counting_ring_model.loss, counting_ring_model.optimizer


class Count(counting_ring_model.Count):
    def forward(self, numbers):
        swallow(numbers.tolist(), "forward")
        return super().forward(numbers)


def model():
    return Count()


def feed(records, mode, metadata):
    numbers, labels = counting_ring_model.feed(records, mode, metadata)
    swallow(numbers.tolist(), "feed")
    return numbers, labels
