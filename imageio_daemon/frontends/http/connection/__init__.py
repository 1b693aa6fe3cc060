# SPDX-License-Identifier: Apache-2.0
"""A connection from its acceptance to its end: its bytes, which request is next, and who serves it."""
