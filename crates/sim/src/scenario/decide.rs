//! `[policy]`: who decides about the host while it runs, as in a configuration of `corefit manage`.

use corefit_core::CpuSet;
use corefit_core::decide::Policy;
use serde::Deserialize as _;
use toml::de::{DeArray, DeTable, DeValue, ValueDeserializer};

use super::ScenarioError;
use super::table::{Table, labels};
use crate::keys::{self, KEYS};
use crate::spec::Hardware;

/// `None`: nobody decides, all settings stay as they are.
pub(super) fn policy(root: &Table<'_>, hardware: &Hardware) -> Result<Option<Policy>, ScenarioError> {
    let Some(value) = root.value("policy") else { return Ok(None) };
    let DeValue::Table(table) = value.get_ref() else {
        return root.error("policy", "give a table: [policy]");
    };
    if let Some(bad) = keys::bad(table, "policy", &KEYS) {
        return Err(ScenarioError { place: root.place_of(&path(table, &bad.key), bad.at), what: bad.what });
    }
    let misfit = |key: &str, what: String| {
        let at = keys::place(table, key).unwrap_or(value.span().start);
        ScenarioError { place: root.place_of(&path(table, &format!("policy.{key}")), at), what }
    };
    let policy = Policy::deserialize(ValueDeserializer::from(value.clone()));
    let policy = policy.or_else(|e| root.error("policy", e.message()))?;
    let pcpus = CpuSet::first(hardware.pcpus());
    let fits = policy.check().and_then(|()| policy.fits(&pcpus, &CpuSet::default()));
    fits.map_err(|error| misfit(&error.key, error.what))?;
    Ok(Some(policy))
}

/// The rule's number in a key such as `policy.vm[2].min`, and what stands behind it.
fn rule(key: &str) -> Option<(usize, &str)> {
    let (number, rest) = key.strip_prefix("policy.vm[")?.split_once(']')?;
    Some((number.parse().ok()?, rest.trim_start_matches('.')))
}

fn rules<'t, 'a>(table: &'t DeTable<'a>) -> Option<&'t DeArray<'a>> {
    let (_, rules) = table.iter().find(|(key, _)| key.get_ref() == "vm")?;
    rules.get_ref().as_array()
}

/// A key as `--set` has it: rules by their names, or else numbers.
fn path(table: &DeTable<'_>, key: &str) -> String {
    let Some((number, rest)) = rule(key) else { return key.into() };
    let name = rules(table).and_then(|rules| labels(rules).into_iter().nth(number));
    let name = name.unwrap_or_else(|| number.to_string());
    if rest.is_empty() { format!("policy.vm.{name}") } else { format!("policy.vm.{name}.{rest}") }
}
