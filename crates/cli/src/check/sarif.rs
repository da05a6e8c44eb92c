//! Findings as SARIF 2.1.0 (OASIS, "Static Analysis Results Interchange Format"), which code review tools show.

use anyhow::Result;
use corefit_core::check::{Finding, RULES, Severity};
use serde_json::{Value, json};

/// The log of one run.
/// What could not be read, or was taken for granted, is a notification.
pub(super) fn log(findings: &[Finding], notes: &[String]) -> Result<String> {
    let notes: Vec<Value> =
        notes.iter().map(|note| json!({ "level": "warning", "message": { "text": plain(note) } })).collect();
    let rules = RULES.map(|rule| {
        json!({
            "id": rule.id(),
            "shortDescription": { "text": rule.title() },
            "fullDescription": { "text": rule.explanation() },
        })
    });
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "corefit",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "invocations": [{ "executionSuccessful": true, "toolExecutionNotifications": notes }],
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&log)?))
}

fn result(finding: &Finding) -> Value {
    let level = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let element = &finding.place.element;
    let name = if element.is_empty() || *element == finding.vm {
        finding.vm.clone()
    } else {
        format!("{} {element}", finding.vm)
    };
    let mut location = json!({ "logicalLocations": [{ "fullyQualifiedName": name }] });
    // A place without a line is no file: a live machine.
    if let Some(line) = finding.place.line.filter(|_| !finding.place.file.starts_with("virsh ")) {
        location["physicalLocation"] = json!({
            "artifactLocation": { "uri": uri(&finding.place.file) },
            "region": { "startLine": line },
        });
    }
    json!({
        "ruleId": finding.rule.id(),
        "ruleIndex": finding.rule as usize,
        "level": level,
        "message": { "text": plain(&format!("{}: {}. Cure: {}", finding.vm, finding.text, finding.cure)) },
        "locations": [location],
        "properties": { "vm": finding.vm, "cure": finding.cure },
    })
}

/// A text as messages have it: braces stand for arguments unless they are doubled (section 3.11.5).
fn plain(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

/// A path as a URI reference.
fn uri(path: &str) -> String {
    let mut text = if path.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::check::{Place, Rule};

    #[test]
    fn files_have_lines_and_live_vms_only_names() {
        let finding = |file: &str, line| Finding {
            rule: Rule::FarMemory,
            severity: Severity::Warning,
            vm: "web".into(),
            place: Place { file: file.into(), line, element: "<memory>".into() },
            text: "far".into(),
            cure: "go ${p%:*} nearer".into(),
            changes: Vec::new(),
        };
        let text = [finding("/a b/web.xml", Some(3)), finding("virsh dumpxml web", Some(3))];
        let text = log(&text, &["/sys/x: denied".into()]).unwrap();
        let log: Value = serde_json::from_str(&text).unwrap();
        let results = log["runs"][0]["results"].as_array().unwrap();
        assert_eq!(results[0]["message"]["text"], "web: far. Cure: go ${{p%:*}} nearer");
        assert_eq!(results[0]["properties"]["cure"], "go ${p%:*} nearer");
        let location = &results[0]["locations"][0];
        assert_eq!(location["physicalLocation"]["artifactLocation"]["uri"], "file:///a%20b/web.xml");
        assert_eq!(location["physicalLocation"]["region"]["startLine"], 3);
        assert!(results[1]["locations"][0].get("physicalLocation").is_none());
        assert_eq!(results[1]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"], "web <memory>");
        for result in results {
            let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
            assert_eq!(log["runs"][0]["tool"]["driver"]["rules"][index]["id"], result["ruleId"]);
        }
    }
}
