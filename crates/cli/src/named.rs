//! Policies, and other kinds of things, by their names in configurations and documents.

use anyhow::{Result, anyhow};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The policy of a name.
///
/// # Errors
/// If there is none; the text says which there are.
pub(crate) fn named<T: DeserializeOwned>(name: &str) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(name.into()))
        .map_err(|e| anyhow!("{}", e.to_string().replace("unknown variant", "there is no policy")))
}

/// The name of a policy, or of another kind.
pub(crate) fn name(kind: impl Serialize) -> String {
    let name = serde_json::to_value(kind).ok();
    name.as_ref().and_then(serde_json::Value::as_str).unwrap_or("?").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::decide::Sizer;

    #[test]
    fn policies_have_the_names_of_configurations() {
        assert_eq!(named::<Sizer>("vcpu-bal").unwrap(), Sizer::VcpuBal);
        assert_eq!(name(Sizer::VcpuBal), "vcpu-bal");
        let error = named::<Sizer>("best").unwrap_err().to_string();
        assert!(error.contains("no policy `best`") && error.contains("vcpu-bal"), "{error}");
    }
}
