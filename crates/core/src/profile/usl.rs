//! The Universal Scalability Law, fitted to runs: the rival that predictions from one run are compared with.

/// Speedup(n) = n / (1 + sigma (n - 1) + kappa n (n - 1)) (Gunther, Subramanyam and Parvu, 2011).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usl {
    /// Contention.
    pub sigma: f64,
    /// Coherence.
    pub kappa: f64,
}

impl Usl {
    /// Least squares of n / speedup - 1 over sigma, kappa >= 0, from pairs of n and time; `None` without a run of one
    /// thread or with fewer than two other counts.
    #[must_use]
    pub fn fit(runs: &[(f64, f64)]) -> Option<Usl> {
        let singles: Vec<f64> = runs.iter().filter(|run| run.0 == 1.0).map(|run| run.1).collect();
        let one = singles.iter().sum::<f64>() / singles.len() as f64;
        let mut counts: Vec<f64> = runs.iter().map(|run| run.0).filter(|n| *n > 1.0).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        if singles.is_empty() || counts.len() < 2 {
            return None;
        }
        let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(n, time) in runs {
            let (a, b, y) = (n - 1.0, n * (n - 1.0), n * time / one - 1.0);
            (aa, ab, bb, ay, by) = (aa + a * a, ab + a * b, bb + b * b, ay + a * y, by + b * y);
        }
        let whole = aa * bb - ab * ab;
        let (sigma, kappa) = ((ay * bb - by * ab) / whole, (by * aa - ay * ab) / whole);
        Some(match (sigma >= 0.0, kappa >= 0.0) {
            (true, true) => Usl { sigma, kappa },
            (false, _) => Usl { sigma: 0.0, kappa: (by / bb).max(0.0) },
            (true, false) => Usl { sigma: (ay / aa).max(0.0), kappa: 0.0 },
        })
    }

    /// What it predicts.
    #[must_use]
    pub fn speedup(&self, n: f64) -> f64 {
        n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_found_again_in_its_own_runs() {
        let law = Usl { sigma: 0.05, kappa: 0.002 };
        let runs: Vec<(f64, f64)> =
            [1.0, 2.0, 3.0, 4.0, 6.0, 8.0].map(|n| (n, 7.0 / law.speedup(n))).to_vec();
        let fitted = Usl::fit(&runs).unwrap();
        assert!((fitted.sigma - 0.05).abs() < 1e-9 && (fitted.kappa - 0.002).abs() < 1e-9, "{fitted:?}");
        assert!((fitted.speedup(16.0) - law.speedup(16.0)).abs() < 1e-9);
    }

    #[test]
    fn coefficients_are_not_negative_and_too_few_runs_are_no_fit() {
        let fitted = Usl::fit(&[(1.0, 10.0), (2.0, 4.0), (4.0, 2.0)]).unwrap();
        assert!(fitted.sigma >= 0.0 && fitted.kappa >= 0.0 && fitted.speedup(4.0) <= 4.0);
        assert_eq!(Usl::fit(&[(2.0, 4.0), (4.0, 2.0)]), None);
        assert_eq!(Usl::fit(&[(1.0, 4.0), (2.0, 2.0)]), None);
    }
}
