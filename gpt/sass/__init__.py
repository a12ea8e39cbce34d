"""Machine code of NVIDIA GPUs, from sm_80 on: instruction words, and what each of them reads and writes."""
