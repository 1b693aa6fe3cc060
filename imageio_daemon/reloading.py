# SPDX-License-Identifier: Apache-2.0
"""A reload of the configuration: options that can change while the daemon runs do, and others are named in the log."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from .config.config import SECTIONS, Config
from .config.options import describe
from .errors import ConfigError
from .service import logs

log = logging.getLogger(__name__)


class _Change(NamedTuple):
    """An option that has another value in the files."""

    section: str
    name: str
    value: Any
    shown: object


class Reloading:
    """Follow changes of the configuration. Used on one loop.

    config: what the daemon was started with. load: reads the files; raises ConfigError; called in a thread. apply: by
    section and name, what changes an option of the running daemon to a value. within: makes the context of a reload.
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
        #: What the daemon runs with.
        self.config = config

    def want(self) -> None:
        """Let run() reload the configuration."""
        self._wanted.set()

    async def run(self) -> None:
        """Reload the configuration each time that it is wanted, until the task is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            with self._within():
                await self.reload()

    async def reload(self) -> None:
        """Read the files and change what can be changed. If they are invalid, nothing changes, and the log says why."""
        try:
            loaded = await asyncio.to_thread(self._load)
        except ConfigError as e:
            log.error("the configuration is not reloaded: %s", e)
            return
        for change in _changes(self.config, loaded):
            option = f"[{change.section}] {change.name}"
            apply = self._apply.get((change.section, change.name))
            if apply is None:
                log.warning("%s changes at the next start", option)
                continue
            apply(change.value)
            section = dataclasses.replace(getattr(self.config, change.section), **{change.name: change.value})
            self.config = dataclasses.replace(self.config, **{change.section: section})
            log.info("option changed", extra=logs.fields(option=option, value=change.shown))


def _changes(before: Config, after: Config) -> Iterator[_Change]:
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            value = getattr(getattr(after, section), field.name)
            if value != getattr(getattr(before, section), field.name):
                yield _Change(section, field.name, value, describe(field).show(value))
