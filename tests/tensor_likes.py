"""Objects that gpt.tensors treats as tensors, and code that makes calls with them."""

from __future__ import annotations

import numpy as np

from gpt.tensors.types import find_reader


class Pointed:
    """Has the attributes of a PyTorch tensor."""

    def __init__(self, address=4096, shape=(4, 8), stride=None, item=4, is_cuda=True):
        self.address, self.shape, self.item, self.is_cuda = address, shape, item, is_cuda
        self.steps = stride or tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        self.dtype = "torch.float32"

    def data_ptr(self):
        return self.address

    def element_size(self):
        return self.item

    def stride(self):
        return self.steps


class Interfaced:
    def __init__(self, told):
        self.told = told

    @property
    def __cuda_array_interface__(self):
        return self.told


class Exported:
    """A numpy array that claims to be on the device."""

    def __init__(self, array, device=(2, 0)):
        self.array, self.device, self.asked = array, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return self.array.__dlpack__()


def read(value):
    reader = find_reader(type(value))
    return reader and reader(value)


def names(found):
    return [(seen.name, seen.function) for seen in found]


def callee(first, *rest, **named):
    made = Pointed(0x9000)
    len(rest)
    return made
