# SPDX-License-Identifier: Apache-2.0
"""Local images: sources of uploads and targets of downloads. opening.py and choosing.py import most when it is used."""
