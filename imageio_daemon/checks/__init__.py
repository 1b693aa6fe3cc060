# SPDX-License-Identifier: Apache-2.0
"""What the service needs of its host, checked as the user that it runs as, before it is started."""
