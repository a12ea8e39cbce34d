"""Train some trees, and make predictions with them."""

import numpy
import xgboost


def prepare(device):
    """Make the data; return what computes."""
    rng = numpy.random.default_rng(1)
    rows = rng.standard_normal((4096, 16), numpy.float32)
    labels = (rows[:, 0] * rows[:, 1] + rows[:, 2] > 0).astype(numpy.float32)

    def compute():
        data = xgboost.DMatrix(rows, labels)
        options = {"device": device, "tree_method": "hist", "objective": "binary:logistic", "seed": 1}
        trees = xgboost.train(options, data, num_boost_round=10)
        return bytes(trees.save_raw("ubj")) + trees.predict(data).tobytes()

    return compute
