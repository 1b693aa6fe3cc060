# SPDX-License-Identifier: Apache-2.0
"""Requests that are passed on to another server of the images API, and its answers (ADR 52).

The requests are made anew from what this server has parsed and authorised: fields that are not known do not go on, so
two parsers cannot take one request for two. Bodies go on as they are.
"""
