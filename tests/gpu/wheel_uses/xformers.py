"""Make a matrix 2:4 sparse in both directions, with kernels compiled into the wheel.

The wheel loads libcudart.so.12: if that isn't installed, set LD_LIBRARY_PATH.
"""

import numpy

try:
    import torch
    import xformers.ops  # noqa: F401 - it registers torch.ops.xformers
except ImportError as error:  # without a GPU there may be no PyTorch
    torch, reason = None, error

ROWS, COLUMNS = 4096, 2048


def prepare(device):
    """Make the data; return what computes."""
    if torch is None:
        raise reason
    numbers = numpy.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(numpy.float32)
    matrix = torch.from_numpy(numbers).to(device, torch.bfloat16)

    def compute():
        if device == "cpu":
            return matrix.float().numpy().tobytes()
        ops = torch.ops.xformers
        found = list(ops.sparse24_sparsify_both_ways(matrix))
        masks = found[-1]
        found += [*ops.sparse24_apply(matrix, masks), ops.sparse24_apply_dense_output(matrix, masks)]
        found.append(ops.sparse24_largest_mask_2d(matrix))
        data = [one.contiguous().cpu().view(torch.uint8).numpy().tobytes() for one in found if one is not None]
        return b"".join(data)

    return compute
