"""PyTorch workloads: a perceptron, ResNet-50, training steps. Each is a function that takes a device and returns
numbers.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        direct = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if direct else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    """Return ResNet-50 with random weights."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def perceptron() -> nn.Module:
    """Return three dense layers."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def infer(model: nn.Module, device: str, *shape: int) -> torch.Tensor:
    """Return the model's outputs for random input of this shape."""
    with torch.inference_mode():
        return model.to(device).eval()(torch.randn(*shape).to(device))


def mlp(device: str) -> list[float]:
    torch.manual_seed(1)
    return infer(perceptron(), device, 64, 784).flatten()[:5].tolist()


def resnet(device: str) -> list[float]:
    torch.manual_seed(1)
    return infer(resnet50(), device, 8, 3, 224, 224).flatten()[:5].tolist()


def train(device: str) -> list[float]:
    """Return the loss over some steps."""
    torch.manual_seed(1)
    model = perceptron().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(256, 784).to(device), torch.randint(10, (256,)).to(device)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
