# SPDX-License-Identifier: Apache-2.0
"""What was configured and is not in force: the one place that readiness, status line, metrics and log ask (ADR 49).

A daemon that goes on without a feature is degraded until the feature is in force again. Features that nobody has
configured are not here: what the host lacks for them is told where it matters.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from . import logs

log = logging.getLogger(__name__)


class Feature(StrEnum):
    """What may be configured and not in force. The names are those of `/readyz` and of the metric's label."""

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


#: Tells in some words why a feature is not in force; "": it is, or it is not configured. Called often:
#: it does not block. The words come to everybody who may ask for readiness: no paths, no ids, no addresses.
Why: TypeAlias = Callable[[], str]


class Degraded:
    """The features, each with what tells why it is not in force."""

    def __init__(self) -> None:
        self._whys: dict[Feature, Why] = {}
        self._told: dict[Feature, str] = {}

    def watch(self, feature: Feature, why: Why) -> None:
        """Ask for this feature from now on."""
        self._whys[feature] = why

    def reasons(self) -> dict[Feature, str]:
        """Return all features, each with the reason why it is not in force, or ""."""
        return {feature: self._whys[feature]() if feature in self._whys else "" for feature in Feature}

    def summary(self) -> str:
        """Return what is not in force, for people, on one line; "" if all is."""
        return ", ".join(f"{feature}: {why}" for feature, why in self.reasons().items() if why)

    def look(self) -> None:
        """Log what is not in force since the last call, or is again."""
        for feature, why in self.reasons().items():
            before = self._told.get(feature, "")
            self._told[feature] = why
            if why and why != before:
                log.warning("not in force", extra=logs.fields(feature=feature, reason=why))
            elif before and not why:
                log.info("in force again", extra=logs.fields(feature=feature))
