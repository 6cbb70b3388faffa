"""The result of checking a dataset, for people and for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pmpguard.config import to_dict
from pmpguard.safe_text import one_line

_SHOWN = 5  # items of a finding in the readable report


@dataclass(frozen=True)
class Item:
    """One case of a finding: the images or pair ids it concerns, and the detail."""

    where: tuple[str, ...]
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """All cases of one kind. A problem makes results wrong or a run fail, a note is worth knowing."""

    kind: str
    severity: Literal["problem", "note"]
    summary: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class CheckReport:
    """The verdict on a dataset; `exit_code` is 1 when there is a problem."""

    name: str
    pairs: dict[str, int]  # per split
    images: dict[str, int]  # per split
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0

    def as_dict(self) -> dict[str, Any]:
        return {**to_dict(self), "ok": not self.problems}

    def as_text(self) -> str:
        lines = [self.name, f"  {'split':<12}{'pairs':>12}{'images':>12}"]
        lines += [f"  {split:<12}{self.pairs[split]:>12,}{self.images[split]:>12,}" for split in self.pairs]
        for finding in self.findings:
            lines += ["", f"{finding.severity.upper()}: {finding.summary}"]
            for item in finding.items[:_SHOWN]:
                lines.append(
                    f"  {' = '.join(map(one_line, item.where))}" + (f": {item.detail}" if item.detail else "")
                )
            if len(finding.items) > _SHOWN:
                lines.append(f"  ... and {len(finding.items) - _SHOWN:,} more (all with --json)")
        return "\n".join([*lines, "", f"problems: {len(self.problems) or 'none'}"])
