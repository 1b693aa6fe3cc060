# SPDX-License-Identifier: Apache-2.0
"""Requests that the daemon passes on to another server of the images API, and its answers (ADR 52).

The daemon writes a new request from the values that it has parsed and authorised. It leaves unknown fields out, so two
parsers cannot take one request for two. It passes bodies on unchanged.
"""
