"""Tiny vision checkpoints with random weights, as each library saves them."""


def save_swin(folder):
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    SwinModel(config).save_pretrained(folder)
    return 64, 64, 16  # size, regions, width


def save_vit(folder):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    ViTModel(config).save_pretrained(folder)
    return 32, 16, 16


def save_clip(folder):
    from transformers import CLIPConfig, CLIPModel

    tower = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
    config = CLIPConfig(
        vision_config=tower | {"image_size": 32, "patch_size": 8, "projection_dim": 12},
        text_config=tower | {"vocab_size": 50, "projection_dim": 12},
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)
    return 32, 16, 16


def save_resnet(folder):
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(folder)
    return 64, 64, 16


SAVERS = {"swin": save_swin, "vit": save_vit, "clip": save_clip, "resnet": save_resnet}
