"""LightGBM: gradient boosting with thousands of short OpenMP regions on the system's libgomp.so.1.

Importing lightgbm also imports scikit-learn, so this process holds two libgomps (the system's, used by
LightGBM, and scikit-learn's bundled one) and two OpenBLAS pools. `deterministic` makes the model independent
of the number of threads.
"""

import hashlib

import lightgbm
import numpy as np
from threadpoolctl import threadpool_info

import appkit

ROUNDS = 1500


def system_gomp_threads():
    """Team size of the libgomp that lib_lightgbm.so is linked to."""
    pools = [pool for pool in threadpool_info() if "libgomp.so" in pool["filepath"]]
    return pools[0]["num_threads"] if pools else None


def main():
    app = appkit.start("lightgbm_train", system_gomp_threads())
    rng = np.random.default_rng(20261121)
    features = rng.integers(0, 64, (20000, 24)).astype(np.float64)
    score = features[:, 0] + features[:, 1] * features[:, 2] / 32 - 2 * np.abs(features[:, 3] - 30)
    label = (score > np.median(score)).astype(np.float64)
    settings = {
        "objective": "binary",
        "num_leaves": 31,
        "deterministic": True,
        "force_col_wise": True,
        "seed": 1,
        "verbose": -1,
    }
    data = lightgbm.Dataset(features, label, params=settings).construct()

    app.begin()
    model = lightgbm.train(settings, data, num_boost_round=app.rounds(ROUNDS))
    app.end()

    right = float(((model.predict(features) > 0.5) == label).mean())
    # The settings are printed in the model text, too: leave out that part, which may name a thread count.
    trees = model.model_to_string().split("end of trees")[0]
    app.finish(right > 0.7, f"{right:.4f}", hashlib.sha256(trees.encode()).digest())


if __name__ == "__main__":
    main()
