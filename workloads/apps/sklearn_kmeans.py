"""scikit-learn's KMeans (Lloyd): one OpenMP region per iteration, each over chunks of 256 rows.

scikit-learn's wheel bundles a libgomp of its own (`libgomp-HASH.so.1.0.0`), loaded by dlopen, beside the
OpenBLAS pools of NumPy and SciPy. The data are integers with mean zero, so sums, centres and labels are exact
whatever the number of threads.
"""

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

import appkit

ROWS = 40000
CLUSTERS = 48
ROUNDS = 16


def main():
    app = appkit.start("sklearn_kmeans", _openmp_effective_n_threads())
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(20261121)
    half = rng.integers(-50, 51, (ROWS // 2, 16)).astype(np.float64)
    rows = np.concatenate([half, -half])
    first = rows[:CLUSTERS].copy()

    app.begin()
    fits = [
        KMeans(CLUSTERS, init=first + shift, n_init=1, max_iter=60, tol=0.0, algorithm="lloyd").fit(rows)
        for shift in range(app.rounds(ROUNDS))
    ]
    app.end()

    last = fits[-1]
    distances = ((rows[:2000, None, :] - last.cluster_centers_[None]) ** 2).sum(axis=2)
    verified = bool((distances.argmin(axis=1) == last.labels_[:2000]).mean() > 0.99)
    inertia = float(((rows - last.cluster_centers_[last.labels_]) ** 2).sum())
    verified &= abs(inertia - last.inertia_) < 1e-6 * inertia
    verified &= all(fit.n_iter_ > 5 for fit in fits)
    app.finish(verified, *(fit.labels_.tobytes() for fit in fits), [fit.n_iter_ for fit in fits])


if __name__ == "__main__":
    main()
