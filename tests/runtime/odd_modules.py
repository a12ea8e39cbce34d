"""Use PyTorch's modules in unusual ways, and print all results. The output must be the same under '--layers'.

Each scenario is a function; the arguments choose some.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import gc
import inspect
import os
import pickle
import sys
import threading
import weakref
from functools import partial

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

assert not ctypes.CDLL("libcuda.so.1").cuInit(0)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def tell(model: nn.Module) -> list[float]:
    return [round(float(one.grad.double().sum()), 9) for one in model.parameters() if one.grad is not None]


def overrides() -> None:
    """List the functions that a mode and a subclass of Tensor are asked about."""

    class Log(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    seen: list[str] = []
    model = make_model()
    with Log():
        model(torch.ones(2, 8)).sum().backward()
    model(torch.ones(2, 8).as_subclass(Logged)).sum().backward()
    print(seen, tell(model))


def exceptions() -> None:
    class Bad(nn.Module):
        def forward(self, x):
            raise error

    for error in (ValueError("v"), KeyboardInterrupt(), StopIteration()):
        try:
            nn.Sequential(nn.Linear(8, 8), Bad())(torch.ones(1, 8))
        except BaseException as caught:
            print(caught is error, caught.__context__)
    for call in (nn.Module.__call__, partial(nn.Module.__call__, 3), partial(make_model(), wrong=1)):
        try:
            call()
        except Exception as caught:
            print(caught)


def autograd() -> None:
    """Differentiate twice, with hooks, in another thread, within a backward pass, and with checkpoints."""
    from torch.utils.checkpoint import checkpoint

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                inner = make_model()
                inner(torch.ones(1, 8)).sum().backward()
                print(tell(inner))
            return grad * 2

    model, order, x = make_model(), [], torch.ones(2, 8, requires_grad=True)
    model[0].register_forward_hook(lambda *_: order.append("forward"))
    model[2].register_full_backward_hook(lambda *_: order.append("backward"))
    torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0].square().sum().backward()
    thread = threading.Thread(target=Inner.apply(model(x)).sum().backward)
    thread.start()
    thread.join()
    for reentrant in (True, False):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    print(order, tell(model), x.grad.sum().item())


def transforms() -> None:
    from torch.func import functional_call, grad, hessian, vmap

    model = make_model()
    parameters = {name: one.detach() for name, one in model.named_parameters()}
    found = vmap(grad(lambda p, x: functional_call(model, p, (x,)).square().sum()), (None, 0))(
        parameters, torch.arange(24.0).reshape(3, 8)
    )
    print([one.sum().item() for one in found.values()])
    print(hessian(lambda x: model(x).square().sum())(torch.ones(8)).sum().item())


def scripts() -> None:
    """Compile code that names a range with TorchScript, and trace a model with each of PyTorch's tracers."""

    @torch.jit.script
    def ranged(x):
        with torch.autograd.profiler.record_function("a"):
            return x + 1

    model = make_model()
    print(ranged(torch.ones(1)), torch.jit.script(model)(torch.ones(1, 8)).sum().item())
    print(torch.jit.trace(model, torch.ones(1, 8)).graph, torch.fx.symbolic_trace(model).code)


def compiled_backward() -> None:
    from torch._dynamo import compiled_autograd, utils

    model, sizes = make_model(), []

    def backend(module, _):
        sizes.append(len(module.graph.nodes))
        return module

    with compiled_autograd._enable(torch.compile(backend=backend)):
        model(torch.ones(1, 8)).sum().backward()
    print(tell(model), sizes, len(utils.counters["graph_break"]))


def flows() -> None:
    """Call modules recursively, in generators and in coroutines; some are shared, and some get their weights late."""

    class Recursive(nn.Linear):
        def forward(self, x, times=0):
            return self(super().forward(x), times - 1) if times else x

    class Generating(nn.Linear):
        def forward(self, x):
            for _ in range(3):
                x = super().forward(x)
                yield x

    class Waiting(nn.Sequential):
        async def forward(self, x):
            await asyncio.sleep(0)
            return super().forward(x)

    async def wait() -> list[torch.Tensor]:
        return await asyncio.gather(*(waiting(x * number) for number in range(3)))

    torch.manual_seed(1)
    x, shared = torch.ones(1, 4), nn.Linear(4, 4)
    recursive, generating, waiting = Recursive(4, 4), Generating(4, 4), Waiting(shared, nn.ReLU(), shared)
    recursive(x, 5).sum().backward()
    streams = [generating(x), generating(x)]
    print(tell(recursive), [one.sum().item() for pair in zip(*streams, strict=True) for one in pair])
    print([one.sum().item() for one in asyncio.run(wait())])
    try:
        recursive(x, 5000)
    except RecursionError as error:
        print(type(error), recursive(x, 2).shape)
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Identity())
    print(lazy(x).shape, nn.DataParallel(lazy)(x).shape)
    attention = nn.MultiheadAttention(4, 2)
    attention(x, x, x)[0].sum().backward()
    print(tell(attention))


class Loss(nn.Module):
    def forward(self, x):
        return nn.functional.mse_loss(x, x + 1, reduction="sum")


def loss_of(x: torch.Tensor, y: torch.Tensor):
    return torch.nn.functional.mse_loss(x, y) + torch.nn.functional.smooth_l1_loss(x, y, beta=2.0)


def functions() -> None:
    """Use functions outside of modules in all ways in which PyTorch or the program looks at them."""
    functional, x = nn.functional, torch.ones(3, requires_grad=True)

    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is functional.mse_loss:
                print("asked")
            return super().__torch_function__(function, types, args, kwargs or {})

    class Own(nn.Linear):
        def _apply(self, function, recurse=True):
            print("own")
            return super()._apply(function, recurse)

    functional.mse_loss(torch.ones(2).as_subclass(Asked), torch.zeros(2))
    loss = functional.mse_loss
    print(inspect.signature(functional.cross_entropy), inspect.getsource(loss)[:20], loss.__name__, loss.__module__)
    print(pickle.loads(pickle.dumps(loss)) is loss, copy.deepcopy(loss) is loss)
    print(torch.jit.script(loss_of)(x, x * 2), torch.fx.symbolic_trace(Loss()).code)
    print(torch.func.vmap(torch.func.grad(lambda y: loss(y, torch.zeros(3))))(torch.ones(2, 3)))
    print(torch.autograd.grad(loss_of(x, x * x), x, create_graph=True)[0].sum().item())
    model = make_model()
    functional.cross_entropy(model(torch.ones(2, 8)), torch.tensor([0, 1])).backward()
    print(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item(), tell(model))
    print(Own(2, 2).double().weight.dtype, model.load_state_dict(model.state_dict()))
    for call in (lambda: loss(x, None), lambda: model.apply(lambda _: {}[1]), lambda: nn.init.ones_(3)):
        try:
            call()
        except Exception as error:
            print(repr(error))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(1, 8)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print(tell(model), scaler.get_scale())


def lives() -> None:
    """Delete modules that are running, reuse their addresses, and use them when Python ends."""

    class Deleted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            inner = self.inner
            del self.inner
            held.clear()
            gc.collect()
            return inner(x)

    class Last:
        def __del__(self):
            write(1, b"last %d\n" % len(model(given)))

    class Odd(nn.Module):
        def named_modules(self, *_, **__):
            yield "", self
            yield "x", object()
            raise SystemError

        def forward(self, x):
            return x

    torch.set_grad_enabled(False)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    held = [Deleted()]
    print(held[0](torch.ones(1, 8)).shape, Odd()(1))
    for number in range(200):
        (nn.Sequential(nn.Linear(2, 2)) if number % 2 else nn.Linear(2, 2))(torch.ones(1, 2))
    gc.set_threshold(*threshold)
    model = make_model()
    gone, given = weakref.ref(model), torch.ones(1, 8)
    before = sys.getrefcount(given)
    for _ in range(10):
        model(given)
    print(sys.getrefcount(given) - before)
    del model
    print(gone() is None)
    model, write = make_model(), os.write
    globals()["last"] = Last()


if __name__ == "__main__":
    for scenario in sys.argv[1:]:
        globals()[scenario]()
