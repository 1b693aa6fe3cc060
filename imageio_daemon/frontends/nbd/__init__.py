# SPDX-License-Identifier: Apache-2.0
"""Images over NBD: each ticket is an export, and the ticket id is the export's name."""
