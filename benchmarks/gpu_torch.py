"""The models of ``gpu.py`` as PyTorch users write them, with the weights of the ONNX files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_models
import onnx
import torch
import torch.nn.functional as F  # noqa: N812  # as everyone calls it
from onnx import numpy_helper
from torch import Tensor, nn


class Cnn(nn.Module):  # type: ignore[misc]  # torch has no types here
    """The network of :func:`autotune.facts.sample_models.cnn`."""

    def __init__(self, weights: Iterator[Tensor], channels: int, blocks: int = 2) -> None:
        super().__init__()
        self.first = _conv(weights, stride=2)
        self.blocks = nn.ModuleList()
        narrow = channels
        for stage in range(3):
            for block in range(blocks):
                wide = channels * 2**stage
                stride = 2 if stage and not block else 1
                made = nn.ModuleList([_conv(weights, stride=stride), _conv(weights)])
                if narrow != wide:
                    made.append(_conv(weights, stride=stride))
                self.blocks.append(made)
                narrow = wide
        self.weight, self.bias = nn.Parameter(next(weights)), nn.Parameter(next(weights))

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(image)), 3, 2, 1)
        for first, second, *rest in self.blocks:
            y = second(F.relu(first(x)))
            x = F.relu(y + (rest[0](x) if rest else x))
        return x.mean((2, 3)) @ self.weight + self.bias


def _conv(weights: Iterator[Tensor], stride: int = 1) -> nn.Conv2d:
    weight, bias = next(weights), next(weights)
    wide, narrow, kernel, _ = weight.shape
    made = nn.Conv2d(narrow, wide, kernel, stride, kernel // 2)
    made.weight, made.bias = nn.Parameter(weight), nn.Parameter(bias)
    return made


class Encoder(nn.Module):  # type: ignore[misc]
    """The network of :func:`autotune.facts.sample_models.transformer`."""

    def __init__(self, weights: Iterator[Tensor], layers: int, heads: int) -> None:
        super().__init__()
        self.heads, self.layers = heads, layers
        self.register_buffer("embed", next(weights))
        for layer in range(layers):
            for name in _ENCODER_NAMES:
                self.register_buffer(f"{name}{layer}", next(weights))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = F.embedding(ids, self.get_buffer("embed"))
        hidden = (1 - mask.to(x.dtype))[:, None, None, :] * -1e4
        for layer in range(self.layers):
            w = {name: self.get_buffer(f"{name}{layer}") for name in _ENCODER_NAMES}
            q, k, v = (_split(x @ w[f"w{n}"] + w[f"b{n}"], self.heads) for n in "qkv")
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
            y = x + mixed.transpose(1, 2).flatten(2) @ w["wo"]
            x = F.layer_norm(y, y.shape[-1:], w["s1"], w["b1"])
            y = x + F.gelu(x @ w["w1"] + w["c1"]) @ w["w2"]
            x = F.layer_norm(y, y.shape[-1:], w["s2"], w["b2"])
        return x.mean(1)


_ENCODER_NAMES = "wq bq wk bk wv bv wo s1 b1 w1 c1 w2 s2 b2".split()


def _split(x: Tensor, heads: int) -> Tensor:
    """Returns what each head gets: [batch, heads, tokens, size]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Decoder(nn.Module):  # type: ignore[misc]
    """The network of :func:`gpu_models.decoder`, with caches that are allocated once."""

    def __init__(self, weights: dict[str, Tensor], sizes: gpu_models.Sizes) -> None:
        super().__init__()
        self.heads, self.layers = sizes.heads, sizes.layers
        for name, tensor in weights.items():
            self.register_buffer(name, tensor)
        longest, size = sizes.prompt + sizes.new, sizes.width // sizes.heads
        for i in range(sizes.layers):
            for part in ("key", "value"):
                self.register_buffer(f"{part}_{i}", torch.zeros(1, sizes.heads, longest, size))
        self.register_buffer("all", torch.arange(longest))

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """Returns the logits of the last token and writes the caches."""
        w = self.get_buffer
        x = F.embedding(ids, w("embed")) + F.embedding(places, w("places_table"))
        seen = w("all")[None, :] <= places[0][:, None]
        for i in range(self.layers):
            y = F.layer_norm(x, x.shape[-1:], w("ones"), w("zeros")) @ w(f"qkv_{i}")
            q, k, v = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in y.chunk(3, -1)
            )
            keys = w(f"key_{i}").index_copy_(2, places[0], k)
            values = w(f"value_{i}").index_copy_(2, places[0], v)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = x + mixed.transpose(1, 2).flatten(2) @ w(f"out_{i}")
            y = F.layer_norm(x, x.shape[-1:], w("ones"), w("zeros"))
            x = x + F.relu(y @ w(f"up_{i}")) @ w(f"down_{i}")
        return F.layer_norm(x[:, -1], x.shape[-1:], w("ones"), w("zeros")) @ w("head")


def module(name: str, model: Path, sizes: gpu_models.Sizes, device: str) -> Any:
    """Returns a model in half precision on a device, with the weights of the ONNX file."""
    arrays = {
        item.name: torch.from_numpy(numpy_helper.to_array(item).copy())
        for item in onnx.load(model).graph.initializer
    }
    real = {n: t for n, t in arrays.items() if t.is_floating_point() and t.ndim}
    made: nn.Module
    if name == gpu_models.CNN:
        made = Cnn(iter(real.values()), sizes.channels)
    elif name == gpu_models.ENCODER:
        made = Encoder(iter(real.values()), sizes.layers, sizes.heads)
    else:
        made = Decoder(real, sizes)
    made = made.to(device).half().eval()
    return made.to(memory_format=torch.channels_last) if name == gpu_models.CNN else made
