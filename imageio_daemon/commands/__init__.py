# SPDX-License-Identifier: Apache-2.0
"""What all commands share: amounts, printable text, standard streams, completion in shells."""
