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


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}


def save_dinov2(folder):
    from transformers import Dinov2Config, Dinov2Model

    Dinov2Model(Dinov2Config(**SMALL, patch_size=8)).save_pretrained(folder)
    return 32, 16, 16


def save_dinov3(folder):
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    more = {"intermediate_size": 32, "num_register_tokens": 4}
    config = DINOv3ViTConfig(**SMALL, **more, patch_size=8, pos_embed_rescale=None)  # random in training
    DINOv3ViTModel(config).save_pretrained(folder)
    return 32, 16, 16


SAVERS = {
    "swin": save_swin,
    "vit": save_vit,
    "clip": save_clip,
    "resnet": save_resnet,
    "dinov3": save_dinov3,
}
