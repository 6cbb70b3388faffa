"""The README.md of a saved model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pmpguard
from pmpguard.config import to_dict

if TYPE_CHECKING:
    from pmpguard.models.retriever import Retriever


def model_card(model: Retriever, notes: str = "") -> str:
    """What the model is, how to use it, its settings, and whatever the training run has to say."""
    config = model.config
    count = sum(parameter.numel() for parameter in model.parameters())
    side = model.image_encoder.grid
    card = f"""# Image–text retriever for remote-sensing imagery

Written by pmpguard {pmpguard.__version__}. Captions and images become unit vectors of dimension
{config.dim}, one per item and one per fragment (image region or word piece); pairs are ranked by
`{config.ranking}`.

| | |
|---|---|
| vision encoder | {config.vision}, {config.input_size} px, {side} x {side} regions |
| text encoder | {config.text}, at most {config.max_tokens} tokens |
| parameters | {count:,} |
| boundary at test | {float(model.boundary.value(train=False)):.4f} ({config.awareness.at_test}) |
| temperature | {model.temperature.item():.4f} |

## Use

```python
import pmpguard

model = pmpguard.load("path/to/this/directory")
texts = model.encode_texts(["a round pond beside a farm"])
images = model.encode_images(["scene.png"])
print(model.score(texts, images))  # (texts, images)
print(model.explain("a round pond", "scene.png").as_text())
```

## Settings

```json
{json.dumps(to_dict(config), indent=2)}
```
"""
    return f"{card}\n{notes.strip()}\n" if notes.strip() else card
