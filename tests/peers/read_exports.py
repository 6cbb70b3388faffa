"""What the real FiftyOne and Label Studio make of an audit's exports.

    python tests/peers/read_exports.py fiftyone FOLDER      # imports the samples, prints them as JSON
    python tests/peers/read_exports.py label-studio FOLDER  # checks page and tasks, prints annotated tasks

They need fiftyone, or label-studio-sdk, which the project's own environment must not have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def imported_samples(folder: Path) -> list[dict[str, Any]]:
    """Through the importer that `fo.Dataset.from_dir` uses: a dataset itself needs a MongoDB."""
    from fiftyone.utils.data.importers import LegacyFiftyOneDatasetImporter

    with LegacyFiftyOneDatasetImporter(str(folder)) as importer:
        return [
            {
                "filepath": sample.filepath,
                "tags": sample.tags,
                "verdict": sample.verdict.label,
                "confidence": sample.verdict.confidence,
                **{
                    name: sample[name]
                    for name in ("pair_id", "caption", "p_match", "rank", "proposals", "flag")
                },
            }
            for sample in importer
        ]


def annotated_tasks(folder: Path) -> list[dict[str, Any]]:
    """The tasks with annotations as the SDK makes them for the page: keep, drop, accept, edit in turn."""
    from label_studio_sdk.label_interface import LabelInterface

    page = LabelInterface((folder / "labeling.xml").read_text(encoding="utf-8"))
    page.validate()
    tasks = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    decision, caption = page.get_control("decision"), page.get_control("caption")
    for number, task in enumerate(tasks):
        shown = {"data": task["data"]}  # with predictions the SDK's own check of tasks fails
        if not page.validate_task(shown) or not all(map(page.validate_prediction, task["predictions"])):
            raise SystemExit(f"task {number} does not fit the page")
        action = ("keep", "drop", "accept", "edit")[number % 4]
        if action == "accept" and not task["data"]["proposals"]:
            action = "keep"
        regions = [decision.label(label=action)]
        if action == "edit":
            regions.append(caption.label(text=[f"written anew & <b>{number}</b>"]))
        annotation = {"result": [region._dict() for region in regions]}
        if not page.validate_annotation(annotation):
            raise SystemExit(f"annotation {number} does not fit the page")
        task |= {"id": number, "annotations": [{"id": number, "was_cancelled": False, **annotation}]}
    return tasks


def main() -> None:
    tool, folder = sys.argv[1], Path(sys.argv[2])
    print(json.dumps((imported_samples if tool == "fiftyone" else annotated_tasks)(folder)))


if __name__ == "__main__":
    main()
