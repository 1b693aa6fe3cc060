# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a benchmark."""


class BenchmarkError(Exception):
    """A measurement cannot be made, for a reason that is worth one line."""
