//! `corefit reproduce`: the papers' figures, theirs beside ours.
//!
//! `theirs` is a number that a paper's text prints; where it prints none, only an order or a kind is compared.
//! Everything runs on the simulated host, from scenarios that `corefit sim` can run, too. What is fitted is
//! named with each number that depends on it; what is not named is a setting that the paper states, or a value
//! of ours that was there before (docs/simulator.md).

mod p1;
mod p2;
mod p3;
mod p4;
mod p5;
mod sizing;
mod testbed;
mod ulas;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::bench::print;
use crate::table::{NONE, Table};
use crate::versioned::versioned;
use crate::{picture, tell};

/// Simulate the papers' figures, theirs and ours side by side
///
/// P1: Shan, Jia, Ding, Rethinking Multicore Application Scalability on Big Virtual Machines. P2: Takayama, Kourai, Optimization
/// of Parallel Applications under CPU Overcommitment. P3: Kashyap, Min, Kim, Scalability in the Clouds! A Myth or Reality? P4:
/// Kourai, Nakata, Analysis of the Impact of CPU Virtualization on Parallel Applications in Xen. P5: Shao, Huang, Jin, Hu, XenMVM.
/// Exit status 1 if something does not come out.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Papers [default: all]; P2 takes about four minutes of CPU time without controllers, P3 some 50 s
    #[arg(value_enum, ignore_case = true)]
    papers: Vec<Paper>,
    #[command(flatten)]
    sizing: sizing::Choice,
    #[command(flatten)]
    overlap: p5::Policies,
    /// Draw P2's numbers of vCPUs: our times over the best ones; .svg or .png
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Effort {
    /// Nothing.
    None,
    /// Some shortages, one run each.
    Quick,
    /// All of them, with intervals.
    Full,
}

/// Where something was published; docs/model.md has the titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
enum Paper {
    P1,
    P2,
    P3,
    P4,
    P5,
}

#[derive(Serialize)]
struct Document {
    items: Vec<Item>,
    /// P2's numbers of vCPUs, one line for each program and shortage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sizes: Vec<sizing::Row>,
}

/// One number or statement.
#[derive(Debug, Serialize)]
struct Item {
    paper: Paper,
    figure: &'static str,
    what: String,
    /// As printed in the paper's text.
    theirs: Option<f64>,
    /// Who says it.
    said: Said,
    /// `None`: it did not come to an end.
    ours: Option<f64>,
    /// Half the width of the 95 % interval of `ours`, where it is a mean of runs that differ by chance.
    ci95: Option<f64>,
    /// Parameters that decide it, were fitted to numbers of this testbed or are unpublished settings of ours.
    fitted: Vec<&'static str>,
    /// What `ok` means.
    rule: String,
    /// `None`: it is of another policy than the one that this is said of, or of too few shortages to tell. What corefit promises is judged by
    /// the cases that there are, which [`sizing::judged_by`] says.
    ok: Option<bool>,
    /// `ours` with as many digits as it takes to see whether it is `ok`.
    #[serde(skip)]
    shown: String,
}

/// Who says what is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// The paper prints a number.
    Number,
    /// The paper prints an order, a kind or a rule, without a number.
    Statement,
    /// Nobody but us: what corefit promises, or what was measured here.
    Ours,
}

/// When ours is as good as theirs.
enum Rule {
    /// So many percent off at most.
    Within(f64),
    /// The same of a ratio, which is an effect too: at least half as far from 1, on the same side.
    Effect(f64),
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
    /// Of what was to be counted.
    Exactly(f64),
}

impl Item {
    fn new(
        (paper, figure): (Paper, &'static str),
        what: impl Into<String>,
        theirs: Option<f64>,
        ours: Option<f64>,
        rule: &Rule,
    ) -> Item {
        let (text, holds): (String, Box<dyn Fn(f64) -> bool>) = match *rule {
            Rule::Within(percent) => {
                let to = theirs.unwrap_or(f64::NAN);
                (
                    format!("within {percent} % of theirs"),
                    Box::new(move |x| (x / to - 1.0).abs() * 100.0 <= percent),
                )
            }
            Rule::Effect(percent) => {
                let to = theirs.unwrap_or(f64::NAN);
                (
                    format!("within {percent} % of theirs, half the effect at least"),
                    Box::new(move |x| {
                        (x / to - 1.0).abs() * 100.0 <= percent && (x - 1.0) / (to - 1.0) >= 0.5
                    }),
                )
            }
            Rule::AtLeast(least) => (format!("at least {least}"), Box::new(move |x| x >= least)),
            Rule::AtMost(most) => (format!("at most {most}"), Box::new(move |x| x <= most)),
            Rule::Between(low, high) => {
                (format!("from {low} to {high}"), Box::new(move |x| (low..=high).contains(&x)))
            }
            Rule::Exactly(n) => (format!("{n}, to 0.05"), Box::new(move |x| (x - n).abs() <= 0.05)),
        };
        let ok = ours.is_some_and(&holds);
        let tells = |text: &String| text.parse().is_ok_and(|x| holds(x) == ok);
        let shown =
            ours.map(|x| (2..=6).map(|digits| rounded(x, digits)).find(tells).unwrap_or(rounded(x, 2)));
        let shown = shown.unwrap_or(NONE.into());
        Item {
            paper,
            figure,
            what: what.into(),
            theirs,
            said: if theirs.is_some() { Said::Number } else { Said::Statement },
            ours,
            ci95: None,
            fitted: vec![],
            rule: text,
            ok: Some(ok),
            shown,
        }
    }

    /// What is said of `whose` is not said of this.
    fn not_judged(self, whose: &str) -> Item {
        Item { ok: None, rule: format!("not judged; {whose}: {}", self.rule), ..self }
    }

    /// This has to hold as well.
    fn and(self, holds: bool, what: &str) -> Item {
        Item { ok: self.ok.map(|ok| ok && holds), rule: format!("{}, {what}", self.rule), ..self }
    }

    /// Nothing of it was published.
    fn unpublished(self) -> Item {
        Item { said: Said::Ours, ..self }
    }

    /// So far off it may be by chance.
    fn off_by(self, ci95: Option<f64>) -> Item {
        Item { ci95, ..self }
    }

    /// It depends on this parameter.
    fn fitted(self, parameter: &'static str) -> Item {
        Item { fitted: vec![parameter], ..self }
    }

    /// And on this one.
    fn fitted_too(mut self, parameter: &'static str) -> Item {
        self.fitted.push(parameter);
        self
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut papers = args.papers.clone();
    if papers.is_empty() {
        papers = vec![Paper::P1, Paper::P2, Paper::P3, Paper::P4, Paper::P5];
    }
    papers.sort_unstable();
    papers.dedup();
    let effort = args.sizing.effort;
    if args.sizing.is_part() {
        ensure!(
            papers.contains(&Paper::P2) && effort != Effort::None,
            "--only and --sizes choose of P2's numbers of vCPUs; give P2, and --controllers quick or full"
        );
    }
    ensure!(
        !args.sizing.chooses_runs() || (papers.contains(&Paper::P2) && effort != Effort::None),
        "--runs and --random choose runs of P2's numbers of vCPUs; give P2, and --controllers quick or full"
    );
    ensure!(
        args.sizing.size.is_none() || (papers.contains(&Paper::P2) && effort != Effort::None),
        "--size is a policy for P2's numbers of vCPUs; give P2, and --controllers quick or full"
    );
    ensure!(
        !args.overlap.any()
            || (effort != Effort::None && (papers.contains(&Paper::P2) || papers.contains(&Paper::P5))),
        "--demand and --arbitrate are policies for P2's numbers of vCPUs and P5's job sets; give P2 or P5, and --controllers quick or full"
    );
    ensure!(
        args.overlap.sets.is_none() || (effort != Effort::None && papers.contains(&Paper::P5)),
        "--sets chooses of P5's job sets; give P5, and --controllers quick or full"
    );
    // To be known before, not after minutes.
    ensure!(
        args.svg.is_none() || (papers.contains(&Paper::P2) && effort != Effort::None),
        "--svg draws P2's numbers of vCPUs; give P2, and --controllers quick or full"
    );
    let svg = args.svg.as_deref().map(picture::open).transpose().context("--svg")?;
    let (mut items, mut sizes) = (vec![], vec![]);
    // What cannot be written takes nothing else with it.
    let mut told = Ok(());
    if papers.contains(&Paper::P2) && effort != Effort::None {
        sizes = sizing::rows(&args.sizing, &args.overlap)?;
        ensure!(
            !sizes.is_empty(),
            "--only {}: no such case; names are as in \"lu, 4 VMs\"",
            args.sizing.only.join(", ")
        );
        items.extend(sizing::items(&sizes));
        if !args.json {
            told = answer!("{}", sizing::text(&sizes));
        }
    }
    for paper in papers.iter().filter(|_| !args.sizing.is_part()) {
        items.extend(match paper {
            Paper::P1 => p1::items()?,
            Paper::P2 => p2::items()?,
            Paper::P3 => p3::items()?,
            Paper::P4 => p4::items()?,
            Paper::P5 => p5::items(effort, &args.overlap)?.into_iter().chain(ulas::items()?).collect(),
        });
    }
    items.sort_by_key(|item| item.paper);
    let missed = items.iter().any(|item| item.ok == Some(false));
    let document = Document { items, sizes };
    told = told.and(print(args.json, &versioned(&document), |_| {
        text(&papers, &document.items, sizing::judged_by(&document.sizes).as_deref())
    }));
    let all = svg.is_none_or(|svg| {
        let drawn = crate::chart::svg(&sizing::chart(&document.sizes));
        tell::written(drawn.and_then(|drawn| picture::write(svg, &drawn)))
    });
    told.map(|()| tell::end(all, ExitCode::from(u8::from(missed))))
}

/// Without a sign of zero.
fn rounded(x: f64, digits: usize) -> String {
    let text = format!("{x:.digits$}");
    text.strip_prefix('-')
        .filter(|rest| rest.bytes().all(|b| matches!(b, b'0' | b'.')))
        .unwrap_or(&text)
        .into()
}

/// `promised`: which part of what P2's promises are of they are judged by.
fn text(papers: &[Paper], items: &[Item], promised: Option<&str>) -> String {
    let mut table = Table::new(3, &["", "figure", "what", "theirs", "ours", "+-", "ok", "means"]);
    for item in items {
        table.row(vec![
            format!("{:?}", item.paper),
            item.figure.into(),
            item.what.clone(),
            item.theirs.map_or(NONE.into(), |x| rounded(x, 2)),
            item.shown.clone(),
            item.ci95.map_or(String::new(), |half| rounded(half, 2)),
            item.ok.map_or(NONE, |ok| if ok { "yes" } else { "NO" }).into(),
            item.rule.clone(),
        ]);
    }
    let mut text = table.render();
    if items.iter().any(|item| item.ci95.is_some()) {
        text += "+-: half the width of the 95 % interval, of runs that differ by their seeds; of a mean of cases, of these.\n";
    }
    for paper in papers.iter().filter(|paper| !items.iter().any(|item| item.paper == **paper)) {
        text += &format!("{paper:?}: nothing of it is reproduced yet.\n");
    }
    let fitted: BTreeSet<&str> = items.iter().flat_map(|item| item.fitted.iter().copied()).collect();
    let fitted: Vec<&str> = fitted.into_iter().collect();
    let fitted = if fitted.is_empty() { "nothing".into() } else { fitted.join(", ") };
    let judged = items.iter().filter(|item| item.ok.is_some()).count();
    let of = |said: Said| {
        let judged = || items.iter().filter(|item| item.said == said).filter_map(|item| item.ok);
        let all = judged().count();
        (all > 0).then(|| format!("{} of {all}", judged().filter(|ok| *ok).count()))
    };
    let published = [(Said::Number, "numbers"), (Said::Statement, "statements")];
    let published: Vec<String> =
        published.into_iter().filter_map(|(said, what)| Some(format!("{} {what}", of(said)?))).collect();
    if !published.is_empty() {
        text += &format!("As published: {}.\n", published.join(", "));
    }
    if let Some(ours) = of(Said::Ours) {
        text += &format!("As corefit promises, or was measured here; nobody published it: {ours}.\n");
        text += promised.unwrap_or_default();
    }
    text += &format!("Fitted: {fitted}.\n");
    if judged < items.len() {
        text += &format!(
            "Not judged: {}, of other policies than what is published or promised, or of too few shortages to tell.\n",
            items.len() - judged
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_shown_so_that_one_sees_whether_it_is_ok() {
        let shown = |ours, rule| Item::new((Paper::P1, "Figure 3"), "x", Some(4.0), ours, &rule).shown;
        assert_eq!(shown(Some(0.9951), Rule::AtLeast(1.0)), "0.995", "not 1.00, which would be at least 1");
        assert_eq!(shown(Some(1.0049), Rule::AtMost(1.0)), "1.005");
        assert_eq!(shown(Some(4.004), Rule::Within(1.0)), "4.00");
        assert_eq!(shown(Some(-0.001), Rule::AtMost(2.0)), "0.00");
        assert_eq!(shown(Some(0.99999999), Rule::AtLeast(1.0)), "1.00", "what no six digits tell");
        assert_eq!(shown(None, Rule::AtLeast(1.0)), NONE);
    }

    #[test]
    fn what_nobody_published_is_not_counted_as_published() {
        let item = |theirs, ours| Item::new((Paper::P2, "2.5"), "x", theirs, Some(ours), &Rule::AtMost(1.0));
        let promise = || item(None, 0.5).unpublished();
        let only = text(&[Paper::P2], &[promise()], Some("By 3 of 9.\n"));
        assert!(!only.contains("As published"), "{only}");
        assert!(only.contains("nobody published it: 1 of 1.\nBy 3 of 9.\n"), "{only}");
        let all = [item(Some(1.0), 0.5), item(Some(1.0), 2.0), item(None, 0.5), promise()];
        let all = text(&[Paper::P2], &all, None);
        assert!(all.contains("As published: 1 of 2 numbers, 1 of 1 statements.\n"), "{all}");
    }

    #[test]
    fn what_is_missing_or_off_is_not_ok() {
        let at = (Paper::P2, "Figure 2");
        let ok = |theirs, ours, rule| Item::new(at, "x", theirs, ours, &rule).ok == Some(true);
        assert!(ok(Some(100.0), Some(124.0), Rule::Within(25.0)));
        assert!(!ok(Some(100.0), Some(126.0), Rule::Within(25.0)));
        assert!(!ok(Some(100.0), None, Rule::Within(25.0)), "it did not end");
        assert!(!ok(None, Some(1.0), Rule::Within(25.0)), "nothing to be within of");
        assert!(ok(Some(0.8), Some(0.9), Rule::Effect(25.0)) && ok(Some(1.6), Some(1.3), Rule::Effect(25.0)));
        assert!(!ok(Some(0.8), Some(1.0), Rule::Effect(25.0)), "no effect is not within a quarter of one");
        assert!(!ok(Some(1.2), Some(0.95), Rule::Effect(25.0)), "nor is the contrary");
        assert!(!ok(Some(1.6), Some(2.1), Rule::Effect(25.0)), "nor much more of it");
        assert!(ok(None, Some(2.0), Rule::AtLeast(2.0)) && !ok(None, Some(f64::NAN), Rule::AtLeast(2.0)));
        assert!(ok(None, Some(2.0), Rule::AtMost(2.0)) && !ok(None, Some(2.1), Rule::AtMost(2.0)));
        assert!(
            ok(Some(7.0), Some(7.04), Rule::Exactly(7.0)) && !ok(Some(7.0), Some(7.1), Rule::Exactly(7.0))
        );
    }
}
