# SPDX-License-Identifier: Apache-2.0
"""Features that are configured and not in force. Readiness, status line, metrics and log all ask here (ADR 49).

A daemon that goes on without a feature is degraded until the feature is in force again. Features that are not
configured are not here. Other code says what the host lacks for them, where it matters.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from . import logs

log = logging.getLogger(__name__)


class Feature(StrEnum):
    """Features that may be configured and not in force. The values are names in `/readyz`, and labels of the metric."""

    STATE_DIR = "state_dir"
    TICKETS = "tickets"
    EVENTS = "events"
    DURABLE = "durable"
    CERTIFICATE = "certificate"
    CONFIGURATION = "configuration"
    SOCKETS = "sockets"
    SERVICE_MANAGER = "service_manager"
    FORMATS = "formats"
    CEPH = "ceph"


#: Returns in some words why a feature is not in force, or "" if it is, or if it is not configured. It is called often,
#: so it must not block. All clients that may ask for readiness see the words, so they have no paths, ids or addresses.
Why: TypeAlias = Callable[[], str]


class Degraded:
    """The features, each with a function that says why it is not in force."""

    def __init__(self) -> None:
        self._whys: dict[Feature, Why] = {}
        self._told: dict[Feature, str] = {}

    def watch(self, feature: Feature, why: Why) -> None:
        """Include a feature from now on, and ask `why` about it."""
        self._whys[feature] = why

    def reasons(self) -> dict[Feature, str]:
        """Return all features, each with the reason why it is not in force, or ""."""
        return {feature: self._whys[feature]() if feature in self._whys else "" for feature in Feature}

    def summary(self) -> str:
        """Return a line that names the features that are not in force, or "" if all are."""
        return ", ".join(f"{feature}: {why}" for feature, why in self.reasons().items() if why)

    def look(self) -> None:
        """Log features that have gone out of force since the last call, or are in force again."""
        for feature, why in self.reasons().items():
            before = self._told.get(feature, "")
            self._told[feature] = why
            if why and why != before:
                log.warning("not in force", extra=logs.fields(feature=feature, reason=why))
            elif before and not why:
                log.info("in force again", extra=logs.fields(feature=feature))
