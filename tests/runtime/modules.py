"""A PyTorch program whose modules launch kernels on the simulated device, for tests of 'gpt-hook run --layers'.

    modules.py SCENARIO...

It prints the sum of the gradients, and what Dynamo counted.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

driver = ctypes.CDLL("libcuda.so.1")
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n" + b"".join(
    b".visible .entry %s(){ret;}\n" % name for name in (b"linear", b"linear_grad", b"scores", b"scores_grad", b"loss")
)
context, stream = ctypes.c_void_p(), ctypes.c_void_p()


def check(status: int) -> None:
    assert not status, status


def begin() -> dict[str, ctypes.c_void_p]:
    module = ctypes.c_void_p()
    check(driver.cuInit(0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver.cuCtxSetCurrent(context))
    check(driver.cuModuleLoadData(ctypes.byref(module), PTX))
    check(driver.cuStreamCreate(ctypes.byref(stream), 1))
    found = {}
    for name in ("linear", "linear_grad", "scores", "scores_grad", "loss"):
        found[name] = ctypes.c_void_p()
        check(driver.cuModuleGetFunction(ctypes.byref(found[name]), module, name.encode()))
    return found


kernels = begin()


def launch(name: str) -> None:
    check(driver.cuLaunchKernel(kernels[name], 1, 1, 1, 1, 1, 1, 0, stream, None, None))


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        launch("linear")
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        launch("linear_grad")
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        launch("scores")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        launch("scores_grad")
        return grad * 2


class Projection(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(size))

    def forward(self, x):
        return Linear.apply(x, self.weight)


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.o = Projection(size), Projection(size)

    def forward(self, x):
        return self.o(Scores.apply(self.q(x)))


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(size), nn.Sequential(Projection(size), nn.ReLU())

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, size: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(size) for _ in range(layers))
        self.head = Projection(size)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(model: nn.Module) -> None:
    loss = model(torch.ones(4, 8)).square().mean()
    launch("loss")
    loss.backward()
    print(sum(parameter.grad.double().sum() for parameter in model.parameters()).item())


def threads(model: nn.Module) -> None:
    """Train models in four threads at once. Python switches between them as often as possible."""
    sys.setswitchinterval(1e-6)
    together = threading.Barrier(4)

    def run() -> None:
        check(driver.cuCtxSetCurrent(context))
        own = Model()
        for _ in range(5):
            together.wait()
            own(torch.ones(4, 8)).square().mean().backward()

    started = [threading.Thread(target=run) for _ in range(4)]
    for one in started:
        one.start()
    for one in started:
        one.join()


def decode(model: nn.Module) -> None:
    """Capture a step, and replay it outside of all modules."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.no_grad():
        check(driver.cuStreamBeginCapture_v2(stream, 2))
        model(torch.ones(1, 8))
        check(driver.cuStreamEndCapture(stream, ctypes.byref(graph)))
    check(driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_uint64(0)))
    for _ in range(10):
        check(driver.cuGraphLaunch(executable, stream))
    check(driver.cuStreamSynchronize(stream))


def compiled(model: nn.Module) -> None:
    """Compile the model with and without a graph break, and a model with a hook, and print Dynamo's counts."""
    import torch._dynamo

    graphs = []

    def backend(module, _):
        graphs.append(len(module.graph.nodes))
        return module.forward

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    hooked = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    hooked[0].register_forward_hook(lambda module, args, out: out + 1)
    torch.manual_seed(0)
    for one in (nn.Sequential(nn.Linear(8, 8), nn.ReLU()), Broken(), hooked):
        made = torch.compile(one, backend=backend)
        for size in (1, 2, 2, 4):
            made(torch.ones(size, 8)).sum().backward()
    counters = torch._dynamo.utils.counters

    class Ranged(nn.Module):
        def forward(self, x):
            with torch.profiler.record_function("inner"):
                return x.relu()

    torch._logging.set_logs(dynamo=logging.ERROR)  # it warns of ranges
    torch.compile(Ranged(), backend=backend)(torch.ones(2, 8))
    print(graphs, *(sorted(dict(counters[name]).items()) for name in ("frames", "stats", "graph_break", "recompiles")))


def inductor(model: nn.Module) -> None:
    """Compile a model whose matrix products launch kernels, and run it forward and backward."""
    from torch._inductor.select_algorithm import extern_kernels

    def launching(name: str):
        original = getattr(extern_kernels, name)

        def product(*args, **kwargs):
            launch("linear" if name == "addmm" else "linear_grad")
            return original(*args, **kwargs)

        return product

    for name in ("addmm", "mm"):
        setattr(extern_kernels, name, launching(name))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

        def forward(self, x):
            return x + self.down(nn.functional.silu(self.up(x)))

    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    made = Compiled()
    torch.compile(made)(torch.ones(4, 64)).square().mean().backward()
    print(sum(parameter.grad.double().sum() for parameter in made.parameters()).item())
    print(dict(torch._dynamo.utils.counters["stats"]))


def optimized(model: nn.Module) -> None:
    """Train with an optimizer and a named loss; each launches a kernel."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: launch("scores"))
    out = model(torch.ones(4, 8))
    with torch.profiler.record_function("loss of all"):
        loss = out.square().mean()
        launch("loss")
    loss.backward()
    optimizer.step()
    launch("loss")


def lossy(model: nn.Module) -> None:
    """Launch kernels in a loss outside of modules, and around it, and while weights are set in and outside of one."""

    class Launching(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is nn.functional.mse_loss:
                return Scores.apply(function(*args, **(kwargs or {})))
            return function(*args, **(kwargs or {}))

    class Setting(Projection):
        def forward(self, x):
            self.apply(lambda _: launch("loss"))
            return super().forward(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Setting(8)

        def forward(self, x):
            return self.head(x)

    class Around(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            launch("loss")
            return grad

    own = Outer()
    own.apply(lambda one: launch("loss") if one is own else None)
    out = Around.apply(own(torch.ones(4, 8)))
    with Launching():
        loss = nn.functional.mse_loss(out, torch.zeros(4, 8))
    loss.backward()


if __name__ == "__main__":
    for scenario in sys.argv[1:]:
        torch.manual_seed(0)
        globals()[scenario](Model())
