"""The `tiny` pair of backbones: trained from scratch on small images, fast on two processor cores."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TinyVision(nn.Module):
    """Five convolutions from pixels to a grid of regions, one per `stride` (8 or 16) pixels each way.

    Group normalisation looks at one image at a time, so an embedding never depends on the batch. The stem
    goes without: it holds almost half of all activations, and normalising them nearly doubles the time.
    A learned position per region lets "top left" mean something. 16 pixels are the default because scoring
    pairs costs more than encoding them: with 64 regions instead of 16, training takes 2.5 times as long.
    """

    def __init__(self, image_size: int, width: int = 128, stride: int = 16) -> None:
        super().__init__()
        side = image_size // stride
        self.stem = nn.Conv2d(3, width // 4, 4, stride=2, padding=1)
        self.down1 = NormedConvolution(width // 4, width // 2, stride=2)
        self.down2 = NormedConvolution(width // 2, width, stride=2)
        self.mix1 = NormedConvolution(width, width, stride=1)
        self.mix2 = NormedConvolution(width, width, stride=1)
        self.shrink = stride // 8
        self.position = nn.Parameter(torch.randn(1, width, side, side) * 0.02)

    def forward(self, pixels: Tensor) -> Tensor:
        features = F.relu(self.stem(pixels))  # (N, c/4, s/2, s/2)
        features = self.down2(self.down1(features))  # (N, c, s/8, s/8)
        features = features + self.mix1(features)
        features = features + self.mix2(features)
        if self.shrink > 1:
            features = F.avg_pool2d(features, self.shrink)
        return features + self.position  # (N, c, side, side)


class NormedConvolution(nn.Module):
    """3×3 convolution, group normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(8, outputs)

    def forward(self, features: Tensor) -> Tensor:
        return F.relu(self.norm(self.convolution(features)))


class TinyText(nn.Module):
    """Word and position embeddings and light self-attention layers that see both ways but no padding."""

    def __init__(
        self, vocabulary: int, max_tokens: int, width: int = 128, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(max_tokens, width) * 0.02)
        self.layers = nn.ModuleList(SelfAttentionLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.words(ids) + self.positions[: ids.shape[1]]  # (N, L, c)
        for layer in self.layers:
            states = layer(states, mask)
        return self.norm(states)  # type: ignore[no-any-return]


class SelfAttentionLayer(nn.Module):
    """Attention among the words of one caption, then a small feed-forward layer, both residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.gather = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        split = self.queries_keys_values(self.before(states)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each (N, heads, L, c/heads)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None, None, :])
        states = states + self.gather(seen.transpose(1, 2).flatten(2))  # (N, L, c)
        return states + self.narrow(F.gelu(self.widen(self.between(states))))  # type: ignore[no-any-return]
