# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl check`: whether the host has what the service needs, and whether the daemon serves."""

import argparse
import json
import subprocess
import sys
from typing import Any

from . import output
from .service import ControlError, ControlService, Unreachable


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Print a line for each check. Raises ControlError if one has failed."""
    findings = [*_of_host(options), _of_daemon(service, wanted=options.ready)]
    if options.json:
        for finding in findings:
            output.json_line(finding)
    else:
        rows = [(finding["verdict"], finding["check"], finding["text"]) for finding in findings]
        print("\n".join(output.table(("VERDICT", "CHECK", ""), rows, left=("CHECK", ""))))
    if wrong := [finding["check"] for finding in findings if finding["verdict"] == "failed"]:
        raise ControlError(f"failed: {', '.join(wrong)}")


def _of_host(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the daemon's checks in another process: they change to the daemon's user and import its modules."""
    command = [sys.executable, "-m", "imageio_daemon.checks", options.conf_dir, *options.paths]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    if done.returncode:
        raise ControlError("the checks of the daemon do not run")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _of_daemon(service: ControlService, *, wanted: bool) -> dict[str, Any]:
    try:
        ready, text = service.ready()
    except Unreachable as e:
        return _finding("failed" if wanted else "warning", str(e))
    return _finding("ok" if ready else "failed", "it is ready" if ready else "; ".join(text.splitlines()))


def _finding(verdict: str, text: str) -> dict[str, Any]:
    return {"check": "daemon", "verdict": verdict, "text": text}
