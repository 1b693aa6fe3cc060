# SPDX-License-Identifier: Apache-2.0
"""A reload of the configuration. It changes the options that can change while the daemon runs, and logs the others."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..config.config import SECTIONS, Config
from ..config.options import describe
from ..errors import ConfigError
from ..net.connection_limits import ConnectionLimits
from ..runtime import logs
from ..runtime.logs import LogLevel
from ..transfers.rate_limits import RateLimits
from ..transfers.store import TransferStore

log = logging.getLogger(__name__)


class Reloading:
    """Follow changes of the configuration.

    `config` is what the daemon was started with. `load` reads the files, in a thread, and may raise ConfigError.
    `apply` has, for section and name of an option, a function that changes the running daemon. Each reload is done
    inside the context that `within` returns.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        apply: Mapping[tuple[str, str], Callable[[Any], None]],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._within = within
        self._load = load
        self._apply = apply
        self._wanted = asyncio.Event()
        #: The configuration in force.
        self.config = config
        self._why = ""

    def why_not(self) -> str:
        """Return why the files of the last reload are not in force, or "" if they are."""
        return self._why

    def want(self) -> None:
        """Ask run() to reload the configuration."""
        self._wanted.set()

    async def run(self) -> None:
        """Reload the configuration after each want(), until the task is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            with self._within():
                await self.reload()

    async def reload(self) -> None:
        """Read the files, and change the options that can change. Invalid files change nothing, and are logged."""
        try:
            loaded = await asyncio.to_thread(self._load)
        except ConfigError as e:
            log.error("the configuration is not reloaded: %s", e)
            self._why = "the files are not valid, the configuration from before stays in force"
            return
        waiting = []
        for section, field in _changed(self.config, loaded):
            option, value = f"[{section}] {field.name}", getattr(getattr(loaded, section), field.name)
            apply = self._apply.get((section, field.name))
            if apply is None:
                log.warning("%s changes at the next start", option)
                waiting.append(option)
                continue
            apply(value)
            changed = dataclasses.replace(getattr(self.config, section), **{field.name: value})
            self.config = dataclasses.replace(self.config, **{section: changed})
            log.info("option changed", extra=logs.fields(option=option, value=describe(field).show(value)))
        self._why = f"the next start changes {', '.join(waiting)}" if waiting else ""


def changeable(
    log_level: LogLevel, limits: RateLimits, store: TransferStore, connections: ConnectionLimits
) -> dict[tuple[str, str], Callable[[Any], None]]:
    """Return the functions that change options of a running daemon, by section and name."""
    return {
        ("log", "level"): log_level.configure,
        ("daemon", "max_tickets"): lambda most: setattr(store, "most_tickets", most),
        ("daemon", "max_total_connections"): lambda most: setattr(connections.http, "most", most),
        ("daemon", "shutdown_timeout"): lambda _: None,  # read from Reloading.config at the end
        ("limits", "transfers"): lambda most: setattr(store.at_work, "most", most),
        ("limits", "rate"): limits.set_rate,
        ("limits", "tenant_rate"): limits.set_tenant_rate,
        ("limits", "tenants"): lambda rates: limits.set_tenants(dict(rates)),
        ("nbd", "max_connections"): lambda most: setattr(connections.nbd, "most", most),
    }


def _changed(before: Config, after: Config) -> "Iterator[tuple[str, dataclasses.Field[Any]]]":
    """Yield the options that have another value, each with its section."""
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            if getattr(getattr(after, section), field.name) != getattr(getattr(before, section), field.name):
                yield section, field
