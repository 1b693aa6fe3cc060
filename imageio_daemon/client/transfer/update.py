# SPDX-License-Identifier: Apache-2.0
"""An update: the blocks of both sides are compared, and those that differ are sent at the same time."""

from collections.abc import Callable

from ..server.remote_image import RemoteImage
from ..unflushed import new_ranges
from .equality import Equality
from .plan import Unit, data_left, parts_left
from .sender import Sending


def send_what_differs(equality: Equality, sending: Sending) -> None:
    """Make the target read as the source. A thread that finds a block different sends it at once. Raises ClientError.

    So the link is used while both sides hash. Sending 1 % of an image takes a tenth of the time of hashing all of it.
    """
    counter = sending.counter

    def worker(image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
        send = sending.worker(image, buffer)

        def compare_and_send(unit: Unit) -> None:
            equal = equality.compare(image, unit, buffer)
            counter.add(resumed=equal.size())
            # Equal blocks may be in the server's memory only. The next flush confirms them, too.
            for start, end in equal.pieces():
                sending.checkpoints.sent(image, start, end, image.restarts_before)
            for part in parts_left(unit, equal):
                counter.plan(data_left(part, equal))
                send(part)

        return compare_and_send

    equality.run(new_ranges([(0, sending.source.size)]), worker)
    counter.plan(None)
