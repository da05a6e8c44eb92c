//! `corefit plan`: what the controllers would change on a host now, and why. Nothing is changed.

mod after;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use corefit_core::decide::{
    Action, Arbiter, Controller, Helpers, Placer, Plan, Policy, Rule, Shaper, Sizer, Step, Why, shaped_after,
};
use corefit_core::machine::{Lever, LeverKind, Role, Snapshot, VmState, estimate};
use corefit_linux::Root;
use serde::Serialize;

use crate::alike::alike;
use crate::durations::{look, period};
use crate::follows::{Follows, follows};
use crate::inputs::watched;
use crate::machine::MachineArg;
use crate::manage::journal::Entry;
use crate::manage::{Config, Telling, keeper, try_none, works_on, yields};
use crate::named::named;
use crate::table::Table;
use crate::{lines, printable, text_file, versioned};

/// What the controllers would change on a host now, and why
///
/// Looks twice, and changes nothing. It plans what `corefit manage` would with the same --config, or without one, what guests are
/// told included; options count more. With the size policy `corefit` the first thing that it would do is often to try a number of vCPUs. On a simulated host the
/// `[policy]` of its scenario counts as that of a configuration, unless there is --config.
#[derive(clap::Args)]
pub(crate) struct PlanArgs {
    /// How many vCPUs: none, vcpu-bal, vscale, pcpu-est, corefit [default: that of the configuration, else corefit]
    #[arg(long, value_name = "POLICY", value_parser = named::<corefit_core::decide::Sizer>)]
    size: Option<corefit_core::decide::Sizer>,
    /// Who is served first: none, fcfs, priority, max-min [default: that of the configuration, else none, as of those below]
    #[arg(long, value_name = "POLICY", value_parser = named::<corefit_core::decide::Arbiter>)]
    arbitrate: Option<corefit_core::decide::Arbiter>,
    /// What VMs weigh: none, grants
    #[arg(long, value_name = "POLICY", value_parser = named::<corefit_core::decide::Weigher>)]
    weigh: Option<corefit_core::decide::Weigher>,
    /// On which pCPUs: none, ulas, optimal-affinity, corefit
    #[arg(long, value_name = "POLICY", value_parser = named::<corefit_core::decide::Placer>)]
    place: Option<corefit_core::decide::Placer>,
    /// In which timeslices: none, burst, long-period, proportional, slice, corefit
    #[arg(long, value_name = "POLICY", value_parser = named::<Shaper>)]
    shape: Option<Shaper>,
    /// How long any VM may stand still because of its quota, 1ms to 1s; for longer periods
    #[arg(long, value_name = "TIME", value_parser = period)]
    latency: Option<Duration>,
    /// What VMs are going to want: ewma, pid, ftds, aisd [default: that of the configuration, else ftds]
    #[arg(long, value_name = "POLICY", value_parser = named::<corefit_core::decide::Forecast>)]
    demand: Option<corefit_core::decide::Forecast>,
    /// A configuration of `corefit manage`: its machine, its policies, its rules for VMs, and whether guests are told
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time between the two looks, 50ms to 10s [default: that of the configuration, else 1s]
    #[arg(long, value_name = "TIME", value_parser = look)]
    interval: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Which machine: as for `explain`, but host is as for `manage`: libvirt if it answers, VMs or not, else control groups
    /// [default: that of the configuration, else host]
    #[arg(long, value_name = "NAME", value_parser = text_file::name())]
    machine: Option<String>,
}

/// The document for programs.
#[derive(Serialize)]
struct Document<'a> {
    machine: &'a str,
    /// When the later look began, ns since the machine's epoch.
    at_ns: u64,
    actions: Vec<Line<'a>>,
    /// What `corefit check` finds once all of them are carried out, and not now; while numbers are tried and VMs placed, once they have VCPU-Bal's.
    follows: Vec<Found<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Found<'a> {
    name: &'a str,
    #[serde(flatten)]
    follows: &'a Follows,
}

#[derive(Serialize)]
struct Line<'a> {
    vm: &'a str,
    name: &'a str,
    lever: String,
    from: Option<String>,
    to: String,
    why: String,
}

/// Runs the verb.
pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode> {
    let config = Config::read(args.config.as_deref())?;
    let arg = MachineArg::named(args.machine.as_deref().or(config.machine.as_deref()).unwrap_or("host"));
    let config = config.or_scenario(args.config.as_deref(), &arg)?;
    // As a daemon takes it.
    let arg = arg.settled();
    let opened = arg.open();
    let mut machine = match &args.machine {
        Some(_) => opened?,
        None => opened.map_err(|error| config.not_opened(args.config.as_deref(), error))?,
    };
    let interval = args.interval.unwrap_or(config.policy.interval());
    let policy = policy(args, &config.policy);
    policy.check().map_err(|error| anyhow!("{}: {}", error.key, error.what))?;
    let sensitive =
        policy.shape == Shaper::LongPeriod && policy.vm.iter().all(|rule| rule.latency_ms.is_none());
    let mut controller = Controller::new(policy.clone());
    let live = arg.clock().is_some();
    let yields = if live { yields::detect(&Root::live(), &machine.name()) } else { Vec::new() };
    let look = |mut seen: Snapshot| {
        yields::leave_alone(&mut seen, &yields);
        over_owners(args, &mut seen);
        seen
    };
    let first = machine.observe()?;
    let (pcpus, offline) = first.pcpu_sets();
    config.fits(args.config.as_deref(), (&pcpus, &offline))?;
    let first = look(first);
    controller.heed(&policy, &first.vms);
    let changed = if live { keeper::changed(&config.state) } else { Ok(Vec::new()) };
    keeper::heed(&mut controller, changed.as_deref().unwrap_or_default());
    let policy = controller.policy().clone();
    controller.step(&first)?;
    if !machine.pass(interval)? {
        bail!("{}: it has one snapshot only; record for longer", machine.name());
    }
    let now = look(machine.observe()?);
    let name = printable::text(&machine.name());
    let mut step = controller.step(&now).with_context(|| name.clone())?;
    let later = policy.place != Placer::None && now.vms.iter().any(|vm| controller.tries(&vm.id));
    let mut settled = None;
    if later {
        let changed = changed.as_deref().unwrap_or_default();
        let plan = settled.insert(settle(policy.clone(), (&first, &now), changed)?);
        step.plan.actions.retain(|action| !places(action));
        step.plan.actions.extend(plan.actions.iter().filter(|action| places(action)).cloned());
    }
    let at_work = live.then(|| works_on(&config.state)).flatten();
    if let Some(host) = step.estimate.as_ref().filter(|_| config.tell) {
        let mut telling = Telling::beside(at_work.is_some(), changed.as_deref().unwrap_or_default());
        step.plan.actions.extend(telling.step(host, &policy, |_| false));
    }
    step.notes.append(&mut step.short);
    step.notes.extend(only_running(&config.policy, &policy, &step.plan, later));
    step.notes.extend(too_soon(&policy, &now, now.at.since(first.at)));
    if sensitive {
        step.notes.push("no VM is said to tolerate standing still, so no period is made longer: --latency 200ms says it of all".into());
    }
    if args.latency.is_some() {
        // Its rule is none of the file's.
        let own = format!("policy: vm[{}] \"*\": ", config.policy.vm.len());
        step.notes
            .iter_mut()
            .for_each(|note| *note = note.replace(&(own.clone() + "latency_ms"), "--latency"));
        step.notes.retain(|note| !note.starts_with(&own));
    }
    step.notes.extend(live.then(|| unheard(&policy, &now)).flatten());
    step.notes.extend(by_a_daemon(&now, &changed, &config.state));
    step.notes.extend(theirs(at_work.as_deref(), &machine.name()));
    step.notes.extend(yields.iter().map(|found| format!("left to the kernel: {}", found.reason)));
    let plan = settled.as_ref().unwrap_or(&step.plan);
    let then = match found(arg.name(), &name, (&first, &now), plan) {
        Ok(then) => then,
        Err(error) => {
            step.notes.push(format!("what corefit check finds then is not known: {error:#}"));
            Vec::new()
        }
    };
    // Rules are of names as they are.
    let now = if args.json { now } else { printed(&mut step, now) };
    let text = match args.json {
        true => json(&machine.name(), &now, &step, &then)?,
        false => text(&name, &now, &step, &then),
    };
    lines::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Names as they can be printed.
fn printed(step: &mut Step, now: Snapshot) -> Snapshot {
    step.plan.actions.iter_mut().for_each(|action| action.name = printable::text(&action.name));
    step.notes.iter_mut().for_each(|note| *note = printable::text(note));
    printable::names(now)
}

/// The policy of a configuration, with what the command line says instead. One look is all there is: what a daemon would wait for
/// is not waited for.
fn policy(args: &PlanArgs, given: &Policy) -> Policy {
    // The last rule that says something counts; the numbers of the others are those of the file.
    let latency_ms = args.latency.map(|latency| u64::try_from(latency.as_millis()).unwrap_or(u64::MAX));
    let latency = latency_ms.map(|_| Rule { name: "*".into(), latency_ms, ..Rule::default() });
    let vm = given.vm.iter().map(|rule| Rule {
        size: args.size.filter(|_| rule.size.is_some()).or(rule.size),
        shape: args.shape.filter(|_| rule.shape.is_some()).or(rule.shape),
        ..rule.clone()
    });
    Policy {
        size: args.size.unwrap_or(given.size),
        arbitrate: args.arbitrate.unwrap_or(given.arbitrate),
        demand: args.demand.unwrap_or(given.demand),
        weigh: args.weigh.unwrap_or(given.weigh),
        place: args.place.unwrap_or(given.place),
        shape: args.shape.unwrap_or(given.shape),
        vm: vm.chain(latency).collect(),
        dwell_ms: 0,
        lever_ms: 0,
        ..given.clone()
    }
}

/// What the command line says counts more than what the owners of VMs ask for.
fn over_owners(args: &PlanArgs, seen: &mut Snapshot) {
    let wishes = seen.vms.iter_mut().filter_map(|vm| vm.wishes.as_mut());
    wishes.for_each(|wishes| wishes.size = wishes.size.filter(|_| args.size.is_none()));
}

/// The plan with VCPU-Bal's numbers in the place of those that are found by trying: while they are tried nobody is placed.
fn settle(mut policy: Policy, seen: (&Snapshot, &Snapshot), changed: &[Entry]) -> Result<Plan> {
    let rules = policy.vm.iter_mut().chain(policy.wishes.values_mut());
    try_none(rules.filter_map(|rule| rule.size.as_mut()).chain([&mut policy.size]));
    let mut settled = Controller::new(policy);
    keeper::heed(&mut settled, changed);
    settled.step(seen.0)?;
    Ok(settled.step(seen.1)?.plan)
}

fn places(action: &Action) -> bool {
    matches!(action.why, Why::Placed(_) | Why::Nodes)
}

/// That two looks are too near to each other for what is to be shaped.
fn too_soon(policy: &Policy, now: &Snapshot, over: Duration) -> Option<String> {
    let running = now.vms.iter().filter(|vm| vm.is_running_vm());
    let longest = running.filter_map(|vm| shaped_after(vm, policy)).max()?;
    (longest > over).then(|| {
        format!(
            "limits whose periods are more than a tenth of the {} ms between the two looks are not shaped here: --interval {}ms",
            over.as_millis(),
            longest.as_millis()
        )
    })
}

/// Whose guests have an agent that did not answer within the two looks.
fn unheard(policy: &Policy, now: &Snapshot) -> Option<String> {
    let waits = |vm: &&VmState| {
        vm.is_running_vm()
            && vm.guest.is_none()
            && vm.fixed(LeverKind::Told).is_none()
            && policy.of(&vm.name).exclude != Some(true)
    };
    let names: Vec<&str> = now.vms.iter().filter(waits).map(|vm| vm.name.as_str()).collect();
    let whose = match names.len() {
        0 => return None,
        1..=5 => names.join(", "),
        count => format!("{} and {} more", names[..4].join(", "), count - 4),
    };
    Some(format!(
        "no answer yet from the guests of {whose}: which vCPUs are online there, and what they would be told, is not known here (a longer \
         --interval may do)"
    ))
}

/// That what is seen is partly a daemon's doing.
fn by_a_daemon(now: &Snapshot, changed: &Result<Vec<Entry>>, state: &Path) -> Option<String> {
    let state = state.display();
    let entries = match changed {
        Ok(entries) => entries,
        Err(error) => return Some(format!("what a corefit manage has changed is not known: {error:#}")),
    };
    let here = |entry: &&Entry| now.vms.iter().any(|vm| vm.id == entry.vm);
    let count = entries.iter().filter(here).count();
    let what = match count {
        0 => return None,
        1 => "1 setting is as a corefit manage made it".to_owned(),
        _ => format!("{count} settings are as a corefit manage made them"),
    };
    Some(format!(
        "{what}, by its journal in {state} (corefit status): it puts back what nobody is to manage any more, and what it found by \
         trying is not known here"
    ))
}

/// That a daemon at work on this machine leaves alone what somebody else changed: its journal has no more of it.
fn theirs(at_work: Option<&str>, machine: &str) -> Option<String> {
    (at_work == Some(machine)).then(|| {
        "a corefit manage is at work here: a setting that somebody else changed since it did stays as it is (\"changed by somebody else\" and \
         \"left alone\" in its log), which is not known here"
            .into()
    })
}

/// What a daemon does with a policy that two looks cannot show. `later`: it places once numbers of vCPUs are found.
fn only_running(given: &Policy, policy: &Policy, plan: &Plan, later: bool) -> Option<String> {
    let any = |of: &dyn Fn(&Rule) -> bool| policy.rules().any(of);
    let shapes = |shape: Shaper| !matches!(shape, Shaper::None | Shaper::Slice);
    let mut what = Vec::new();
    if policy.size.tries() || any(&|rule| rule.size.is_some_and(Sizer::tries)) {
        what.push("where a size policy that tries numbers (corefit, pcpu-est) ends up".into());
    }
    if later {
        what.push("where VMs are placed then (here: for VCPU-Bal's numbers)".into());
    }
    if shapes(policy.shape) || any(&|rule| rule.shape.is_some_and(shapes)) {
        what.push("which timeslices it keeps, as what brings nothing is undone".into());
    }
    if policy.helpers == Helpers::Light || any(&|rule| rule.helpers == Some(Helpers::Light)) {
        what.push("who starves at other times than now".into());
    }
    if policy.arbitrate != Arbiter::None {
        what.push(
            "what VMs are going to want by more than these two looks, and who waits for how long".into(),
        );
    }
    // What guests are told waits for none.
    if given.dwell_ms > 0 && plan.actions.iter().any(|action| action.lever != Lever::Told) {
        what.push(format!("whether who is to get less is so for {} ms (dwell_ms)", given.dwell_ms));
    }
    (!what.is_empty()).then(|| format!("only running corefit manage shows: {}", what.join("; ")))
}

/// What `corefit check` finds once a plan is followed, and not now.
fn found(machine: &str, name: &str, seen: (&Snapshot, &Snapshot), plan: &Plan) -> Result<Vec<Follows>> {
    if plan.actions.is_empty() {
        return Ok(Vec::new());
    }
    let host = estimate(seen.0, seen.1)?;
    let subject = watched(machine, name, seen.1, &host)?;
    Ok(follows(&subject, &after::after(&subject, &plan.actions)))
}

fn line<'a>(action: &'a Action, now: &Snapshot) -> Line<'a> {
    Line {
        vm: &action.vm.0,
        name: &action.name,
        lever: action.setting(now),
        from: action.from.as_ref().map(ToString::to_string),
        to: action.to.to_string(),
        why: action.why.to_string(),
    }
}

fn json(machine: &str, now: &Snapshot, step: &Step, then: &[Follows]) -> Result<String> {
    let actions = step.plan.actions.iter().map(|action| line(action, now)).collect();
    let follows = then.iter().map(|follows| Found { name: &follows.vm, follows }).collect();
    let document = Document { machine, at_ns: now.at.0, actions, follows, notes: &step.notes };
    versioned::json(&document, false)
}

fn text(machine: &str, now: &Snapshot, step: &Step, then: &[Follows]) -> String {
    let width = lines::width(lines::LEAST);
    let mut out = String::new();
    let Plan { actions } = &step.plan;
    if actions.is_empty() {
        let vms = now.vms.iter().filter(|vm| vm.role == Role::Vm).count();
        let what = if vms == 0 { "there is no VM" } else { "nothing to change" };
        lines::wrap(&mut out, "", 0, &format!("{machine}: {what}"), width);
    } else {
        let mut table = Table::new(4, &["VM", "setting", "now", "would be"]);
        for action in actions {
            let from = action.from.as_ref().map_or_else(|| "?".into(), ToString::to_string);
            table.row(vec![action.name.clone(), action.setting(now), from, action.to.to_string()]);
        }
        out = table.render();
        let mut said: Option<(&str, String)> = None;
        for action in actions {
            // Several settings of a VM may have one reason.
            let why = (action.name.as_str(), action.why.to_string());
            if said.replace(why.clone()) == Some(why) {
                continue;
            }
            lines::wrap(&mut out, &format!("{}: ", action.name), 2, &action.why.to_string(), width);
        }
    }
    for follows in then {
        let [found, cure] = follows.lines();
        lines::wrap(&mut out, &format!("{}: ", printable::text(&follows.vm)), 2, &found, width);
        // Not broken: to be pasted.
        out.push_str(&format!("  {cure}\n"));
    }
    for note in alike(&step.notes) {
        lines::wrap(&mut out, "note: ", 6, &note, width);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use clap::Parser as _;
    use corefit_core::decide::Why;
    use corefit_core::machine::{Fixed, GuestView, Value, VmId};
    use corefit_core::{CpuSet, Cpus};

    use crate::manage::Status;

    #[derive(clap::Parser)]
    struct Typed {
        #[command(flatten)]
        args: PlanArgs,
    }

    #[test]
    fn that_a_daemon_on_this_machine_leaves_alone_what_somebody_else_changed_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let said = || theirs(works_on(dir.path()).as_deref(), "here");
        assert_eq!(said(), None, "nobody is at work");
        let socket = std::os::unix::net::UnixListener::bind(dir.path().join("status.sock")).unwrap();
        let answers = [(false, "here"), (true, "there"), (true, "here")];
        let daemon = std::thread::spawn(move || {
            for ((applies, machine), stream) in answers.into_iter().zip(socket.incoming()) {
                let status = Status { applies, machine: machine.into(), ..Status::default() };
                serde_json::to_writer(stream.unwrap(), &status).unwrap();
            }
        });
        assert_eq!([0; 3].map(|_| said().is_some()), [false, false, true]);
        daemon.join().unwrap();
    }

    #[test]
    fn whose_guests_did_not_answer_is_said() {
        let vm = |name: &str| VmState { name: name.into(), ..VmState::default() };
        let mut seen =
            Snapshot { vms: vec![vm("late"), vm("told"), vm("none"), vm("mine")], ..Snapshot::default() };
        seen.vms[1].guest = Some(GuestView::default());
        seen.vms[2].fixed = vec![Fixed { lever: LeverKind::Told, reason: "it has no guest agent".into() }];
        let mine = Rule { name: "mine".into(), exclude: Some(true), ..Rule::default() };
        let policy = Policy { vm: vec![mine], ..Policy::default() };
        let note = unheard(&policy, &seen).unwrap();
        assert!(note.starts_with("no answer yet from the guests of late: "), "{note}");
        seen.vms.extend(["a", "b", "c", "d", "e"].map(vm));
        let note = unheard(&policy, &seen).unwrap();
        assert!(note.contains(" of late, a, b, c and 2 more: "), "{note}");
        seen.vms.retain(|vm| vm.name == "told");
        assert_eq!(unheard(&policy, &seen), None);
    }

    #[test]
    fn options_count_more_than_the_rules_of_a_file_whose_numbers_stay() {
        let file: Policy = toml::from_str(
            "[[vm]]\nname = \"a\"\nsize = \"none\"\nshape = \"none\"\nlatency_ms = 5\n[[vm]]\nname = \"/docker/*\"\nmin = 2\n",
        )
        .unwrap();
        let with = |typed: &[&str]| policy(&Typed::parse_from([&["plan"], typed].concat()).args, &file);
        let one = with(&["--size", "vcpu-bal", "--shape", "corefit", "--latency", "500ms"]);
        let a = one.of("a");
        assert_eq!((a.size, a.shape, a.latency_ms), (Some(Sizer::VcpuBal), Some(Shaper::Corefit), Some(500)));
        assert_eq!((one.vm[0].name.as_str(), one.vm[1].min), ("a", Some(2)), "as in the file");
        assert_eq!(one.vm[1].size, None, "a group of which nobody said so is not sized");
        assert_eq!(with(&[]).vm, file.vm);
    }

    #[test]
    fn options_count_more_than_what_the_owner_of_a_vm_asks_for() {
        let wishes: Rule = toml::from_str("size = \"none\"\nmax = 2\n").unwrap();
        let vm = VmState { name: "a".into(), wishes: Some(Box::new(wishes)), ..VmState::default() };
        let of = |typed: &[&str]| {
            let args = Typed::parse_from([&["plan"], typed].concat()).args;
            let mut seen = Snapshot { vms: vec![vm.clone()], ..Snapshot::default() };
            over_owners(&args, &mut seen);
            let rule = policy(&args, &Policy::default()).with_wishes(&seen.vms).of("a");
            (rule.size, rule.max)
        };
        assert_eq!(of(&["--size", "vcpu-bal"]), (Some(Sizer::VcpuBal), Some(2)));
        assert_eq!(of(&["--place", "corefit"]), (Some(Sizer::None), Some(2)));
    }

    fn step() -> Step {
        let action = Action {
            vm: VmId("7".into()),
            name: "db".into(),
            lever: Lever::Online,
            from: Some(Value::Vcpus(CpuSet::first(16))),
            to: Value::Vcpus(CpuSet::first(4)),
            why: Why::Share { share: Cpus(4.0) },
        };
        Step { plan: Plan { actions: vec![action] }, notes: vec!["a note".into()], ..Step::default() }
    }

    #[test]
    fn a_plan_says_what_would_change_and_why() {
        let found = Follows {
            vm: "db".into(),
            rule: corefit_core::check::Rule::Stacked,
            text: "two on one.".into(),
            cure: None,
        };
        let long = Follows { cure: Some("echo -1 > /a && ".repeat(20)), ..found.clone() };
        let pasted = super::text("a host", &Snapshot::default(), &step(), &[long]);
        assert!(pasted.contains(&"echo -1 > /a && ".repeat(20)), "{pasted}");
        let text = text("a host", &Snapshot::default(), &step(), &[found]);
        assert_eq!(
            text,
            "VM  setting       now   would be\n\
             db  online vCPUs  0-15  0-3\n\
             db: its weight, cap and affinity give it 4.00 pCPUs\n\
             db: then corefit check finds [stacked]: two on one.\n\
             \x20 cure: none that leaves its vCPUs there\n\
             note: a note\n"
        );
        let keeps = |name: &str| format!("{name}: keeps its cpuset: no rule names it");
        let alike = Step { notes: ["/a", "/b"].map(keeps).into(), ..Step::default() };
        let said = super::text("a host", &Snapshot::default(), &alike, &[]);
        assert!(said.ends_with("note: /a and /b, each: keeps its cpuset: no rule names it\n"), "{said}");
        assert_eq!(
            super::text("a host", &Snapshot::default(), &Step::default(), &[]),
            "a host: there is no VM\n"
        );
    }

    #[test]
    fn a_machine_may_have_a_name_that_is_no_utf_8() {
        let name = OsStr::from_bytes(b"replay:b\xff");
        let typed = Typed::try_parse_from([OsStr::new("plan"), OsStr::new("--machine"), name]);
        let machine = typed.ok().and_then(|typed| typed.args.machine).unwrap();
        assert_eq!(corefit_linux::bytes::path(&machine).as_os_str(), name);
    }

    #[test]
    fn a_plan_is_one_document_for_programs() {
        let json: serde_json::Value =
            serde_json::from_str(&json("a host", &Snapshot::default(), &step(), &[]).unwrap()).unwrap();
        assert_eq!(json["actions"][0]["from"], "0-15");
        assert_eq!(json["actions"][0]["to"], "0-3");
        assert_eq!(json["notes"][0], "a note");
    }
}
