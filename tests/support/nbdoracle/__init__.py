# SPDX-License-Identifier: Apache-2.0
"""NBD's transmission phase in Python, for comparison with C: simple, slow and independent of it."""
