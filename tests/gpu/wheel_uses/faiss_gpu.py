"""Search nearest neighbours by brute force."""

import faiss
import numpy


def prepare(device):
    """Make the index; return what computes."""
    rng = numpy.random.default_rng(1)
    base, queries = rng.standard_normal((20000, 64), numpy.float32), rng.standard_normal((256, 64), numpy.float32)

    def compute():
        index = faiss.IndexFlatL2(64)
        if device == "cuda":
            index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
        index.add(base)
        distances, ids = index.search(queries, 10)
        return distances.tobytes() + ids.tobytes()

    return compute
