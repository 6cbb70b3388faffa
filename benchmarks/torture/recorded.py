"""One command in a process of its own: `python -m torture.recorded NAME ARTEFACTS PLACE`."""

from __future__ import annotations

import sys
from pathlib import Path

from torture.artefacts import Artefacts
from torture.commands import COMMANDS

if __name__ == "__main__":
    name, artefacts, place = sys.argv[1:]
    (command,) = [command for command in COMMANDS if command.name == name]
    command.run(Artefacts(Path(artefacts)), Path(place))
