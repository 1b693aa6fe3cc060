# SPDX-License-Identifier: Apache-2.0
"""Tickets in use. TransferStore.authorize() (store.py) decides whether a request may use a ticket's image.

ticket: what a ticket may say. permission: whether it is valid now. transfer: what runs. image: opening and closing.
end, ending: what happens after a cancellation.
"""
