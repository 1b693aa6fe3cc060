# SPDX-License-Identifier: Apache-2.0
"""An update: the blocks of both sides are compared, and those that differ are sent meanwhile."""

from collections.abc import Callable

from ...image.ranges import RangeSet
from ..server.image import RemoteImage
from .equality import Equality
from .plan import Unit, data_left, parts_left
from .record import new_ranges
from .sender import Sending


def send_what_differs(equality: Equality, sending: Sending) -> None:
    """Make the target read as the source. A block is sent by the thread that has found it different, at once.

    So the link is used while both sides hash: 1 % of an image goes in a tenth of the time that they need.
    Raises ClientError.
    """
    counter = sending.counter

    def then(image: RemoteImage, buffer: memoryview) -> Callable[[Unit, RangeSet], None]:
        send = sending.worker(image, buffer)

        def send_rest(unit: Unit, equal: RangeSet) -> None:
            counter.add(resumed=equal.size())
            # What is equal is the content, wherever the server has it: the next flush confirms it, too.
            for start, end in equal.pieces():
                sending.checkpoints.sent(image, start, end, image.restarts_before)
            for part in parts_left(unit, equal):
                counter.plan(data_left(part, equal))
                send(part)

        return send_rest

    equality.find(new_ranges([(0, sending.source.size)]), then)
    counter.plan(None)
