# SPDX-License-Identifier: Apache-2.0
"""Images over NBD: every ticket is an export, named by its id."""
