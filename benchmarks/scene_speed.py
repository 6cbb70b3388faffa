"""How many scenes of the synthetic scenes one core makes in a second.

    python benchmarks/scene_speed.py [--count 1000] [--sizes 64 128 224]

Truth, image and five captions are counted; the best of a few rounds is reported, with all rounds beside it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from pmpguard.files import write_json
from pmpguard.synthetic.captions import describe_scene
from pmpguard.synthetic.drawing.render import render_scene
from pmpguard.synthetic.layout import draw_scene

RESULT = Path(__file__).parent / "results" / "scene_speed.json"
TARGET = 200.0  # scenes per second at 64 px


def measure(count: int, size: int, rounds: int) -> dict[str, Any]:
    """Seconds per round, and the rates they mean."""
    render_scene(draw_scene(0, 0), size)  # the noise tiles of this size are made once
    wall, cpu = [], []
    for turn in range(rounds):
        started, worked = time.perf_counter(), time.process_time()
        for index in range(turn * count, (turn + 1) * count):
            scene = draw_scene(1, index)
            render_scene(scene, size)
            describe_scene(scene)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - worked)
    return {
        "size": size,
        "scenes": count,
        "seconds": [round(value, 3) for value in wall],
        "cpu_seconds": [round(value, 3) for value in cpu],
        "scenes_per_second": round(count / min(wall), 1),
        "scenes_per_cpu_second": round(count / min(cpu), 1),
    }


def commit() -> str | None:
    """The checked-out commit; None outside a repository or before the first commit."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return answer.stdout.strip() if answer.returncode == 0 else None


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 224])
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        rows.append(measure(options.count if size <= 64 else options.count // 4, size, options.rounds))
        wall, cpu = rows[-1]["scenes_per_second"], rows[-1]["scenes_per_cpu_second"]
        print(f"{size:4d} px: {wall:7.1f} scenes/s ({cpu} per CPU second)")
    result = {
        "commit": commit(),
        "hardware": {"processor": processor(), "cores": os.cpu_count(), "cores_used": 1},
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "target_scenes_per_second_at_64_px": TARGET,
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output, result)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
