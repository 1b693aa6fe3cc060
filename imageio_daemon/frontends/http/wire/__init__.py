# SPDX-License-Identifier: Apache-2.0
"""The bytes of a connection: its transport, the framing of requests, and what a client sends before it is read."""
