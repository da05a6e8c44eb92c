//! What the owner of a VM asks for it in its metadata: `<owner hands-off='yes'/>`, `<owner size='vcpu-bal' max='4'/>`.

use corefit_core::decide::{NINE_DIGITS, Rule, Sizer};
use roxmltree::Node;

/// Names the owner's element in a domain's `<metadata>`.
pub(super) const OWNER: &str = "urn:corefit:owner";
/// Its attributes.
const KNOWN: &str = "hands-off, size, priority, min, max and exclude";

/// What it says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Owner {
    /// Nothing is to be changed.
    pub(super) hands_off: bool,
    /// As a rule of a configuration without its name.
    pub(super) wishes: Option<Box<Rule>>,
    /// What makes no sense, and the remedy. Nothing is to be changed then.
    pub(super) unclear: Option<String>,
}

/// More of a key or a value is not repeated, characters.
const LONGEST: usize = 40;

impl Owner {
    /// Reads the element. What is not understood is taken for hands-off: it was set to keep somebody off.
    pub(super) fn read(node: Node<'_, '_>) -> Owner {
        let (mut hands_off, mut rule) = (node.attributes().next().is_none(), Rule::default());
        for attribute in node.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            let wrong = match key {
                "hands-off" => yes(value).map(|yes| hands_off = yes),
                _ => wish(&mut rule, key, value),
            };
            if let Err(remedy) = wrong {
                let short = |text: &str| text.chars().take(LONGEST).collect::<String>();
                return Owner::unclear(&format!("{}={:?}: {remedy}", short(key), short(value)));
            }
        }
        if rule.min.zip(rule.max).is_some_and(|(min, max)| min > max) {
            return Owner::unclear("min is larger than max");
        }
        let wishes = (rule != Rule::default()).then(|| Box::new(rule));
        Owner { hands_off, wishes, unclear: None }
    }

    fn unclear(what: &str) -> Owner {
        let text = format!(
            "its owner's metadata say {what}; until they are set again (`virsh metadata VM --uri {OWNER}` shows them), hands off"
        );
        Owner { hands_off: true, wishes: None, unclear: Some(text) }
    }

    /// The same for a VM of this name: one with stars would be a pattern in rules.
    pub(super) fn of(&self, name: &str) -> Owner {
        match self.wishes {
            Some(_) if name.contains('*') => {
                Owner::unclear("more than hands-off, which a VM with * in its name cannot have")
            }
            _ => self.clone(),
        }
    }
}

/// Sets one key; else what can be.
fn wish(rule: &mut Rule, key: &str, value: &str) -> Result<(), String> {
    match key {
        "size" => {
            let size = serde_json::from_value::<Sizer>(value.into());
            rule.size = Some(size.map_err(|_| "give none, vcpu-bal, vscale, pcpu-est or corefit")?);
        }
        "priority" => {
            let priority = value.parse().ok().filter(|priority: &i32| priority.unsigned_abs() <= NINE_DIGITS);
            rule.priority =
                Some(priority.ok_or("give a whole number of at most nine digits, such as -1, 0 or 10")?);
        }
        "min" => rule.min = Some(vcpus(value)?),
        "max" => rule.max = Some(vcpus(value)?),
        "exclude" => rule.exclude = Some(yes(value)?),
        _ => return Err(format!("there is no such attribute; there are {KNOWN}")),
    }
    Ok(())
}

fn vcpus(value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (1..=NINE_DIGITS).contains(number));
    number.ok_or_else(|| "give a whole number of vCPUs, 1 or more, of at most nine digits".into())
}

fn yes(value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("give yes or no".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(attributes: &str) -> Owner {
        let text = format!("<c:owner xmlns:c='{OWNER}' {attributes}/>");
        Owner::read(roxmltree::Document::parse(&text).unwrap().root_element())
    }

    #[test]
    fn wishes_are_read_and_keep_nobody_off() {
        let owner = read("size='vcpu-bal' priority='-2' min='1' max='4' exclude='no'");
        let rule = owner.wishes.as_deref().unwrap();
        assert_eq!((rule.size, rule.priority), (Some(Sizer::VcpuBal), Some(-2)));
        assert_eq!((rule.min, rule.max, rule.exclude), (Some(1), Some(4), Some(false)));
        assert!(!owner.hands_off && owner.unclear.is_none());
        assert!(!read("priority='5'").hands_off && !read("hands-off='no'").hands_off);
        assert_eq!(read("hands-off='no'").wishes, None);
    }

    #[test]
    fn nothing_and_what_is_not_understood_are_hands_off_and_the_latter_is_said() {
        assert_eq!(read(""), Owner { hands_off: true, ..Owner::default() });
        assert!(read("hands-off='yes' priority='5'").hands_off);
        for (attributes, part) in [
            ("hands-off='please'", "hands-off=\"please\": give yes or no"),
            ("handsoff='yes'", "there are hands-off, size, priority, min, max and exclude"),
            ("size='best'", "size=\"best\": give none, vcpu-bal"),
            ("priority='high'", "give a whole number of at most nine digits, such as -1"),
            ("priority='99999999999'", "give a whole number of at most nine digits, such as -1"),
            ("priority='1000000000'", "of at most nine digits"),
            ("priority='-2147483648'", "of at most nine digits"),
            ("max='1000000000'", "1 or more, of at most nine digits"),
            ("min='0'", "min=\"0\": give a whole number of vCPUs, 1 or more"),
            ("max='-1'", "1 or more"),
            ("exclude='true'", "give yes or no"),
            ("min='3' max='2'", "min is larger than max"),
        ] {
            let owner = read(attributes);
            assert!(owner.hands_off && owner.wishes.is_none(), "{attributes}");
            let why = owner.unclear.unwrap();
            assert!(why.contains(part) && why.contains("virsh metadata"), "{attributes}: {why}");
        }
        let starred = read("priority='5'").of("web*");
        assert!(starred.hands_off && starred.unclear.is_some());
        assert_eq!(read("priority='5'").of("web"), read("priority='5'"));
    }
}
