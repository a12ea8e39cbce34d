"""Score some sentences with a small language model that has made-up weights."""

import tempfile

import ctranslate2
import numpy
from ctranslate2.specs import TransformerDecoderModelSpec

WORDS, SIZE, LAYERS = 64, 128, 2


def _fill(spec, shapes, rng):
    """Set every weight of a specification to made-up values."""
    for name, shape in shapes.items():
        target = spec
        *path, last = name.split("/")
        for part in path:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        setattr(target, last, (rng.standard_normal(shape) / 8).astype(numpy.float32))


def prepare(device):
    """Write and load the model; return the object that computes."""
    spec = TransformerDecoderModelSpec.from_config(LAYERS, 4, pre_norm=True)
    shapes = {"decoder/embeddings/weight": (WORDS, SIZE), "decoder/position_encodings/encodings": (64, SIZE)}
    shapes |= {"decoder/projection/weight": (WORDS, SIZE), "decoder/projection/bias": (WORDS,)}
    norms = ["decoder/layer_norm"]
    for layer in (f"decoder/layer/{number}" for number in range(LAYERS)):
        for part, rows, columns in (
            ("self_attention/linear/0", 3 * SIZE, SIZE), ("self_attention/linear/1", SIZE, SIZE),
            ("ffn/linear_0", 4 * SIZE, SIZE), ("ffn/linear_1", SIZE, 4 * SIZE),
        ):  # fmt: skip
            shapes |= {f"{layer}/{part}/weight": (rows, columns), f"{layer}/{part}/bias": (rows,)}
        norms += [f"{layer}/self_attention/layer_norm", f"{layer}/ffn/layer_norm"]
    for norm in norms:
        shapes |= {f"{norm}/gamma": (SIZE,), f"{norm}/beta": (SIZE,)}
    _fill(spec, shapes, numpy.random.default_rng(1))
    spec.decoder.scale_embeddings = False
    spec.register_vocabulary([f"w{number}" for number in range(WORDS - 3)] + ["<unk>", "<s>", "</s>"])
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        generator = ctranslate2.Generator(folder, device=device, compute_type="float32")

    def compute():
        sentences = [[f"w{(7 * number + step) % 61}" for step in range(48)] for number in range(32)]
        found = generator.score_batch(sentences)
        return numpy.array([one.log_probs for one in found], numpy.float32).tobytes()

    return compute
