#!/bin/sh
# The tests that need a GPU. Each script prints a short table last, and leaves its raw output in GPT_GPU_OUT.
set -eu
cd "$(dirname "$0")/../.."
: "${PYTHON:=.venv/bin/python}" "${GPT_GPU_OUT:=build/gpu}"
export GPT_GPU_OUT
command -v nvidia-smi >/dev/null || { echo "test-gpu: error: no nvidia-smi: this needs an NVIDIA GPU" >&2; exit 4; }
mkdir -p "$GPT_GPU_OUT"
status=0
for script in slim recompress hook hook_ioctl weave variables weave_triton arithmetic corpus cudart loads probe probe_times sync_wait lookup probe_fit probe_corpus probe_ncu probe_suites probe_stress control toggle pool_attack tensors layers node_times node_stamps probe_graphs captures neutrino inference sass_risks sass_order sass_interp sass sass_variables sass_torch stock stock_ncu stock_many stock_serving detail events dmat clocks ranges; do
    "$PYTHON" "tests/gpu/$script.py" || status=1
done
if [ "$(nvidia-smi -L | wc -l)" -ge 2 ]; then
    "$PYTHON" tests/gpu/collectives.py || status=1
    "$PYTHON" tests/gpu/stock_ranks.py || status=1
fi
exit $status
