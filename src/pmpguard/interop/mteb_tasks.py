"""Image–text retrieval on RSICD and UCM-Captions as tasks of MTEB, and our models as encoders of it.

Imported only where mteb is installed (the extra `mteb`): its classes are what these are made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Image
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from torch import Tensor

from pmpguard.data.formats import read_pairs
from pmpguard.models.retriever import Retriever

CITATIONS = {
    "RSICD": """
@article{lu2018exploring,
  author = {Lu, Xiaoqiang and Wang, Binqiang and Zheng, Xiangtao and Li, Xuelong},
  journal = {IEEE Transactions on Geoscience and Remote Sensing},
  number = {4},
  pages = {2183--2195},
  title = {Exploring Models and Data for Remote Sensing Image Caption Generation},
  volume = {56},
  year = {2018},
}
""",
    "UCMCaptions": """
@inproceedings{qu2016deep,
  author = {Qu, Bo and Li, Xuelong and Tao, Dacheng and Lu, Xiaoqiang},
  booktitle = {International Conference on Computer, Information and Telecommunication Systems},
  pages = {1--5},
  title = {Deep Semantic Understanding of High Resolution Remote Sensing Image},
  year = {2016},
}
""",
}
ABOUT = {
    "RSICD": "aerial images of 30 kinds of scene, five captions each",
    "UCMCaptions": "aerial images of 21 kinds of land use, five captions each",
}
YEARS = {"RSICD": 2017, "UCMCaptions": 2016}
REFERENCES = {
    "RSICD": "https://doi.org/10.1109/TGRS.2017.2776321",
    "UCMCaptions": "https://doi.org/10.1109/CITS.2016.7546397",
}


def metadata(dataset: str, category: str) -> TaskMetadata:
    """What MTEB wants to know of a task; `hit_rate_at_k` of its scores is the field's R@K."""
    wanted = "captions based on images" if category == "i2t" else "images based on captions"
    return TaskMetadata(
        name=f"{dataset}{category.upper()}Retrieval",
        description=f"Retrieve {wanted}: {ABOUT[dataset]}.",
        reference=REFERENCES[dataset],
        dataset={"path": "local", "revision": "published-splits"},
        type="Any2AnyRetrieval",
        category=category,
        modalities=["text", "image"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="hit_rate_at_10",
        date=(f"{YEARS[dataset]}-01-01", f"{YEARS[dataset]}-12-31"),
        domains=["Scene"],
        task_subtypes=["Image Text Retrieval"],
        license="not specified",
        annotations_creators="human-annotated",
        dialect=[],
        sample_creation="found",
        bibtex_citation=CITATIONS[dataset],
        is_public=True,
    )


class LocalRetrieval(AbsTaskRetrieval):  # type: ignore[misc]
    """Pairs of a folder on this machine, in any format that `read_pairs` knows."""

    k_values = (1, 5, 10)
    data_loaded: bool

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.folder = folder

    def load_data(self, *given: Any, **options: Any) -> None:
        """Corpus, queries and which belong together, of every split that is evaluated."""
        if self.data_loaded:
            return
        self.dataset = {"default": {split: self.split_data(split) for split in self.eval_splits}}
        self.data_loaded = True

    def split_data(self, split: str) -> dict[str, Any]:
        """One split in MTEB's form: every caption and every image has an id of its own."""
        table = read_pairs(self.folder).split(split)
        image_of = [f"image-{code}" for code in table.image_codes]
        captions = {f"caption-{row}": text for row, text in enumerate(table.captions)}
        paths = [str(table.image_path(int(row))) for row in table.first_rows]
        names = [f"image-{code}" for code in range(len(paths))]
        images = Dataset.from_dict({"id": names, "image": paths}).cast_column("image", Image())
        texts = Dataset.from_dict({"id": list(captions), "text": list(captions.values())})
        relevant: dict[str, dict[str, int]] = {}
        by_image = self.metadata.category == "i2t"
        for caption, image in zip(captions, image_of, strict=True):
            query, document = (image, caption) if by_image else (caption, image)
            relevant.setdefault(query, {})[document] = 1
        return {
            "queries": images if by_image else texts,
            "corpus": texts if by_image else images,
            "relevant_docs": relevant,
            "top_ranked": None,
        }


class RSICDI2TRetrieval(LocalRetrieval):
    metadata = metadata("RSICD", "i2t")


class RSICDT2IRetrieval(LocalRetrieval):
    metadata = metadata("RSICD", "t2i")


class UCMCaptionsI2TRetrieval(LocalRetrieval):
    metadata = metadata("UCMCaptions", "i2t")


class UCMCaptionsT2IRetrieval(LocalRetrieval):
    metadata = metadata("UCMCaptions", "t2i")


TASKS = {
    "rsicd": (RSICDI2TRetrieval, RSICDT2IRetrieval),
    "ucm": (UCMCaptionsI2TRetrieval, UCMCaptionsT2IRetrieval),
}


def weights_digest(model: Retriever) -> str:
    """The same for equal weights."""
    digest = hashlib.sha256()
    for name, values in model.state_dict().items():
        digest.update(name.encode())
        digest.update(values.cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


class MtebModel(AbsEncoder):  # type: ignore[misc]
    """A retriever as MTEB's encoder: unit vectors of texts and of images, compared by cosine.

    `path` is what `pmpguard.load` takes; `name`, org/model, and a digest of the weights are what MTEB files
    the results under, so those of another model of that name are not taken for its own.
    """

    def __init__(self, path: str | Path, name: str | None = None, device: str = "cpu") -> None:
        self.model = Retriever.load(path).to(device)
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name or f"pmpguard/{Path(path).resolve().name}",
                "revision": weights_digest(self.model),
                "embed_dim": self.model.config.dim,
                "max_tokens": self.model.config.max_tokens,
                "n_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                "similarity_fn_name": ScoringFunction.COSINE,
                "modalities": ["text", "image"],
            }
        )

    def encode(self, inputs: Iterable[dict[str, Any]], **options: Any) -> Tensor:
        """(N, d): what each batch holds, texts or images."""
        parts = [
            self.model.encode_document(batch["image"])
            if "image" in batch
            else self.model.encode_query(batch["text"])
            for batch in inputs
        ]
        return torch.cat(parts)
