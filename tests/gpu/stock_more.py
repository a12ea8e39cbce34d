"""Eight more programs for stock_programs.py, with kernels that its ten programs don't have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stock_inputs import DEVICE, Program, draw, numbers
from torch import Tensor, nn

F = nn.functional


class Denoiser(nn.Module):
    """A residual block with attention, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)
        self.norm, self.time = nn.GroupNorm(8, 64), nn.Linear(64, 64)
        self.query = nn.Conv1d(64, 192, 1)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        """Return the noise."""
        angles = when[:, None] * torch.exp(-torch.arange(32, device=x.device) / 4)
        x = self.first(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        flat = F.silu(self.norm(x)).flatten(2)
        query, key, value = self.query(flat).unflatten(1, (3, 2, 32)).transpose(3, 4).unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(2, 3).reshape(x.shape)
        return self.last(F.interpolate(F.avg_pool2d(x + mixed, 2), scale_factor=2.0, mode="bilinear"))


def make_diffusion() -> Program:
    """Return training in mixed precision, channels last, with a scaler and an average of the weights."""
    model = Denoiser().to(DEVICE, memory_format=torch.channels_last)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    start = [p.detach().clone() for p in model.parameters()]
    x, noise = draw(4, 4, 16, 16).contiguous(memory_format=torch.channels_last), draw(4, 4, 16, 16)

    def run() -> list[Tensor]:
        with torch.no_grad():
            torch._foreach_copy_([*model.parameters()], start)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(DEVICE)
        for when in range(3):
            with torch.autocast(DEVICE, torch.float16 if DEVICE == "cuda" else torch.bfloat16):
                out = model(x + when * noise, torch.full((4,), float(when), device=DEVICE))
            scaler.scale(F.mse_loss(out.float(), noise)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            average.update_parameters(model)
        return [*average.parameters()]

    return run


def make_message() -> Program:
    """Return message passing over the edges of a graph."""
    source, target, x = numbers(500, 3000), numbers(499, 3000), draw(500, 48)
    order = torch.argsort(target, stable=True)
    lengths = torch.bincount(target, minlength=500)

    def run() -> list[Tensor]:
        gates = torch.sigmoid((x[source] * x[target]).sum(1))
        most = torch.full((500,), -1e9, device=DEVICE).scatter_reduce(0, target, gates, "amax")
        weights = torch.exp(gates - most[target])
        rows = (x[source] * weights[:, None])[order]
        summed = torch.segment_reduce(rows, "sum", lengths=lengths, unsafe=True)
        least = torch.zeros(500, 48, device=DEVICE).index_reduce(0, target[order], rows, "amin")
        pairs = torch.sparse_coo_tensor(torch.stack([target, source]), weights.detach(), (500, 500)).coalesce()
        keys, counts = torch.unique_consecutive(target[order], return_counts=True)
        return [summed, least, pairs.values(), pairs.indices(), keys, counts]

    return run


def make_speech() -> Program:
    """Return training of a recognizer with connectionist temporal classification."""
    front, back = nn.Conv1d(40, 64, 5, stride=2, padding=2), nn.GRU(64, 64, 2, bidirectional=True)
    head = nn.Linear(128, 30)
    for part in (front, back, head):
        part.to(DEVICE)
    sound = draw(8, 40, 80)
    labels = numbers(29, 8, 12) + 1

    def run() -> list[Tensor]:
        parameters = [*front.parameters(), *back.parameters(), *head.parameters()]
        hidden = F.gelu(front(sound), approximate="tanh").permute(2, 0, 1)
        packed = nn.utils.rnn.pack_padded_sequence(hidden, torch.tensor([40, 40, 38, 36, 30, 28, 25, 24]))
        padded, lengths = nn.utils.rnn.pad_packed_sequence(back(packed)[0])
        scores = head(padded).log_softmax(-1)
        with torch.backends.cudnn.flags(enabled=False):
            loss = F.ctc_loss(scores, labels, lengths, torch.full((8,), 12))
        return [loss, *torch.autograd.grad(loss, parameters)]

    return run


def make_functions() -> Program:
    """Return derivatives by `torch.func`, and functions that are seldom used."""
    w, x, grid = draw(16, 16), draw(32, 16), draw(2, 20, 20, 2).clamp(-1, 1)
    image = draw(2, 3, 32, 32)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return torch.tanh(weight @ row).square().sum()

    def run() -> list[Tensor]:
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        tangent = torch.func.jvp(lambda value: torch.erf(value) * torch.special.i0e(value), (x,), (x,))[1]
        sampled = F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)
        special = [
            torch.lgamma(x.abs() + 1), torch.digamma(x.abs() + 1), torch.erfinv(x.clamp(-0.9, 0.9)),
            torch.special.bessel_j0(x), torch.special.zeta(x.abs() + 1.5, x.abs() + 1), torch.polygamma(1, x.abs() + 1),
            torch.igamma(x.abs() + 1, x.abs() + 1), torch.logcumsumexp(x, 1), torch.cummax(x, 0).values,
            torch.special.log_ndtr(x), torch.sinc(x), torch.nextafter(x, x + 1), torch.frexp(x).mantissa,
        ]  # fmt: skip
        places = torch.searchsorted(x.sort(1).values, x)
        return [
            each, tangent, sampled, *special, places, torch.cdist(x, w, p=1.0), torch.histc(x, 40, -2, 2),
            torch.kthvalue(x, 3, 1).values, torch.mode(numbers(6, 32, 64), 1).values, torch.renorm(x, 2, 0, 1.0),
        ]  # fmt: skip

    return run


def make_quantized() -> Program:
    """Return arithmetic on integers of 8 bits, packed bits, and floating point numbers of 8 bits."""
    x, w = draw(64, 128), draw(128, 96)

    def run() -> list[Tensor]:
        scale = x.abs().amax(1, keepdim=True) / 127
        small = (x / scale).round().clamp(-128, 127).to(torch.int8)
        heavy = (w / w.abs().amax() * 127).round().to(torch.int8)
        packed = (small[:, ::2] & 15) | (small[:, 1::2] << 4)
        narrow = [x.to(kind).float() for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16)]
        fake = torch.fake_quantize_per_channel_affine(
            x, scale.flatten(), torch.zeros(64, device=DEVICE, dtype=torch.int32), 0, -128, 127
        )
        product = torch._int_mm(small, heavy)
        return [product, packed.bitwise_xor(packed.roll(1, 0)), *narrow, fake, torch.gcd(product, product.flip(0))]

    return run


def make_volume() -> Program:
    """Return training of a network for volumes, with windows that overlap."""
    layers = nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.Hardswish(), nn.MaxPool3d(2),
        nn.ConvTranspose3d(8, 4, 2, stride=2), nn.PReLU(4), nn.AdaptiveAvgPool3d(6), nn.ReplicationPad3d(1),
    )  # fmt: skip
    layers.to(DEVICE)
    x, image = draw(2, 2, 12, 12, 12), draw(2, 4, 16, 16)

    def run() -> list[Tensor]:
        out = layers(x)
        loss = F.huber_loss(
            F.interpolate(out, scale_factor=1.5, mode="trilinear"),
            torch.zeros((), device=DEVICE).expand(2, 4, 12, 12, 12),
        )
        windows = F.fold(F.unfold(image, 3, padding=1) * 2, (16, 16), 3, padding=1)
        shuffled = F.pixel_unshuffle(F.pixel_shuffle(windows, 2), 2)
        local = F.local_response_norm(F.lp_pool2d(shuffled.abs(), 2, 2), 2)
        return [loss, local, F.max_unpool2d(*F.max_pool2d(image, 2, return_indices=True), 2)]

    return run


def make_chances() -> Program:
    """Return random numbers of many kinds, nested tensors, and complex numbers."""
    weights, x = torch.softmax(draw(16, 50), 1), draw(24, 24)

    def run() -> list[Tensor]:
        torch.manual_seed(5)
        drawn: list[Tensor] = [
            torch.multinomial(weights, 8, True), torch.bernoulli(weights), torch.poisson(weights * 20),
            torch.randperm(3000, device=DEVICE),
            torch.empty(500, device=DEVICE).exponential_(2.0), torch.empty(500, device=DEVICE).cauchy_(),
            torch.empty(500, device=DEVICE).geometric_(0.3), torch.empty(500, device=DEVICE).log_normal_(),
            torch._standard_gamma(weights * 9), F.dropout(x, 0.3), F.gumbel_softmax(x, hard=True),
        ]  # fmt: skip
        ragged = torch.nested.nested_tensor([x[:5], x[:9], x[:2]], layout=torch.jagged)
        turned = torch.view_as_real(torch.polar(x.abs(), x) * torch.complex(x, x.T).conj())
        return [*drawn, torch.nn.functional.rms_norm(ragged, (24,)).values(), ragged.sum(-1).values(), turned]

    return run


def make_serving() -> Program:
    """Return decode steps over a paged cache, captured in a graph for each batch size, and replayed in two streams."""
    pages, width = draw(64, 16, 4, 32), 128
    weight, table = draw(width, 3 * width) / width, numbers(63, 8, 4)
    inputs = pages, weight, table  # graphs don't keep them alive
    graphs: dict[int, Any] = {}

    def step(batch: int, x: Tensor, out: Tensor) -> None:
        query, key, value = (x @ weight).view(batch, 3, 4, 32).unbind(1)
        rows = pages[table[:batch]].flatten(1, 2).transpose(1, 2)
        keys = torch.cat([rows, key[:, :, None]], 2)
        values = torch.cat([rows * 0.5, value[:, :, None]], 2)
        out.copy_(F.scaled_dot_product_attention(query[:, :, None], keys, values).flatten(1))

    if DEVICE == "cuda":
        pool = torch.cuda.graph_pool_handle()
        for batch in (8, 4, 1):
            x, out = draw(batch, width), torch.zeros(batch, width, device=DEVICE)
            step(batch, x, out)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                step(batch, x, out)
            graphs[batch] = graph, x, out

    def run() -> list[Tensor]:
        results = []
        side = torch.cuda.Stream() if graphs else None
        for batch, (graph, x, out) in graphs.items():
            x.copy_(draw(batch, width), non_blocking=True)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side if batch == 4 else torch.cuda.current_stream()):
                graph.replay()
            torch.cuda.current_stream().wait_stream(side)
            results.append(out.clone())
        return results or [*inputs]

    return run


MORE: dict[str, Callable[[], Program]] = {
    "diffusion": make_diffusion, "message": make_message, "speech": make_speech, "functions": make_functions,
    "quantized": make_quantized, "volume": make_volume, "chances": make_chances, "serving": make_serving,
}  # fmt: skip
