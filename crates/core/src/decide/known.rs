//! What a controller remembers of one VM.

use std::time::Duration;

use super::apart::Apart;
use super::arbitrate::Request;
use super::calm::Calm;
use super::counted::Counted;
use super::demand::{Cut, Monitored, Predict, predictor};
use super::exact::Exact;
use super::short::Short;
use super::size::{Choice, Size, Subject, sizer};
use super::{Policy, Sizer, longer};
use crate::machine::Lever;
use crate::{CpuSet, Time};

/// What is remembered of a VM.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) sizer: (Sizer, Box<dyn Size + Send>),
    pub(super) demand: Box<dyn Predict + Send>,
    /// In the last usual time.
    pub(super) monitored: Option<Monitored>,
    pub(super) wants: Option<f64>,
    /// How that by which it goes was seen.
    pub(super) exact: Exact,
    pub(super) cut: Cut,
    /// What it asked the arbiter for at the last step that saw it, and pCPUs that it may use.
    pub(super) request: Option<(Request, CpuSet)>,
    /// When it did.
    pub(super) asked: Time,
    /// The work that was counted by the last step.
    pub(super) work: Option<Counted>,
    /// vCPUs that it had when nothing was tried last.
    pub(super) has: u32,
    /// It was tried with other counts at the last look.
    pub(super) trying: bool,
    /// Or at any since the usual time passed last.
    tried: bool,
    pub(super) changed: Option<Time>,
    /// Fewer that were wanted, each less than the one before, and since when no more than that were.
    pub(super) fewer: Option<Vec<(Time, Choice)>>,
    pub(super) calm: Calm,
    /// The change that is to be made now is to fewer, or more; `None`: something is tried.
    pub(super) wish: Option<bool>,
    /// Some of its pCPUs were taken for one that is more important, and it still has more than it was granted.
    pub(super) preempted: bool,
    /// pCPUs that it was granted last.
    pub(super) granted: Option<u32>,
    /// How often it has starved, and what is said of it while it does.
    pub(super) starved: (u32, Option<String>),
    pub(super) short: Short,
    pub(super) not_before: Time,
    /// Why its vCPUs could not be changed when that was tried last: it was not there, or did not answer.
    pub(super) away: Option<String>,
    /// Until when it is not asked, as a lever turned out not to be there, or not to be ours, and what was said to that.
    pub(super) refused: Option<(Time, String)>,
    /// How long it was left alone when it said last that a change was done, and nothing had changed.
    pub(super) vain: Duration,
    /// vCPUs that were offline before corefit, and that its guest could not take online: how long it is not asked for such, and until
    /// when.
    pub(super) others: (Duration, Time),
    /// It is a control group that is sized.
    pub(super) by_cpuset: bool,
    /// What it could use then, before it was sized.
    pub(super) wide: CpuSet,
    pub(super) apart: Apart,
}

impl Known {
    /// Nothing is known yet of a VM that this sizer sizes.
    pub(super) fn new(name: Sizer, by_cpuset: bool, policy: &Policy) -> Known {
        Known {
            name: String::new(),
            sizer: (name, sizer(name, policy)),
            demand: predictor(policy.demand, policy),
            monitored: None,
            wants: None,
            exact: Exact::default(),
            cut: Cut::new(policy),
            request: None,
            asked: Time(0),
            work: None,
            has: 0,
            trying: false,
            tried: false,
            changed: None,
            fewer: None,
            calm: Calm::default(),
            wish: None,
            preempted: false,
            granted: None,
            starved: (0, None),
            short: Short::default(),
            not_before: Time(0),
            away: None,
            refused: None,
            vain: Duration::ZERO,
            others: (Duration::ZERO, Time(0)),
            by_cpuset,
            wide: CpuSet::default(),
            apart: Apart::default(),
        }
    }

    /// A look at it with so many vCPUs.
    pub(super) fn stays_at(&mut self, count: u32) {
        self.tried |= self.trying;
        if !self.trying {
            self.has = count;
        }
    }

    /// Sees what it wants with `count` vCPUs of at `most` so many, by what was monitored. Who was not measured this time wants what it
    /// wanted before, and what is tried with other numbers says nothing of it.
    pub(super) fn wants_now(&mut self, (count, most): (u32, u32), arbitrated: bool, at: Time) {
        let tried = std::mem::take(&mut self.tried);
        if let Some(monitored) = self.monitored.as_ref().filter(|_| !tried || self.wants.is_none()) {
            self.exact.went_by(monitored, at);
            let wants = self.demand.wants(&monitored.within(count, most), count, at);
            let cut = arbitrated.then(|| self.cut.of(monitored, wants, (count, most), at));
            self.wants = Some(cut.unwrap_or(wants));
        }
    }

    /// vCPUs that were offline before corefit did not come: it is not asked for such for a while, longer each time.
    pub(super) fn rest_of_others(&mut self, at: Time) {
        let rest = longer(self.others.0);
        self.others = (rest, at + rest);
    }

    /// Whether this is the lever by which it is sized.
    pub(super) fn sized_by(&self, lever: Lever) -> bool {
        matches!(lever, Lever::Online) || self.by_cpuset && lever == Lever::Affinity(0)
    }

    /// What is to be acted upon now of a choice: grow at once, shrink after a dwell, to the most that was chosen in it, and not too often.
    pub(super) fn due(
        &mut self,
        choice: &Choice,
        subject: &Subject<'_>,
        free: bool,
        policy: &Policy,
    ) -> Option<Choice> {
        self.wish = None;
        // What is tried says nothing of what is wanted.
        if choice.count >= subject.online || free {
            self.fewer = None;
        }
        if choice.count == subject.online {
            return None;
        }
        if free {
            return Some(choice.clone());
        }
        let (mut to, due) = (choice, !self.lately(subject.at, policy));
        if choice.count < subject.online {
            let fewer = self.fewer.get_or_insert_default();
            // It may have been made smaller meanwhile, or may have fewer only.
            fewer.retain(|(_, most)| most.count < subject.online && most.count <= subject.most);
            let more = fewer.partition_point(|(_, most)| most.count > choice.count);
            let since = fewer.get(more).map_or(subject.at, |(since, _)| *since);
            fewer.truncate(more);
            fewer.push((since, choice.clone()));
            // What an arbiter takes others wait for.
            let dwell =
                if subject.granted.is_some() { policy.dwell() } else { self.calm.dwell(policy, subject.at) };
            to = &fewer.iter().rfind(|(since, _)| subject.at.since(*since) >= dwell)?.1;
        }
        self.wish = due.then_some(to.count < subject.online);
        due.then(|| to.clone())
    }

    /// Whether its lever was changed too short ago to be changed again.
    pub(super) fn lately(&self, at: Time, policy: &Policy) -> bool {
        self.changed.is_some_and(|then| at.since(then) < Duration::from_millis(policy.lever_ms))
    }
}
