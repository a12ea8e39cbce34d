"""Find the peak rates of a device: floating-point operations per second, and bytes of memory per second.

The record of the device in the trace has the number of SMs, the clock rates and the width of the memory bus
(gpt-stream(5), device). A table has the operations per SM and clock; memory transfers two bits per line and clock.
Records in older traces lack these numbers, so NVIDIA's published figures are used for them. All figures are for
products of dense FP16 or BF16 matrices, accumulated in FP32: TF32 reaches half of that, and FP8 twice as much.

Sources: NVIDIA's architecture whitepapers (V100, Turing, A100, GA102, Ada, H100, Blackwell) and data sheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PER_CLOCK = {  # FLOPs per SM and clock, by compute capability
    "sm_70": 1024,
    "sm_75": 1024,
    "sm_80": 2048,
    "sm_86": 1024,
    "sm_89": 1024,
    "sm_90": 4096,
    "sm_100": 8192,
    "sm_120": 1024,
}
# The peaks of other precisions, relative to the above. FP32 is computed outside of tensor cores, and FP64 and TF32 in
# them, if they support it.
OTHERS = {
    "sm_70": {"FP64": 1 / 16, "FP32": 1 / 8},
    "sm_75": {"FP64": 1 / 256, "FP32": 1 / 8},
    "sm_80": {"FP64": 1 / 16, "FP32": 1 / 16, "TF32": 1 / 2},
    "sm_86": {"FP64": 1 / 256, "FP32": 1 / 4, "TF32": 1 / 2},
    "sm_89": {"FP64": 1 / 256, "FP32": 1 / 4, "TF32": 1 / 2, "FP8": 2.0},
    "sm_90": {"FP64": 1 / 16, "FP32": 1 / 16, "TF32": 1 / 2, "FP8": 2.0},
    "sm_100": {"FP64": 1 / 64, "FP32": 1 / 32, "TF32": 1 / 2, "FP8": 2.0},
    "sm_120": {"FP64": 1 / 256, "FP32": 1 / 4, "TF32": 1 / 2, "FP8": 2.0},
}
PRECISIONS = ("FP64", "FP32", "TF32", "FP8")  # FP16 and BF16 are the ones above
OUTSIDE = ("FP64", "FP32")  # a GeForce reaches these rates in full
HALF = "GeForce", ("sm_75", "sm_86", "sm_89", "sm_120")  # these reach half of the rate when they accumulate in FP32
PUBLISHED = {  # 10^12 FLOPs and 10^9 bytes per second, by the driver's device name
    "Tesla V100-SXM2-16GB": (125, 900),
    "Tesla V100-SXM2-32GB": (125, 900),
    "Tesla T4": (65, 320),
    "NVIDIA A100-SXM4-40GB": (312, 1555),
    "NVIDIA A100-SXM4-80GB": (312, 2039),
    "NVIDIA A100-PCIE-40GB": (312, 1555),
    "NVIDIA A100 80GB PCIe": (312, 1935),
    "NVIDIA A10": (125, 600),
    "NVIDIA A40": (149.7, 696),
    "NVIDIA L4": (121, 300),
    "NVIDIA L40S": (362, 864),
    "NVIDIA H100 PCIe": (756, 2000),
    "NVIDIA H100 80GB HBM3": (989.4, 3350),
    "NVIDIA H200": (989.4, 4800),
    "NVIDIA B200": (2250, 8000),
}


class Peak(NamedTuple):
    """A rate per second, or None if it isn't known, and where it comes from."""

    rate: float | None
    source: str


UNKNOWN = Peak(None, "not known")
SIMULATED = Peak(None, "none, as its times mean nothing")


def is_simulated(card: Mapping[str, Any]) -> bool:
    """Return True if this is the record of the simulated device, which executes PTX instead of machine code."""
    return bool(card.get("runs") == "ptx")


def find_flops(card: Mapping[str, Any], given: float | None = None) -> Peak:
    """Return the peak FLOPs per second of a device. The value `given` on the command line takes precedence."""
    if given:
        return Peak(given, "--peak-flops")
    if is_simulated(card):
        return SIMULATED
    arch, name = card.get("arch", ""), card.get("name", "")
    sms, clock, each = card.get("sms"), card.get("clock_hz"), PER_CLOCK.get(arch)
    if sms and clock and each:
        each //= 1 + (HALF[0] in name and arch in HALF[1])
        return Peak(float(sms * clock * each), f"{sms:,} SMs x {clock / 1e9:.3g} GHz x {each:,}, dense FP16 of {arch}")
    if name in PUBLISHED:
        return Peak(PUBLISHED[name][0] * 1e12, "published, dense FP16")
    return UNKNOWN


def find_others(card: Mapping[str, Any]) -> dict[str, float]:
    """Return the peak FLOPs per second of a device in other PRECISIONS, where they're known."""
    flops, arch = find_flops(card).rate, card.get("arch", "")
    if flops is None:
        return {}
    halved = 1 + (HALF[0] in card.get("name", "") and arch in HALF[1])
    return {name: flops * part * (halved if name in OUTSIDE else 1) for name, part in OTHERS.get(arch, {}).items()}


def find_bytes(card: Mapping[str, Any], given: float | None = None) -> Peak:
    """Return the peak bytes per second of a device's memory. The value `given` on the command line takes precedence."""
    if given:
        return Peak(given, "--peak-bytes")
    if is_simulated(card):
        return SIMULATED
    clock, bits, name = card.get("memory_hz"), card.get("bus_bits"), card.get("name", "")
    if clock and bits:
        return Peak(2 * clock * bits / 8, f"2 x {clock / 1e9:.4g} GHz x {bits:,} bits")
    if name in PUBLISHED:
        return Peak(PUBLISHED[name][1] * 1e9, "published")
    return UNKNOWN
