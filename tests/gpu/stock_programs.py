"""Small programs for stock PyTorch, with the ones in stock_more.py: `python tests/gpu/stock_programs.py [NAME ...]`.

Prints a line for each: its name, a digest of its results, and the seconds that its loop takes from the second run on.
Sizes are small, because only the choice of kernels matters.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable

import torch
from stock_inputs import DEVICE, Program, draw, numbers
from stock_more import MORE
from torch import Tensor, nn

F = nn.functional
REPEAT = 3


def make_mlp() -> Program:
    """Return inference of a perceptron."""
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.LayerNorm(512), nn.Dropout(), nn.Linear(512, 10)).eval()
    model.to(DEVICE)
    x = draw(256, 784)

    def run() -> list[Tensor]:
        with torch.no_grad():
            return [torch.softmax(model(x), 1)]

    return run


def make_transformer() -> Program:
    """Return a decoder that generates tokens greedily, with its own embedding."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, activation="gelu", norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(DEVICE).eval()
    embedding, head = nn.Embedding(1000, 128).to(DEVICE), nn.Linear(128, 1000).to(DEVICE)

    def run() -> list[Tensor]:
        tokens = numbers(1000, 2, 8)
        with torch.no_grad():
            for _ in range(8):
                mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=DEVICE)
                hidden = model(embedding(tokens), mask=mask, is_causal=True)
                tokens = torch.cat([tokens, head(hidden[:, -1:]).argmax(-1)], 1)
        return [tokens]

    return run


class Residual(nn.Module):
    """A residual block: two convolutions, and the input added to their result."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(hidden)))


def make_resnet() -> Program:
    """Return training of a residual block."""
    model = nn.Sequential(Residual(32), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = draw(8, 32, 28, 28), numbers(10, 8)

    def run() -> list[Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return [loss, *model.parameters()]

    return run


def make_lstm() -> Program:
    """Return an LSTM, forward and backward, without cuDNN, which is closed source."""
    model = nn.LSTM(64, 64, 2).to(DEVICE)
    x = draw(12, 8, 64)

    def run() -> list[Tensor]:
        with torch.backends.cudnn.flags(enabled=False):
            out, (hidden, _) = model(x)
            return [out, hidden, *torch.autograd.grad(out.sum(), list(model.parameters()))]

    return run


def make_linalg() -> Program:
    """Return transforms and linear algebra."""
    x = draw(64, 64)
    square = x @ x.T + 64 * torch.eye(64, device=DEVICE)

    def run() -> list[Tensor]:
        spectrum = torch.fft.rfft2(x)
        back = torch.fft.irfft2(spectrum * spectrum.abs(), s=x.shape)
        return [
            back, torch.linalg.cholesky(square), torch.linalg.solve(square, x), torch.linalg.det(square),
            torch.tril(x), torch.einsum("ij,kj->ik", x, x), torch.linalg.vector_norm(x, dim=1),
        ]  # fmt: skip

    return run


def make_order() -> Program:
    """Return sorting, selection and scans."""
    x, i = draw(512, 1024), numbers(2000, 50000)

    def run() -> list[Tensor]:
        return [
            x.sort(1).values, i.sort().values, x.topk(16, 1).values, x.flatten().topk(100).values, i.unique(),
            x.cumsum(1), x.cumprod(1), x.median(1).values, torch.bincount(i), torch.searchsorted(x[0].sort().values, x),
            x.nonzero(), x[x > 1], torch.histc(x, 50), x.argsort(0),
        ]  # fmt: skip

    return run


def make_bags() -> Program:
    """Return bags of embeddings with gradients, and scatter and gather operations."""
    bag = nn.EmbeddingBag(5000, 64, mode="mean").to(DEVICE)
    indexes, offsets = numbers(5000, 4096), torch.arange(0, 4096, 16, device=DEVICE)

    def run() -> list[Tensor]:
        out = bag(indexes, offsets)
        (gradient,) = torch.autograd.grad(out.square().sum(), [bag.weight])
        sums = torch.zeros(5000, dtype=torch.long, device=DEVICE).scatter_add_(0, indexes, indexes)
        return [out, gradient, sums, bag.weight.detach()[indexes], F.one_hot(indexes[:64], 5000)]

    return run


def make_unet() -> Program:
    """Return a U-Net block: down, up, and a skip connection."""
    down, up = nn.Conv2d(16, 32, 3, 2, 1), nn.ConvTranspose2d(32, 16, 2, 2)
    norm, last = nn.GroupNorm(4, 32), nn.Conv2d(32, 3, 1)
    for module in (down, up, norm, last):
        module.to(DEVICE)
    x = draw(2, 16, 32, 32)

    def run() -> list[Tensor]:
        with torch.no_grad():
            low = F.silu(norm(down(x)))
            joined = torch.cat([x, up(low)], 1)
            sized = F.interpolate(joined, scale_factor=2, mode="bilinear", align_corners=False)
            return [last(sized), F.interpolate(low, scale_factor=2, mode="nearest"), F.avg_pool2d(low, 2)]

    return run


def make_vit() -> Program:
    """Return a block of a vision transformer, trained in bfloat16."""
    patch, block = nn.Conv2d(3, 64, 8, 8), nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    for module in (patch, block):
        module.to(DEVICE, torch.bfloat16)
    x = draw(4, 3, 64, 64).bfloat16()
    parameters = [*patch.parameters(), *block.parameters()]

    def run() -> list[Tensor]:
        out = block(patch(x).flatten(2).transpose(1, 2)).mean(1)
        return [out, *torch.autograd.grad(out.float().square().sum(), parameters)]

    return run


def make_llama() -> Program:
    """Return a Llama block in a CUDA graph."""
    size, heads = 256, 4
    w = {name: draw(n, m) * 0.05 for name, n, m in (("q", size, size), ("k", size, size), ("v", size, size))}
    w |= {"o": draw(size, size) * 0.05, "gate": draw(512, size) * 0.05, "up": draw(512, size) * 0.05}
    w["down"] = draw(size, 512) * 0.05
    x, out = draw(2, 32, size), torch.empty(2, 32, size, device=DEVICE)
    angle = torch.arange(32, device=DEVICE)[:, None] * 10000 ** -torch.linspace(0, 1, 32, device=DEVICE)

    def turn(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def split(t: Tensor) -> Tensor:
        return t.view(2, 32, heads, -1).transpose(1, 2)

    def norm(t: Tensor) -> Tensor:
        return t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6)

    def step() -> None:
        h = norm(x)
        q, k, v = (split(h @ w[name]) for name in "qkv")
        attended = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        h = x + attended.transpose(1, 2).reshape(2, 32, size) @ w["o"]
        n = norm(h)
        out.copy_(h + (F.silu(n @ w["gate"].T) * (n @ w["up"].T)) @ w["down"].T)

    if DEVICE == "cpu":
        graph = None
    else:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

    def run() -> list[Tensor]:
        for _ in range(4):
            graph.replay() if graph else step()
        return [out]

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": make_mlp, "transformer": make_transformer, "resnet": make_resnet, "lstm": make_lstm, "linalg": make_linalg,
    "order": make_order, "bags": make_bags, "unet": make_unet, "vit": make_vit, "llama": make_llama,
}  # fmt: skip


def wait() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run the command."""
    torch.backends.cudnn.deterministic = True
    programs = PROGRAMS | MORE
    for name in sys.argv[1:] or programs:
        torch.manual_seed(0)
        program = programs[name]()
        program()
        wait()
        begin = time.perf_counter()
        digest = hashlib.sha256()
        for _ in range(REPEAT):
            results = [*program()]
            wait()
        seconds = (time.perf_counter() - begin) / REPEAT
        for result in results:
            digest.update(result.detach().to(torch.complex128).cpu().numpy().tobytes())
        print(name, digest.hexdigest(), f"{seconds:.6f}", flush=True)


if __name__ == "__main__":
    main()
