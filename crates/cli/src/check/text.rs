//! Findings for people.

use corefit_core::check::{Finding, RULES, Rule, Severity, count};

use crate::inputs::Inputs;
use crate::lines::wrap;
use crate::printable;

/// All findings. Places come first in their lines, as compilers print them, so that editors find them.
pub(super) fn report(inputs: &Inputs, findings: &[Finding], width: usize) -> String {
    let mut out = String::new();
    let subject = &inputs.subject;
    if let Some(topology) = &subject.topology {
        let from = format!("host ({}): ", inputs.host);
        wrap(&mut out, &printable::text(&from), 4, &topology.summary(), width);
    }
    for note in &inputs.notes {
        wrap(&mut out, "note: ", 6, &printable::text(note), width);
    }
    let mut cures: Vec<(&str, Rule)> = Vec::new();
    for finding in findings {
        let line = finding.place.line.map(|line| format!(":{line}")).unwrap_or_default();
        let element = &finding.place.element;
        let of =
            if element.is_empty() || *element == finding.vm { String::new() } else { format!(", {element}") };
        let first = format!(
            "{}{line}: {} [{}] VM {}{of}",
            finding.place.file, finding.severity, finding.rule, finding.vm
        );
        out.push_str(&format!("\n{}\n", printable::text(&first)));
        wrap(&mut out, "    ", 4, &printable::text(&finding.text), width);
        // Not broken: to be pasted.
        match cures.iter().find(|(cure, _)| *cure == finding.cure) {
            Some((_, rule)) => out.push_str(&format!("    cure: the same as of [{rule}] above\n")),
            None => {
                out.push_str(&format!("    cure: {}\n", printable::text(&finding.cure)));
                cures.push((&finding.cure, finding.rule));
            }
        }
    }
    out.push('\n');
    let vms = count(subject.vms.len(), "VM");
    if findings.is_empty() {
        out.push_str(&format!("{vms} checked, nothing found\n"));
        return out;
    }
    let counts = [Severity::Error, Severity::Warning, Severity::Note].map(|severity| {
        let n = findings.iter().filter(|finding| finding.severity == severity).count();
        (n > 0).then(|| count(n, &severity.to_string()))
    });
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    out.push_str(&format!("{vms} checked: {}\n", counts.join(", ")));
    out.push_str("Why: corefit check --explain RULE\n");
    let together = together(findings);
    if !together.is_empty() {
        wrap(&mut out, "", 0, together, width);
    }
    let has = |word: &str| findings.iter().any(|finding| finding.cure.contains(word));
    if has(" --live") {
        wrap(
            &mut out,
            "",
            0,
            "virsh ... --live changes what runs; add --config to keep it at the next start.",
            width,
        );
    } else if has(" --config") {
        let hint = "virsh ... --config changes the definition; add --live to change a running VM as well.";
        wrap(&mut out, "", 0, hint, width);
    }
    let configured = findings.iter().filter(|finding| !finding.changes.is_empty());
    if let Some(text) = inputs.at_next_start(configured.map(|finding| finding.vm.as_str())) {
        wrap(&mut out, "", 0, &printable::text(&text), width);
    }
    out
}

/// How to follow the cures. Those that are commands agree; advice is for who knows what may go where.
fn together(findings: &[Finding]) -> &'static str {
    let (commands, advice): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|finding| !finding.changes.is_empty());
    match (commands.len(), advice.len()) {
        (0, _) | (1, 0) => "",
        (_, 0) => "All cures can be followed together, in this order; then check again.",
        _ => {
            "Cures with values to set can be followed together, in this order; then check again, before the others."
        }
    }
}

/// All rules.
pub(super) fn rules(width: usize) -> String {
    let mut out = String::new();
    let longest = RULES.map(|rule| rule.id().len()).into_iter().max().unwrap_or(0);
    for rule in RULES {
        wrap(&mut out, &format!("{:longest$}  ", rule.id()), longest + 2, rule.title(), width);
    }
    out
}

/// What a rule is about.
pub(super) fn explanation(rule: Rule, width: usize) -> String {
    let mut out = String::new();
    wrap(&mut out, "", 0, &format!("{rule}: {}", rule.title()), width);
    out.push('\n');
    wrap(&mut out, "", 0, rule.explanation(), width);
    out
}
