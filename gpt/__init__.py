"""GPT, the GPU Probe Toolchain: cut, probe and watch GPU programs that are already built."""

__version__ = "0.1.0"
