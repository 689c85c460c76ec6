"""Write the layers of well-known networks, for which the database has choices.

    python -m tools.record.network_layers

The layers follow from the published architectures.  Layers that are equal are listed once, with
the names of all networks that have them.
"""

from __future__ import annotations

import json
from pathlib import Path

TARGET = Path(__file__).parents[2] / "cudnnlite" / "bench" / "lists" / "networks.json"


class Layers:
    """The convolutions of one network, collected while its blocks are walked."""

    def __init__(self, network, batches=(32, 1)):
        self.network, self.batches = network, batches
        self.rows = []

    def conv(self, size, channels, filters, kernel, stride=1, padding=None, dilation=1, groups=1):
        """Add a convolution of images, signals or volumes; return the size of its output."""
        rank = len(size)
        kernel = (kernel,) * rank if isinstance(kernel, int) else kernel
        stride = (stride,) * rank if isinstance(stride, int) else stride
        dilation = (dilation,) * rank
        if padding is None:
            padding = tuple(
                far * (taps - 1) // 2 for far, taps in zip(dilation, kernel, strict=True)
            )
        elif isinstance(padding, int):
            padding = (padding,) * rank
        shape = [channels, *size]
        weights = [filters, channels // groups, *kernel]
        self.rows.append([shape, weights, [*padding], [*stride], [*dilation], groups])
        return tuple(
            (extent + 2 * pad - far * (taps - 1) - 1) // step + 1
            for extent, pad, far, taps, step in zip(
                size, padding, dilation, kernel, stride, strict=True
            )
        )


def resnet(depth):
    """ResNet v1.5: stride 2 in the 3x3 convolution."""
    return residual_network(f"resnet{depth}", is_deep=depth >= 50)


def resnext():
    """ResNeXt-101 32x8d: a ResNet whose 3x3 convolutions are four times as wide, in 32 groups."""
    return residual_network("resnext101", is_deep=True, widening=4, groups=32)


def residual_network(name, *, is_deep, widening=1, groups=1):
    """A ResNet, with blocks of three convolutions if it is deep, or of two."""
    net = Layers(name)
    size = net.conv((224, 224), 3, 64, 7, 2, 3)
    size, channels = (56, 56), 64
    for stage, width in enumerate((64, 128, 256, 512)):
        stride = 1 if stage == 0 else 2
        for block in range(2):
            step = stride if block == 0 else 1
            outputs = 4 * width if is_deep else width
            if is_deep:
                inner = widening * width
                net.conv(size, channels, inner, 1)
                after = net.conv(size, inner, inner, 3, step, groups=groups)
                net.conv(after, inner, outputs, 1)
            else:
                after = net.conv(size, channels, width, 3, step)
                net.conv(after, width, width, 3)
            if block == 0 and (step > 1 or channels != outputs):
                net.conv(size, channels, outputs, 1, step, 0)
            size, channels = after, outputs
    return net


def mobilenet_v2():
    """MobileNetV2 of width 1."""
    net = Layers("mobilenet_v2")
    size, channels = net.conv((224, 224), 3, 32, 3, 2), 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for factor, outputs, blocks, stride in (*table, (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(min(blocks, 2)):
            size, channels = inverted(
                net, size, channels, factor * channels, outputs, 3, stride if block == 0 else 1
            )
    net.conv(size, channels, 1280, 1)
    return net


def inverted(net, size, channels, width, outputs, kernel, stride):
    """An inverted residual block: expansion, depthwise convolution, projection."""
    if width != channels:
        net.conv(size, channels, width, 1)
    size = net.conv(size, width, width, kernel, stride, groups=width)
    net.conv(size, width, outputs, 1)
    return size, outputs


def mobilenet_v3():
    """MobileNetV3-Large."""
    net = Layers("mobilenet_v3")
    size, channels = net.conv((224, 224), 3, 16, 3, 2), 16
    table = (
        (3, 16, 16, 1), (3, 64, 24, 2), (3, 72, 24, 1), (5, 72, 40, 2), (5, 120, 40, 1),
        (3, 240, 80, 2), (3, 200, 80, 1), (3, 184, 80, 1), (3, 480, 112, 1), (3, 672, 112, 1),
        (5, 672, 160, 2), (5, 960, 160, 1),
    )  # fmt: skip
    for kernel, width, outputs, stride in table:
        size, channels = inverted(net, size, channels, width, outputs, kernel, stride)
    net.conv(size, channels, 960, 1)
    return net


def efficientnet():
    """EfficientNet-B0."""
    net = Layers("efficientnet_b0")
    size, channels = net.conv((224, 224), 3, 32, 3, 2), 32
    table = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    )  # fmt: skip
    for factor, outputs, blocks, stride, kernel in table:
        for block in range(min(blocks, 2)):
            size, channels = inverted(
                net, size, channels, factor * channels, outputs, kernel, stride if not block else 1
            )
    net.conv(size, channels, 1280, 1)
    return net


def convnext(name, widths):
    """ConvNeXt: a 4x4 stem, depthwise 7x7 convolutions; its 1x1 layers are matrix products."""
    net = Layers(f"convnext_{name}")
    size, channels = net.conv((224, 224), 3, widths[0], 4, 4, 0), widths[0]
    for stage, width in enumerate(widths):
        if stage:
            size = net.conv(size, channels, width, 2, 2, 0)
        net.conv(size, width, width, 7, groups=width)
        channels = width
    return net


def vit():
    """The patch embeddings of ViT-B/16, B/32, L/16, L/14 and H/14."""
    net = Layers("vit")
    for patch, width in ((16, 768), (32, 768), (16, 1024), (14, 1024), (14, 1280)):
        net.conv((224, 224), 3, width, patch, patch, 0)
    return net


def stable_diffusion():
    """Stable Diffusion 1.5: the U-Net's residual blocks on latents of 64x64."""
    net = Layers("stable_diffusion", (2, 8))
    size = (64, 64)
    net.conv(size, 4, 320, 3)
    widths = (320, 640, 1280, 1280)
    channels, skips = 320, [320]
    for level, width in enumerate(widths):
        for _ in range(2):
            residual(net, size, channels, width)
            channels = width
            skips.append(width)
        if level < 3:
            size = net.conv(size, width, width, 3, 2)
            skips.append(width)
    residual(net, size, channels, channels)
    for level, width in reversed([*enumerate(widths)]):
        for _ in range(3):
            residual(net, size, channels + skips.pop(), width)
            channels = width
        if level:
            size = tuple(2 * extent for extent in size)
            net.conv(size, width, width, 3)
    net.conv(size, 320, 4, 3)
    return net


def residual(net, size, channels, outputs):
    """Two 3x3 convolutions, and a 1x1 one where the channels change."""
    net.conv(size, channels, outputs, 3)
    net.conv(size, outputs, outputs, 3)
    if channels != outputs:
        net.conv(size, channels, outputs, 1)


def autoencoder():
    """The decoder of Stable Diffusion's autoencoder, for an image of 512x512."""
    net = Layers("stable_diffusion_vae", (1,))
    size, channels = (64, 64), 512
    net.conv(size, 4, 512, 3)
    for width in (512, 512, 256, 128):
        residual(net, size, channels, width)
        channels = width
        if width != 128:
            size = tuple(2 * extent for extent in size)
            net.conv(size, width, width, 3)
    net.conv(size, 128, 3, 3)
    return net


def unet():
    """U-Net with padding, for images of 256x256."""
    net = Layers("unet", (8, 1))
    size, channels = (256, 256), 3
    widths = (64, 128, 256, 512, 1024)
    for width in widths:
        net.conv(size, channels, width, 3)
        net.conv(size, width, width, 3)
        channels, size = width, tuple(extent // 2 for extent in size)
    size = (16, 16)
    for width in reversed(widths[:-1]):
        size = tuple(2 * extent for extent in size)
        net.conv(size, 2 * width, width, 3)
    net.conv(size, 64, 2, 1)
    return net


def deeplab():
    """DeepLabV3 with ResNet-50 at output stride 16, for images of 512x512."""
    net = Layers("deeplab_v3", (8, 1))
    size, channels = net.conv((512, 512), 3, 64, 7, 2, 3), 64
    size = (128, 128)
    for stage, width in enumerate((64, 128, 256, 512)):
        stride = 2 if stage in (1, 2) else 1
        dilation = 2 if stage == 3 else 1
        net.conv(size, channels, width, 1)
        after = net.conv(size, width, width, 3, stride, dilation=dilation)
        net.conv(after, width, 4 * width, 1)
        net.conv(size, channels, 4 * width, 1, stride, 0)
        size, channels = after, 4 * width
        net.conv(size, channels, width, 1)
        net.conv(size, width, width, 3, dilation=dilation)
    for dilation in (6, 12, 18):
        net.conv(size, 2048, 256, 3, dilation=dilation)
    net.conv(size, 2048, 256, 1)
    net.conv(size, 1280, 256, 1)
    net.conv(size, 256, 256, 3)
    net.conv(size, 256, 21, 1)
    return net


def whisper():
    """The two convolutions in front of Whisper's encoder, tiny to large: 30 seconds."""
    net = Layers("whisper", (8, 1))
    for width in (384, 512, 768, 1024, 1280):
        net.conv((3000,), 80, width, 3)
        net.conv((3000,), width, width, 3, 2)
    return net


def wav2vec():
    """The feature encoder of wav2vec 2.0 on 10 seconds, and its positional convolution."""
    net = Layers("wav2vec2", (8, 1))
    size = net.conv((160000,), 1, 512, 10, 5, 0)
    for kernel in (3, 3, 3, 3, 2, 2):
        size = net.conv(size, 512, 512, kernel, 2, 0)
    net.conv(size, 768, 768, 128, padding=64, groups=16)
    return net


def c3d():
    """C3D on 16 frames of 112x112."""
    net = Layers("c3d", (8, 1))
    table = (
        (3, 64, (16, 112, 112)), (64, 128, (16, 56, 56)), (128, 256, (8, 28, 28)),
        (256, 256, (8, 28, 28)), (256, 512, (4, 14, 14)), (512, 512, (4, 14, 14)),
        (512, 512, (2, 7, 7)),
    )  # fmt: skip
    for channels, filters, size in table:
        net.conv(size, channels, filters, 3)
    return net


def replknet():
    """RepLKNet-31B: the large depthwise convolutions, and the 5x5 ones beside them in training."""
    net = Layers("replknet", (32,))
    size = (56, 56)
    for width, kernel in ((128, 31), (256, 29), (512, 27), (1024, 13)):
        for taps in (kernel, 5):
            net.conv(size, width, width, taps, groups=width)
        size = tuple(extent // 2 for extent in size)
    return net


def mamba():
    """The depthwise convolution of Mamba's blocks, 130M to 2.8B: it pads at both ends."""
    net = Layers("mamba", (4,))
    for width in (1536, 2048, 3072, 4096, 5120):
        net.conv((2048,), width, width, 4, padding=3, groups=width)
    return net


def vocos():
    """Vocos: ConvNeXt blocks in one dimension, over 100 mel bands."""
    net = Layers("vocos", (16,))
    size = net.conv((640,), 100, 512, 7)
    net.conv(size, 512, 512, 7, groups=512)
    return net


def squeezeformer():
    """The depthwise convolutions of Squeezeformer-XS, M and L's convolution modules.

    They have twice the model's channels, at both rates of its U-Net.
    """
    net = Layers("squeezeformer", (16,))
    for width in (288, 648, 1280):
        for steps in (500, 250):
            net.conv((steps,), width, width, 31, groups=width)
    return net


def conv_tasnet():
    """Conv-TasNet on 4 seconds at 8 kHz: the encoder, and one stack of dilated blocks."""
    net = Layers("conv_tasnet", (8,))
    size = net.conv((32000,), 1, 512, 16, 8, 0)
    net.conv(size, 512, 128, 1)
    net.conv(size, 128, 512, 1)
    for exponent in range(8):
        net.conv(size, 512, 512, 3, dilation=2**exponent, groups=512)
    return net


NETWORKS = (
    resnet(50), resnet(18), resnet(34), vit(), convnext("tiny", (96, 192, 384, 768)),
    convnext("base", (128, 256, 512, 1024)), stable_diffusion(), autoencoder(), mobilenet_v2(),
    mobilenet_v3(), efficientnet(), unet(), deeplab(), whisper(), wav2vec(), c3d(),
    resnext(), replknet(), mamba(), vocos(), squeezeformer(), conv_tasnet(),
)  # fmt: skip
# Network: batch, heads, heads of keys and values, size of a head, steps.
ATTENTION = (
    ("gpt2", 8, 12, 12, 64, 1024),
    ("gpt2_medium", 8, 16, 16, 64, 1024),
    ("gpt2_xl", 4, 25, 25, 64, 1024),
    ("gpt3", 1, 96, 96, 128, 2048),
    ("llama_7b", 2, 32, 32, 128, 2048),
    ("llama_7b", 1, 32, 32, 128, 4096),
    ("llama_13b", 1, 40, 40, 128, 2048),
    ("llama_70b", 1, 64, 8, 128, 4096),
    ("llama3_8b", 1, 32, 8, 128, 8192),
    ("vit", 32, 12, 12, 64, 197),
    ("whisper", 8, 20, 20, 64, 1500),
)
# Input size, hidden size, layers, both directions, steps, batch.
LSTMS = (
    (256, 256, 1, False, 100, 64),
    (512, 512, 1, False, 100, 64),
    (512, 512, 2, False, 100, 64),
    (1024, 1024, 1, False, 100, 64),
    (1024, 1024, 2, False, 100, 64),
    (256, 256, 2, True, 100, 32),
    (512, 512, 2, True, 100, 32),
    (650, 650, 2, False, 35, 20),
    (1500, 1500, 2, False, 35, 20),
    (80, 512, 1, True, 400, 16),
)


def main():
    """Write the file."""
    convolutions = {}
    for net in NETWORKS:
        for row in net.rows:
            key = json.dumps([row, net.batches])
            names = convolutions.setdefault(key, [])
            if net.network not in names:
                names.append(net.network)
    lines = []
    for key, names in convolutions.items():
        row, batches = json.loads(key)
        lines.append(json.dumps([names, batches, *row], separators=(",", ":")))
    parts = {
        "convolutions": lines,
        "attention": [json.dumps(row, separators=(",", ":")) for row in ATTENTION],
        "lstms": [json.dumps(row, separators=(",", ":")) for row in LSTMS],
    }
    columns = {
        "convolutions": "networks batches x-without-batch w padding stride dilation groups",
        "attention": "network batch heads kv_heads size steps; causal, but for vit and whisper",
        "lstms": "input_size hidden_size num_layers bidirectional steps batch",
    }
    text = f'{{\n"source": "the published architectures; written by {Path(__file__).name}",\n'
    text += f'"columns": {json.dumps(columns)}'
    for name, rows in parts.items():
        text += f',\n"{name}": [\n' + ",\n".join(rows) + "\n]"
    TARGET.write_text(text + "\n}\n", encoding="utf-8")
    print(f"{TARGET.name}: {', '.join(f'{len(rows)} {name}' for name, rows in parts.items())}")


if __name__ == "__main__":
    main()
