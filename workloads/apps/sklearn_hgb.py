"""scikit-learn's HistGradientBoosting: thousands of short OpenMP regions (histograms, splits, gradients).

Same bundled libgomp as `sklearn_kmeans`, but regions of tens of microseconds to a millisecond: the case in
which libgomp's spinning barrier hurts most when CPUs are short.
"""

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

import appkit

ROUNDS = 1200


def main():
    app = appkit.start("sklearn_hgb", _openmp_effective_n_threads())
    rng = np.random.default_rng(20261121)
    features = rng.integers(0, 64, (12000, 20)).astype(np.float64)
    target = np.rint(features[:, 0] + features[:, 1] * features[:, 2] / 32 - 2 * np.abs(features[:, 3] - 30))

    app.begin()
    model = HistGradientBoostingRegressor(
        max_iter=app.rounds(ROUNDS), max_leaf_nodes=31, early_stopping=False, random_state=1
    ).fit(features, target)
    app.end()

    score = model.score(features, target)
    verified = score > (0.9 if model.n_iter_ >= 50 else 0.2)
    app.finish(verified, f"{score:.4f}", np.round(model.predict(features[:500]), 3).tobytes())


if __name__ == "__main__":
    main()
