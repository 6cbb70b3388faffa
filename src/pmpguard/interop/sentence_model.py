"""Models as modules of sentence-transformers: one vector a text or image, or one a word and region.

Imported only where sentence-transformers is installed (the extra of that name).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import InputModule
from torch import Tensor

import pmpguard
from pmpguard.models.inputs import square_pixels
from pmpguard.models.retriever import Retriever


class RetrieverModule(InputModule):  # type: ignore[misc]
    """Texts are strings; images are PIL images, arrays or tensors. Both come out in one space."""

    save_in_root = False

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.retriever = retriever

    @property
    def modalities(self) -> list[str]:
        return ["text", "image"]

    @property
    def max_seq_length(self) -> int:
        """Tokens of a text that are read."""
        return self.retriever.config.max_tokens

    def get_embedding_dimension(self) -> int:
        return self.retriever.config.dim

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **options: Any) -> dict[str, Any]:
        """Ids and mask of texts, or pixels of images; a batch holds one kind."""
        if all(isinstance(each, str) for each in inputs):
            ids, mask = self.retriever.tokenize([(prompt or "") + text for text in inputs])
            return {"input_ids": ids, "attention_mask": mask.long()}
        size = self.retriever.config.input_size
        return {"pixel_values": square_pixels(list(inputs), size, framing=self.retriever.framing)}

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Adds `sentence_embedding` (N, d), `token_embeddings` (N, n, d) and the mask of the latter."""
        if "pixel_values" in features:
            pixels: Tensor = features["pixel_values"]
            if pixels.is_floating_point():
                pixels = self.retriever.normalise(255 * pixels)
            encoded = self.retriever.forward_images(pixels)
        else:
            encoded = self.retriever.forward_texts(features["input_ids"], features["attention_mask"] > 0)
        return features | {
            "sentence_embedding": encoded.pooled,
            "token_embeddings": encoded.fragments,
            "attention_mask": encoded.mask.long(),
        }

    def save(self, output_path: str, *given: Any, **options: Any) -> None:
        """Write the model directory that `pmpguard.load` reads."""
        self.retriever.save(output_path)

    @classmethod
    def load(
        cls, model_name_or_path: str, subfolder: str = "", token: Any = None, cache_folder: str | None = None,
        revision: str | None = None, local_files_only: bool = False, **options: Any,
    ) -> RetrieverModule:  # fmt: skip
        folder = cls.load_dir_path(
            model_name_or_path, subfolder, token, cache_folder, revision, local_files_only
        )
        return cls(Retriever.load(folder))


def sentence_transformer(path: str | Path, **options: Any) -> Any:
    """A `SentenceTransformer` whose vectors are `encode_query`'s and `encode_document`'s."""
    return SentenceTransformer(modules=[RetrieverModule(pmpguard.load(path))], **options)


def multi_vector_encoder(path: str | Path, **options: Any) -> Any:
    """A `MultiVectorEncoder` of words and regions; its MaxSim is theirs, not this package's score."""
    return MultiVectorEncoder(modules=[RetrieverModule(pmpguard.load(path))], **options)
