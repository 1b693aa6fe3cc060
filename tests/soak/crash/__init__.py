# SPDX-License-Identifier: Apache-2.0
"""The daemon killed at any system call: its record of durable ranges never tells more than the image has."""
