"""Label Studio: pairs as tasks, the page they are looked at on, and what was decided there.

`pmpguard clean --decisions` takes the tasks back as Label Studio exports them ("JSON").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pmpguard.audit.rows import AuditRow
from pmpguard.errors import DataError

DECISION, CAPTION = "decision", "caption"  # names of what is asked

LABELING = f"""<View>
  <Image name="image" value="$image" zoom="true"/>
  <Header value="$caption"/>
  <Text name="text" value="$details"/>
  <Choices name="{DECISION}" toName="image" choice="single" required="true" showInline="true">
    <Choice value="keep" hint="the caption matches the image"/>
    <Choice value="drop" hint="remove the pair"/>
    <Choice value="accept" hint="take the first proposed caption"/>
    <Choice value="edit" hint="write the caption below"/>
  </Choices>
  <TextArea name="{CAPTION}" toName="image" rows="2" maxSubmissions="1" editable="true"
    visibleWhen="choice-selected" whenTagName="{DECISION}" whenChoiceValue="edit"/>
</View>
"""


def task_of(row: AuditRow, url: str, fingerprint: str) -> dict[str, Any]:
    """One pair to be looked at, with what `clean` would do as a prediction."""
    offers = [f"{one.caption} ({one.p_match:.2f})" for one in row.proposals]
    notes = [f"p(match) {row.p_match:.3f}", *(["also: " + ", ".join(row.issues)] if row.issues else [])]
    details = "\n".join([*notes, *(f"proposed: {offer}" for offer in offers)])
    likely = {"from_name": DECISION, "to_name": "image", "type": "choices"}
    value = {"choices": ["drop" if row.flag else "keep"]}
    data: dict[str, Any] = {"image": url, "caption": row.caption, "details": details, "pair_id": row.pair_id}
    data |= {"proposals": [one.caption for one in row.proposals], "dataset": fingerprint}
    task: dict[str, Any] = {"data": data, "predictions": []}
    if not math.isnan(row.p_match):
        score = 1 - row.p_match if row.flag else row.p_match
        task["predictions"] = [
            {"model_version": "pmpguard", "score": score, "result": [likely | {"value": value}]}
        ]
    return task


def decisions_of_tasks(tasks: Sequence[Any], where: str, fingerprint: str) -> dict[str, Any]:
    """What annotators decided in Label Studio, as `decisions.json` has it; tasks without annotation stay out.

    Of several annotations of a task the newest counts, and those that were cancelled do not.
    """
    if not tasks:
        raise DataError(f"{where}: no decisions in it", fix="export the tasks that were looked at")
    decided: dict[str, Any] = {}
    for number, task in enumerate(tasks):
        place = f"{where} [{number}]"
        data = task.get("data") if isinstance(task, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(data.get("pair_id"), str):
            raise DataError(f"{place}: no task with a pair_id", fix="export the tasks as JSON, not JSON-MIN")
        if data.get("dataset") != fingerprint:
            raise DataError(
                f"{place}: about another dataset", fix="use the export of the tasks made from this report"
            )
        given = task.get("annotations")
        valid = [
            each
            for each in (given if isinstance(given, list) else [])
            if isinstance(each, Mapping) and not each.get("was_cancelled")
        ]
        if valid:
            newest = max(valid, key=lambda each: str(each.get("updated_at") or each.get("created_at") or ""))
            decided[data["pair_id"]] = _decision_of(newest.get("result"))
    return {"dataset": fingerprint, "decisions": decided}


def _decision_of(result: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in result if isinstance(result, list) else []:
        value = item.get("value") if isinstance(item, Mapping) else None
        for key in ("choices", "text"):
            texts = value.get(key) if isinstance(value, Mapping) else None
            texts = [texts] if isinstance(texts, str) else texts
            if isinstance(texts, list) and texts:
                values[str(item.get("from_name"))] = texts[0]
    action = values.get(DECISION)
    return {"action": action, "caption": values.get(CAPTION) if action == "edit" else None}
