# SPDX-License-Identifier: Apache-2.0
"""Images over NBD: each ticket is an export, and its id the export's name."""
