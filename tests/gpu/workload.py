"""What tests/gpu/debloat.py slims libraries for: `python tests/gpu/workload.py mlp|resnet|train|compile`.

Prints its results, from fixed seeds, on standard output; on standard error one line of JSON with the seconds from
its start, the most memory that was resident, and the GPU's memory in use at the end.
"""

from __future__ import annotations

import json
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402 -- a part of what is measured
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


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
    """ResNet-50 with random weights."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def perceptron() -> nn.Module:
    """Three dense layers."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def infer(model: nn.Module, *shape: int) -> list[float]:
    """A few outputs."""
    with torch.inference_mode():
        return model.cuda().eval()(torch.randn(*shape).cuda()).flatten()[:5].tolist()


def train() -> list[float]:
    """The loss over some steps."""
    model = perceptron().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(256, 784).cuda(), torch.randint(10, (256,)).cuda()
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


WORK = {
    "mlp": lambda: infer(perceptron(), 64, 784),
    "resnet": lambda: infer(resnet50(), 8, 3, 224, 224),
    "train": train,
    "compile": lambda: infer(torch.compile(nn.Sequential(perceptron(), nn.GELU(), nn.Softmax(-1))), 64, 784),
}


def main() -> None:
    """Does the work that is named."""
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = False
    print(" ".join(f"{value:.4e}" for value in WORK[sys.argv[1]]()))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - START
    free, total = torch.cuda.mem_get_info()
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith(("VmHWM", "RssFile")))
    kib = {key: int(value.split()[0]) for key, value in status.items()}
    facts = {"seconds": seconds, "resident": kib["VmHWM"] << 10, "mapped": kib["RssFile"] << 10, "gpu": total - free}
    print(json.dumps(facts), file=sys.stderr)


if __name__ == "__main__":
    main()
