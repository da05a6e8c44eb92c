//! What is promised of real VMs, and whether a measurement met it: said at its end, which fails where a promise is missed.

/// What a promise is of, s: shorter measurements are not judged.
pub(crate) const LASTS_S: f64 = 60.0;

/// What a ratio of two times is promised to be.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    /// Measured beside what is promised.
    Nothing,
}

impl Limit {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Limit::AtMost(limit) => ratio <= limit,
            Limit::Below(limit) => ratio < limit,
            Limit::AtLeast(limit) => ratio >= limit,
            Limit::Nothing => true,
        }
    }

    fn said(self) -> String {
        match self {
            Limit::AtMost(limit) => format!("{limit:.2} at most"),
            Limit::Below(limit) => format!("below {limit:.2}"),
            Limit::AtLeast(limit) => format!("{limit:.2} at least"),
            Limit::Nothing => "nothing".into(),
        }
    }
}

/// Of each program and policy that was measured, with what was promised of it.
#[derive(Default)]
pub(crate) struct Promises {
    lines: Vec<String>,
    missed: Vec<String>,
}

impl Promises {
    /// A ratio in each round, as timed and at the same pace of the machine: their medians count, and a promise is missed where both miss it.
    /// `lasted` is how long each number was measured, s; `unlike` says why it is not what is promised otherwise.
    pub(crate) fn add(
        &mut self,
        what: &str,
        limit: Limit,
        rounds: &[[f64; 2]],
        lasted: f64,
        unlike: Option<&str>,
    ) {
        let [timed, paced] = [0, 1].map(|at| median(rounds.iter().map(|round| round[at]).collect()));
        let unlike = unlike.map(ToOwned::to_owned);
        let unlike = unlike.or_else(|| (lasted < LASTS_S).then(|| format!("runs of {lasted:.0} s")));
        let is_missed = !limit.holds(timed) && !limit.holds(paced);
        let judged = match (limit, unlike) {
            (Limit::Nothing, _) => "not judged".into(),
            (_, Some(why)) => format!("not judged: {why}"),
            _ => if is_missed { "missed" } else { "met" }.into(),
        };
        let line = format!(
            "{what}: promised {}; measured {timed:.3} as timed, {paced:.3} at the same pace ({}): {judged}",
            limit.said(),
            if rounds.len() == 1 { "once".into() } else { format!("median of {}", rounds.len()) },
        );
        if judged == "missed" {
            self.missed.push(line.clone());
        }
        self.lines.push(line);
    }

    /// Prints all of them.
    ///
    /// # Panics
    ///
    /// If one is missed.
    pub(crate) fn judge(&self) {
        println!("\nwhat was promised:");
        self.lines.iter().for_each(|line| println!("{line}"));
        assert!(
            !self.lines.is_empty(),
            "nothing was measured: MANAGE_PARTS and MANAGE_PROGRAMS name none that there is"
        );
        assert!(self.missed.is_empty(), "missed:\n{}", self.missed.join("\n"));
    }
}

/// Of an even number, the mean of the two in the middle.
pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2])
}

#[test]
fn a_promise_is_missed_where_the_medians_miss_it_as_timed_and_at_the_same_pace_after_a_minute() {
    let judged = |limit, rounds: &[[f64; 2]], lasted, unlike| {
        let mut promises = Promises::default();
        promises.add("cg", limit, rounds, lasted, unlike);
        let is_missed = std::panic::catch_unwind(|| promises.judge()).is_err();
        let line = promises.lines[0].clone();
        assert_eq!(is_missed, line.ends_with(": missed"), "{line}");
        line.rsplit_once(": ").map_or(line.clone(), |(_, judged)| judged.to_owned())
    };
    let once = |limit, timed, paced| judged(limit, &[[timed, paced]], 60.0, None);
    let d = Limit::AtMost(1.1);
    assert_eq!([once(d, 1.11, 1.12), once(d, 1.11, 1.1), once(d, 1.1, 1.12)], ["missed", "met", "met"]);
    assert_eq!(
        [(9.9, 9.8), (9.9, 10.0), (300.0, 300.0)].map(|(a, b)| once(Limit::AtLeast(10.0), a, b)),
        ["missed", "met", "met"]
    );
    assert_eq!([1.0, 0.99].map(|ratio| once(Limit::Below(1.0), ratio, ratio)), ["missed", "met"]);
    assert_eq!(once(Limit::Nothing, 3.0, 3.0), "not judged");

    // One round in three may be off, and each of the two medians is of rounds of its own.
    let three = |rounds: [f64; 3]| judged(d, &rounds.map(|d| [d, d]), 60.0, None);
    assert_eq!([three([1.0, 9.0, 1.0]), three([1.2, 1.0, 1.2])], ["met", "missed"]);
    assert_eq!(judged(d, &[[1.0, 2.0], [2.0, 1.0], [2.0, 1.0]], 60.0, None), "met");

    assert_eq!(judged(d, &[[2.0, 2.0]], 12.0, None), "runs of 12 s");
    assert_eq!(judged(d, &[[2.0, 2.0]], 60.0, Some("not all")), "not all");
    assert_eq!([median(vec![3.0, 1.0]), median(vec![9.0, 1.0, 2.0])], [2.0, 2.0]);
}
