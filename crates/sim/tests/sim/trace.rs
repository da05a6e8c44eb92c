//! A trace tells the same as the accounts, and a traced run is the same run.

use std::collections::BTreeMap;

use crate::support::{MS, app, host, limit, sim, vcpu, vm};
use corefit_sim::{CfsSpec, Costs, CreditSpec, LockKind, Ple, Policy, Spec};

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

/// The fields of a message, in their order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = vec![];
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_at(8);
                bytes = rest;
                Value::Number(u64::from_le_bytes(number.try_into().unwrap()))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(inner)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

fn inner<'a>(message: &[(u64, Value<'a>)], field: u64) -> Option<Vec<(u64, Value<'a>)>> {
    message.iter().find_map(|(f, v)| match v {
        Value::Bytes(bytes) if *f == field => Some(fields(bytes)),
        _ => None,
    })
}

fn number(message: &[(u64, Value<'_>)], field: u64) -> Option<u64> {
    message.iter().find_map(|(f, v)| match v {
        Value::Number(number) if *f == field => Some(*number),
        _ => None,
    })
}

/// Time by name of slice, and how many arrows begin and end.
fn times(trace: &[u8], pcpus: u64) -> (BTreeMap<String, u64>, usize, usize) {
    let (mut names, mut open) = (BTreeMap::new(), BTreeMap::new());
    let (mut times, mut begun, mut ended) = (BTreeMap::new(), 0, 0);
    for (_, packet) in fields(trace) {
        let Value::Bytes(packet) = packet else { panic!("no packet") };
        let packet = fields(packet);
        for (field, name) in inner(&packet, 12).into_iter().flatten() {
            let Value::Bytes(name) = name else { continue };
            let entry = fields(name);
            let text = entry.iter().find_map(|(_, v)| match v {
                Value::Bytes(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
                Value::Number(_) => None,
            });
            if field == 2 {
                names.insert(number(&entry, 1).unwrap(), text.unwrap());
            }
        }
        let Some(event) = inner(&packet, 11) else { continue };
        let (at, track) = (number(&packet, 8).unwrap(), number(&event, 11).unwrap());
        begun += usize::from(number(&event, 47).is_some());
        ended += usize::from(number(&event, 48).is_some());
        match number(&event, 9).unwrap() {
            1 => assert!(open.insert(track, (at, number(&event, 10).unwrap())).is_none(), "slices nest"),
            2 => {
                let (since, name): (u64, u64) = open.remove(&track).unwrap();
                if track > pcpus {
                    *times.entry(names[&name].clone()).or_insert(0) += at - since;
                }
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "slices that do not end");
    (times, begun, ended)
}

/// A host on which everything happens that a trace shows.
fn busy(policy: Policy) -> Spec {
    let program = "forever { compute 50us exp kernel l { compute 20us exp } barrier sleep 100us exp mark }";
    let mut a = vm("a", (0..3).map(|_| vcpu("0-1")).collect(), vec![app(program, 4)]);
    a.guest.lock = LockKind::PvTicket;
    a.vcpus[2].limit = limit(2, 10);
    let hogs = vm("b", (0..2).map(|_| vcpu("0-1")).collect(), vec![app("hog", 2)]);
    let mut spec = host(2, policy, vec![a, hogs]);
    spec.costs = Costs::default();
    spec.ple = Ple::default();
    spec
}

#[test]
fn times_in_the_trace_are_those_in_the_accounts_to_the_ns() {
    for policy in [Policy::Cfs(CfsSpec::default()), Policy::Credit(CreditSpec::default())] {
        let spec = busy(policy);
        let mut traced = sim(&spec);
        let mut trace = vec![];
        traced.trace(Some(300 * MS), &mut trace).unwrap();
        let truth = traced.truth();
        let (times, begun, ended) = times(&trace, 2);
        let sum = |of: fn(&corefit_sim::VmTruth) -> u64| truth.vms.iter().map(of).sum::<u64>();
        let shown = |names: &[&str]| names.iter().filter_map(|n| times.get(*n)).sum::<u64>();
        assert_eq!(shown(&["running"]), sum(|vm| vm.time.utilised), "{policy:?}");
        assert_eq!(shown(&["spinning"]), sum(|vm| vm.time.spinning));
        assert_eq!(shown(&["switching"]), sum(|vm| vm.time.switching));
        assert_eq!(shown(&["waiting", "throttled"]), sum(|vm| vm.waited_ns));
        assert_eq!(times.values().sum::<u64>(), 5 * 300 * MS, "all the time of five vCPUs");
        assert!(shown(&["spinning"]) > 0 && shown(&["halted"]) > 0 && shown(&["switching"]) > 0, "{times:?}");
        let kicks = usize::try_from(sum(|vm| vm.counts.kicks)).unwrap();
        assert!(
            begun > 0 && ended <= begun && begun < kicks,
            "{begun} {ended} of {kicks}, timers' among them"
        );
        let mut plain = sim(&spec);
        plain.run_for(300 * MS);
        assert_eq!(plain.truth(), truth, "a traced run is the same run");
    }
}
