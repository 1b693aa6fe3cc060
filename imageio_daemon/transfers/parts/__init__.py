# SPDX-License-Identifier: Apache-2.0
"""What a transfer is made of: its permission, connections, traffic, image, status and end."""
