# SPDX-License-Identifier: Apache-2.0
"""NBD's transmission phase in Python, for comparison with what C does: simple, slow, and written by itself."""
