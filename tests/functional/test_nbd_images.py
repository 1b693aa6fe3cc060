# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401 - what is imported are tests, which run here,, with the fixtures of this module
"""The tests of the images API whose outcome storage decides, on images that qemu-nbd has."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.functional.test_checksum import (
    test_a_hole_counts_as_zeros,
    test_block_sizes,
    test_by_default_it_is_blake2b_over_blocks_of_4_mib,
)
from tests.functional.test_extents import (
    sparse_image,
    test_a_file_has_no_dirty_extents,
    test_a_long_list_is_in_order_and_without_gaps,
    test_an_empty_disk_is_one_extent,
    test_an_image_of_data_is_one_extent,
    test_an_image_without_bytes_has_no_extents,
    test_holes_of_a_file_are_zero_extents,
    test_they_end_with_the_ticket,
    test_they_tell_what_this_connection_has_just_written_and_zeroed,
)
from tests.functional.test_get import (
    test_a_range,
    test_a_range_outside_of_the_image,
    test_a_ticket_smaller_than_the_image_serves_what_the_ticket_has,
    test_an_empty_image,
    test_an_image_of_many_buffers,
    test_head_is_get_without_the_body,
    test_the_whole_image,
)
from tests.functional.test_options import test_a_writable_image_offers_everything
from tests.functional.test_patch import (
    test_flush,
    test_zero_makes_a_range_read_as_zeros,
    test_zero_of_8_tib_is_quick,
    test_zero_of_a_sparse_ticket_gives_the_space_back,
    test_zero_outside_of_the_ticket,
    test_zero_with_flush,
)
from tests.functional.test_put import (
    test_a_body_is_written_where_its_range_begins,
    test_a_body_of_many_buffers,
    test_a_range_outside_of_the_ticket_writes_nothing,
    test_a_ticket_smaller_than_the_image_protects_the_rest,
    test_a_whole_image,
    test_an_empty_body_is_fine,
    test_writing_and_reading_on_many_connections,
)
from tests.support.daemon import Certificates, Daemon
from tests.support.images import Image, MakeImage, make_image
from tests.support.nbdservers import qemu_nbd
from tests.support.services import Service


@pytest.fixture(scope="module")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """One lane is enough: what differs from other images lies below them."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture
def service(daemon: Daemon) -> Service:
    return Service(daemon, "unix")


@pytest.fixture
def new_image(tmp_path: Path, daemon: Daemon) -> Iterator[MakeImage]:
    """Make images as the other tests have them, each with a server of its own."""
    make = make_image(daemon, tmp_path)
    with ExitStack() as cleanup:

        def make_and_serve(*arguments: Any, **fields: Any) -> Image:
            image = make(*arguments, **fields)
            ticket = daemon.status(image.ticket)
            server = cleanup.enter_context(qemu_nbd(image.path, "raw"))
            fields = {name: value for name, value in fields.items() if name in ticket and name != "size"}
            daemon.add_ticket(image.path, ticket["size"], **{**fields, "uuid": image.ticket, "url": server.url})
            cleanup.callback(daemon.remove, image.ticket)
            return image

        yield make_and_serve
