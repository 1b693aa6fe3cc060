# SPDX-License-Identifier: Apache-2.0
"""Check the order of the C extension.

Rooms include downward only, its files call each other in no circle, and a function's name is in one file only.

The only argument is the directory of the extension, ``ioutil_ext`` without one. What files call is found by name, as
far as the style of the sources goes: functions that are not static begin a line.
"""

import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

EXTENSION = Path(__file__).resolve().parents[1] / "ioutil_ext"

#: From the lowest to the highest. Rooms of one row know nothing of each other.
ROOMS = (
    ("api",),
    ("base",),
    ("content", "tls", "durable", "quota"),
    ("image",),
    ("nbd_client",),
    ("qcow2",),
    ("engine",),
    ("lane",),
    ("http", "nbd"),
)

_HEIGHT = {room: height for height, row in enumerate(ROOMS) for room in row}
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"')
_NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|" + r'"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DEFINITION = re.compile(r"^(?!static\b|typedef\b)[a-z_][\w *]*?[ *](\w+)\([^;{}]*\) \{", re.MULTILINE)
_FUNCTION = re.compile(r"^(?!typedef\b)[a-z_][\w *]*?[ *](\w+)\([^;{}]*\) \{", re.MULTILINE)  # static or not
_STATIC = re.compile(r"^static\b[^;=(]*?(\w+)\(", re.MULTILINE)
_WORD = re.compile(r"(?<![.>\w])\w+")


def mistakes(extension: Path) -> Iterator[str]:
    """Yield a line for each file in no room, include that is not allowed, circle of calls, and name in two files."""
    for path in _files(extension):
        place = path.relative_to(extension)
        if len(place.parts) != 2 or place.parts[0] not in _HEIGHT:
            yield f"{path}: stands in no room"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (include := _INCLUDE.match(line)) and (mistake := _mistake(extension, place.parts[0], include[1])):
                yield f"{path}:{number}: {mistake}"
    if circle := _circle(extension):
        yield "a circle of calls: " + " -> ".join(str(path.relative_to(extension)) for path in circle)
    for name, paths in sorted(_functions(extension).items()):
        if len(paths) > 1:
            yield f"{name}() is in {' and '.join(sorted(str(path.relative_to(extension)) for path in paths))}"


def _files(extension: Path) -> list[Path]:
    return sorted(path for path in extension.rglob("*.[ch]") if path.name != "_ioutil.c")  # which cffi generates


def _mistake(extension: Path, room: str, included: str) -> str | None:
    other = included.partition("/")[0]
    if not (extension / included).is_file() or other not in _HEIGHT:
        return f'"{included}" is no header of a room: includes are written as "room/file.h"'
    if other != room and _HEIGHT[other] >= _HEIGHT[room]:
        return f"{room} includes {included}, and {other} is not below it"
    return None


def _functions(extension: Path) -> dict[str, set[Path]]:
    """Return the files that define a function, by its name."""
    found: dict[str, set[Path]] = {}
    for path in _files(extension):
        for name in _FUNCTION.findall(_NO_CODE.sub("", path.read_text())):
            found.setdefault(name, set()).add(path)
    return found


def _circle(extension: Path) -> list[Path]:
    """Return files that call each other in a circle, each the one behind it; empty if there are none."""
    code = {path: _NO_CODE.sub("", path.read_text()) for path in _files(extension) if path.suffix == ".c"}
    defined = {name: path for path, text in code.items() for name in _DEFINITION.findall(text)}
    calls = {
        path: {defined[name] for name in {*_WORD.findall(text)} - {*_STATIC.findall(text)} if name in defined} - {path}
        for path, text in code.items()
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        circle: list[Path] = error.args[1]
        return circle[::-1]
    return []


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    found = list(mistakes(Path(sys.argv[1]) if len(sys.argv) > 1 else EXTENSION))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
