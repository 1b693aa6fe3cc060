# SPDX-License-Identifier: Apache-2.0
"""What a transfer is made of. Only transfer.py and the store use these modules."""
