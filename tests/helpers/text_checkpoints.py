"""Tiny text checkpoints with random weights and their tokenizers, as each library saves them."""

from tokenizers import Tokenizer as Rules
from tokenizers import models, normalizers, pre_tokenizers, processors

CAPTIONS = ["a pond", "two planes near a long runway", "a round pond beside the farm", "trees"]


def save_tokenizer(folder, first, last, begin=("[PAD]", "[UNK]")):
    """A word-level tokenizer with special tokens, as a checkpoint folder holds it."""
    from transformers import PreTrainedTokenizerFast

    words = [*begin, *sorted({word for caption in CAPTIONS for word in caption.split()})]
    every = dict.fromkeys([*words, first, last])
    vocabulary = {word: place for place, word in enumerate(every)}
    rules = Rules(models.WordLevel(vocabulary, unk_token="[UNK]"))
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.BertProcessing((last, vocabulary[last]), (first, vocabulary[first]))
    PreTrainedTokenizerFast(
        tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]", bos_token=first, eos_token=last
    ).save_pretrained(folder)
    return vocabulary


def save_bert(folder):
    from transformers import BertConfig, BertModel

    vocabulary = save_tokenizer(folder, "[CLS]", "[SEP]")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)


def save_distilbert(folder):
    from transformers import DistilBertConfig, DistilBertModel

    vocabulary = save_tokenizer(folder, "[CLS]", "[SEP]")
    config = DistilBertConfig(
        vocab_size=len(vocabulary),
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=32,
        dropout=0.0,
        attention_dropout=0.0,
    )
    DistilBertModel(config).save_pretrained(folder)


def save_clip(folder):
    from transformers import CLIPConfig, CLIPModel

    vocabulary = save_tokenizer(folder, "<|startoftext|>", "<|endoftext|>")
    tower = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
    special = {"bos_token_id": len(vocabulary) - 2, "eos_token_id": len(vocabulary) - 1, "pad_token_id": 0}
    config = CLIPConfig(
        vision_config=tower | {"image_size": 32, "patch_size": 8, "projection_dim": 12},
        text_config=tower
        | special
        | {"vocab_size": len(vocabulary), "max_position_embeddings": 20, "projection_dim": 12},
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)


def save_roberta(folder, name="Roberta"):
    """RoBERTa or a relative: padding has id 1, and positions count from the one after it."""
    import transformers

    vocabulary = save_tokenizer(folder, "<s>", "</s>", ("<s>", "[PAD]", "</s>", "[UNK]"))
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        pad_token_id=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)


SAVERS = {"bert": save_bert, "distilbert": save_distilbert, "clip": save_clip, "roberta": save_roberta}
