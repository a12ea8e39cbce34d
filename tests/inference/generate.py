"""Generate tokens with a transformer of two layers, whose kernels are PTX in this file.

    gpt-trace -- python generate.py [--tokens 20] [--prompt "3 14 15"]
    gpt-trace -- python generate.py --torch     # the same model in PyTorch, on a GPU

Without --torch it needs only libcuda.so.1. Weights are random, so the output is nonsense, but always the same; the last
line lists the tokens. A step makes 22 launches and copies the token to the host.
"""

import argparse
import ctypes
import random
import sys
import time
from array import array
from ctypes import byref, c_float, c_uint, c_uint64, c_void_p

WIDTH, INNER, WORDS, LAYERS, CONTEXT = 32, 64, 64, 2, 64
MATRICES = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "out": (WIDTH, WIDTH),
            "up": (INNER, WIDTH), "down": (WIDTH, INNER)}  # fmt: skip
PLAIN, POSITIVE, ADDED = range(3)  # how a product is used: y = Wx, y = max(Wx, 0), y += Wx
PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry embed(.param .u64 y, .param .u64 table, .param .u64 token, .param .u32 width) {
    .reg .b32 %r<4>; .reg .b64 %d<5>; .reg .f32 %f1;
    ld.param.u64 %d1, [y]; ld.param.u64 %d2, [table]; ld.param.u64 %d3, [token]; ld.param.u32 %r1, [width];
    mov.u32 %r2, %tid.x;
    ld.global.u32 %r3, [%d3];
    mad.lo.u32 %r3, %r3, %r1, %r2;
    mul.wide.u32 %d4, %r3, 4; add.u64 %d2, %d2, %d4; ld.global.f32 %f1, [%d2];
    mul.wide.u32 %d4, %r2, 4; add.u64 %d1, %d1, %d4; st.global.f32 [%d1], %f1;
    ret;
}
.visible .entry norm(.param .u64 y, .param .u64 x, .param .u32 width) {
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<5>; .reg .f32 %f<5>;
    ld.param.u64 %d1, [y]; ld.param.u64 %d2, [x]; ld.param.u32 %r1, [width];
    mov.u32 %r2, 0; mov.f32 %f1, 0f00000000; mov.u64 %d3, %d2;
next:
    ld.global.f32 %f2, [%d3]; fma.rn.f32 %f1, %f2, %f2, %f1;
    add.u64 %d3, %d3, 4; add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, %r1;
    @%p bra next;
    cvt.rn.f32.u32 %f3, %r1; div.rn.f32 %f1, %f1, %f3; add.f32 %f1, %f1, 0f3727C5AC; sqrt.rn.f32 %f1, %f1;
    mov.u32 %r3, %tid.x; mul.wide.u32 %d4, %r3, 4; add.u64 %d2, %d2, %d4; add.u64 %d1, %d1, %d4;
    ld.global.f32 %f4, [%d2]; div.rn.f32 %f4, %f4, %f1; st.global.f32 [%d1], %f4;
    ret;
}
.visible .entry linear(.param .u64 y, .param .u64 x, .param .u64 w, .param .u32 columns, .param .u32 mode) {
    .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %d<6>; .reg .f32 %f<5>;
    ld.param.u64 %d1, [y]; ld.param.u64 %d2, [x]; ld.param.u64 %d3, [w];
    ld.param.u32 %r1, [columns]; ld.param.u32 %r2, [mode];
    mov.u32 %r3, %tid.x; mul.lo.u32 %r4, %r3, %r1; mul.wide.u32 %d4, %r4, 4; add.u64 %d3, %d3, %d4;
    mul.wide.u32 %d5, %r3, 4; add.u64 %d1, %d1, %d5;
    mov.u32 %r5, 0; mov.f32 %f1, 0f00000000;
next:
    ld.global.f32 %f2, [%d2]; ld.global.f32 %f3, [%d3]; fma.rn.f32 %f1, %f2, %f3, %f1;
    add.u64 %d2, %d2, 4; add.u64 %d3, %d3, 4; add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, %r1;
    @%p0 bra next;
    setp.eq.u32 %p1, %r2, 1;
    @%p1 max.f32 %f1, %f1, 0f00000000;
    setp.eq.u32 %p2, %r2, 2;
    @%p2 ld.global.f32 %f4, [%d1];
    @%p2 add.f32 %f1, %f1, %f4;
    st.global.f32 [%d1], %f1;
    ret;
}
.visible .entry attend(.param .u64 y, .param .u64 q, .param .u64 k, .param .u64 v, .param .u32 length,
                       .param .u32 width, .param .f32 scale) {
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<8>; .reg .f32 %f<12>;
    ld.param.u64 %d1, [y]; ld.param.u64 %d2, [q]; ld.param.u64 %d3, [k]; ld.param.u64 %d4, [v];
    ld.param.u32 %r1, [length]; ld.param.u32 %r2, [width]; ld.param.f32 %f11, [scale];
    mov.u32 %r3, %tid.x; mul.wide.u32 %d5, %r3, 4; add.u64 %d1, %d1, %d5; add.u64 %d4, %d4, %d5;
    mul.wide.u32 %d7, %r2, 4;
    mov.f32 %f1, 0fFF800000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;  // largest score, sum, weighted sum
    mov.u32 %r4, 0;
token:
    mov.u32 %r5, 0; mov.u64 %d6, %d2; mov.f32 %f4, 0f00000000;
product:
    ld.global.f32 %f5, [%d6]; ld.global.f32 %f6, [%d3]; fma.rn.f32 %f4, %f5, %f6, %f4;
    add.u64 %d6, %d6, 4; add.u64 %d3, %d3, 4; add.u32 %r5, %r5, 1; setp.lt.u32 %p, %r5, %r2;
    @%p bra product;
    mul.f32 %f4, %f4, %f11; max.f32 %f7, %f1, %f4;
    sub.f32 %f8, %f1, %f7; mul.f32 %f8, %f8, 0f3FB8AA3B; ex2.approx.f32 %f8, %f8;
    sub.f32 %f9, %f4, %f7; mul.f32 %f9, %f9, 0f3FB8AA3B; ex2.approx.f32 %f9, %f9;
    ld.global.f32 %f10, [%d4]; add.u64 %d4, %d4, %d7;
    fma.rn.f32 %f2, %f2, %f8, %f9; mul.f32 %f3, %f3, %f8; fma.rn.f32 %f3, %f9, %f10, %f3;
    mov.f32 %f1, %f7; add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r1;
    @%p bra token;
    div.rn.f32 %f3, %f3, %f2; st.global.f32 [%d1], %f3;
    ret;
}
.visible .entry choose(.param .u64 token, .param .u64 scores, .param .u32 words) {
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .f32 %f<3>;
    ld.param.u64 %d1, [token]; ld.param.u64 %d2, [scores]; ld.param.u32 %r1, [words];
    mov.u32 %r2, 0; mov.u32 %r3, 0; mov.f32 %f1, 0fFF800000;
next:
    ld.global.f32 %f2, [%d2]; setp.gt.f32 %p0, %f2, %f1;
    @%p0 mov.f32 %f1, %f2;
    @%p0 mov.u32 %r3, %r2;
    add.u64 %d2, %d2, 4; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra next;
    st.global.u32 [%d1], %r3;
    ret;
}
"""


def make_weights():
    """Return all matrices by name, row by row. They're the same each time."""
    source = random.Random(1)

    def matrix(rows, columns):
        return array("f", [source.gauss(0, columns**-0.5) for _ in range(rows * columns)])

    found = {"words": matrix(WORDS, WIDTH), "scores": matrix(WORDS, WIDTH)}
    for layer in range(LAYERS):
        found |= {f"{name}.{layer}": matrix(*shape) for name, shape in MATRICES.items()}
    return found


class Driver:
    """The CUDA driver: its functions are methods that raise an exception for an error."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self.cuInit(0)
        device, self.context = c_uint(), c_void_p()
        self.cuDeviceGet(byref(device), 0)
        self.cuDevicePrimaryCtxRetain(byref(self.context), device)
        self.cuCtxSetCurrent(self.context)

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            if result := function(*arguments):
                raise RuntimeError(f"{name}: error {result}")

        return call

    def allocate(self, size):
        memory = c_uint64()
        self.cuMemAlloc_v2(byref(memory), ctypes.c_size_t(size))
        return memory

    def copy_in(self, memory, values):
        size = len(values) * values.itemsize
        self.cuMemcpyHtoD_v2(memory, (ctypes.c_char * size).from_buffer(values), ctypes.c_size_t(size))

    def upload(self, values):
        memory = self.allocate(len(values) * values.itemsize)
        self.copy_in(memory, values)
        return memory

    def load(self, ptx):
        self.module = c_void_p()
        self.cuModuleLoadData(byref(self.module), ptx.encode())

    def run(self, kernel, threads, *arguments):
        parameters = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self.cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0, None, parameters, None)


class Model:
    """The transformer on the device."""

    def __init__(self, driver, weights):
        self.driver = driver
        self.weights = {name: driver.upload(values) for name, values in weights.items()}
        sizes = {
            "x": WIDTH,
            "normed": WIDTH,
            "query": WIDTH,
            "mixed": WIDTH,
            "inner": INNER,
            "logits": WORDS,
            "token": 1,
        }
        self.at = {name: driver.allocate(4 * size) for name, size in sizes.items()}
        self.cache = [[driver.allocate(4 * WIDTH * CONTEXT) for _ in range(2)] for _ in range(LAYERS)]
        driver.load(PTX)
        self.kernels = {}
        for name in ("embed", "norm", "linear", "attend", "choose"):
            self.kernels[name] = c_void_p()
            driver.cuModuleGetFunction(byref(self.kernels[name]), driver.module, name.encode())

    def run(self, name, threads, *arguments):
        self.driver.run(self.kernels[name], threads, *arguments)

    def linear(self, y, x, matrix, mode=PLAIN, rows=WIDTH, columns=WIDTH):
        self.run("linear", rows, y, x, self.weights[matrix], c_uint(columns), c_uint(mode))

    def step(self, place, token=None):
        """Process the token at position `place`, and return the next token. The input is `token`, or the previous
        step's result if that's None.
        """
        at = self.at
        if token is not None:
            self.driver.copy_in(at["token"], array("I", [token]))
        self.run("embed", WIDTH, at["x"], self.weights["words"], at["token"], c_uint(WIDTH))
        for layer, cache in enumerate(self.cache):
            keys, values = (c_uint64(memory.value + 4 * WIDTH * place) for memory in cache)
            self.run("norm", WIDTH, at["normed"], at["x"], c_uint(WIDTH))
            self.linear(at["query"], at["normed"], f"query.{layer}")
            self.linear(keys, at["normed"], f"key.{layer}")
            self.linear(values, at["normed"], f"value.{layer}")
            self.run("attend", WIDTH, at["mixed"], at["query"], *cache, c_uint(place + 1), c_uint(WIDTH),
                     c_float(WIDTH**-0.5))  # fmt: skip
            self.linear(at["x"], at["mixed"], f"out.{layer}", ADDED)
            self.run("norm", WIDTH, at["normed"], at["x"], c_uint(WIDTH))
            self.linear(at["inner"], at["normed"], f"up.{layer}", POSITIVE, INNER)
            self.linear(at["x"], at["inner"], f"down.{layer}", ADDED, columns=INNER)
        self.run("norm", WIDTH, at["normed"], at["x"], c_uint(WIDTH))
        self.linear(at["logits"], at["normed"], "scores", rows=WORDS)
        self.run("choose", 1, at["token"], at["logits"], c_uint(WORDS))
        self.driver.cuCtxSynchronize()
        chosen = c_uint()
        self.driver.cuMemcpyDtoH_v2(byref(chosen), at["token"], ctypes.c_size_t(4))
        return chosen.value


class TorchModel:
    """The same model in PyTorch, with the same `step`."""

    def __init__(self, weights):
        import torch

        self.torch = torch
        shapes = {"words": (WORDS, WIDTH), "scores": (WORDS, WIDTH)}
        self.weights = {
            name: torch.tensor(values).reshape(shapes.get(name) or MATRICES[name.split(".")[0]]).cuda()
            for name, values in weights.items()
        }
        self.cache = [([], []) for _ in range(LAYERS)]
        self.last = 0

    def norm(self, x):
        return x / self.torch.sqrt((x * x).mean() + 1e-5)

    def step(self, place, token=None):
        weights, torch = self.weights, self.torch
        x = weights["words"][self.last if token is None else token]
        for layer, (keys, values) in enumerate(self.cache):
            normed = self.norm(x)
            keys.append(weights[f"key.{layer}"] @ normed)
            values.append(weights[f"value.{layer}"] @ normed)
            scores = torch.stack(keys) @ (weights[f"query.{layer}"] @ normed) * WIDTH**-0.5
            x = x + weights[f"out.{layer}"] @ (torch.softmax(scores, 0) @ torch.stack(values))
            x = x + weights[f"down.{layer}"] @ torch.relu(weights[f"up.{layer}"] @ self.norm(x))
        self.last = int((weights["scores"] @ self.norm(x)).argmax())
        return self.last


def generate(model, prompt, count):
    """Generate tokens. The prompt is processed first; the choice at its end is the first new token."""
    found = list(prompt)
    for place in range(len(prompt) + count - 1):
        inside = place < len(prompt)
        token = model.step(place, prompt[place] if inside else None)
        if place >= len(prompt) - 1:
            found.append(token)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default="3 14 15", help=f"tokens, numbers below {WORDS}")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--torch", action="store_true", help="with PyTorch")
    options = parser.parse_args()
    prompt = [int(word) for word in options.prompt.split()]
    if not prompt or not all(0 <= token < WORDS for token in prompt):
        parser.error(f"a prompt is numbers below {WORDS}")
    if options.tokens < 1 or len(prompt) + options.tokens > CONTEXT:
        parser.error(f"prompt and tokens together: {CONTEXT} at most")

    begin = time.perf_counter()
    weights = make_weights()
    model = TorchModel(weights) if options.torch else Model(Driver(), weights)
    print(f"model: {sum(map(len, weights.values())):,} parameters, {time.perf_counter() - begin:.3f} s")
    begin = time.perf_counter()
    found = generate(model, prompt, options.tokens)
    took = time.perf_counter() - begin
    print(f"generated: {options.tokens} tokens, {options.tokens / took:.1f} a second")
    print("tokens:", *found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
