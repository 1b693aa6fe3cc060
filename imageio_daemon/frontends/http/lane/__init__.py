# SPDX-License-Identifier: Apache-2.0
"""The handover of a connection to a lane, and what has to hold for it."""
