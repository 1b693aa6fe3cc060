# SPDX-License-Identifier: Apache-2.0
"""Checks before the start of the service that the host has what it needs, made as the user of the service."""
