//! XML that may come from anywhere: no entities, no nodes without end, every error with its line.

use corefit_core::CpuSet;
use roxmltree::{Document, Node, ParsingOptions};

use super::{FormatError, cpu_list, short};

/// Nodes of one document; hwloc's largest test has some 30,000.
const MAX_NODES: u32 = 2_000_000;
/// Attributes of one element, and namespaces of a whole document: roxmltree compares each with each
/// (measured here: 5,000 nested namespaces take 30 s). Real elements have a dozen, real documents a few.
const MAX_ATTRIBUTES: usize = 200;
const MAX_NAMESPACES: usize = 100;

/// Parses a document.
///
/// # Errors
/// If it is no XML, declares entities, is not in UTF-8, or has more nodes than any of our formats.
pub(crate) fn open(text: &str) -> Result<Document<'_>, FormatError> {
    let refuse =
        |at: usize, what: &str| Err(FormatError { line: Some(line_of(text, at)), what: what.into() });
    if let Some(at) = text.find("<!ENTITY") {
        return refuse(at, "declares entities, which are not read: they can grow without end");
    }
    let declared = text.strip_prefix("<?xml").and_then(|rest| rest.split_once("?>")).map(|(head, _)| head);
    let encoding = declared.and_then(|head| head.split_once("encoding")).map(|(_, rest)| rest.trim_start());
    if let Some(quoted) = encoding.and_then(|rest| rest.strip_prefix('=')).map(str::trim_start) {
        let name = quoted.get(1..).and_then(|rest| rest.split(['\'', '"']).next()).unwrap_or("");
        if !["utf-8", "utf8", "us-ascii", "ascii"].contains(&name.to_ascii_lowercase().as_str()) {
            let what = format!("says it is in {}; convert it to UTF-8: iconv -f {0} -t UTF-8", short(name));
            return refuse(0, &what);
        }
    }
    if let Some((at, _)) = text.match_indices("xmlns").nth(MAX_NAMESPACES) {
        return refuse(
            at,
            &format!("has more than {MAX_NAMESPACES} namespaces; no description of a host or VM has"),
        );
    }
    if let Some(at) = crowded_tag(text) {
        return refuse(
            at,
            &format!("has an element with more than {MAX_ATTRIBUTES} attributes; real ones have not"),
        );
    }
    let options = ParsingOptions { allow_dtd: true, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options)
        .map_err(|error| FormatError { line: Some(error.pos().row), what: format!("is no XML: {error}") })
}

/// Where a tag with too many attributes begins.
fn crowded_tag(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text[from..].find('<') {
        let begin = from + found;
        let rest = &text[begin..];
        let opaque = [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")];
        let length = if let Some((_, close)) = opaque.iter().find(|(open, _)| rest.starts_with(open)) {
            rest.find(close)?
        } else {
            let (length, attributes) = tag(rest);
            if attributes > MAX_ATTRIBUTES {
                return Some(begin);
            }
            length
        };
        from = begin + length.max(1);
    }
    None
}

/// The length of the tag that a text begins with, and how many attributes it has.
fn tag(text: &str) -> (usize, usize) {
    let (mut attributes, mut quote) = (0, None);
    for (at, byte) in text.bytes().enumerate() {
        match (byte, quote) {
            (_, Some(open)) if byte == open => quote = None,
            (_, Some(_)) => {}
            (b'>', None) => return (at, attributes),
            (b'"' | b'\'', None) => quote = Some(byte),
            (b'=', None) => attributes += 1,
            _ => {}
        }
    }
    (text.len(), attributes)
}

fn line_of(text: &str, at: usize) -> u32 {
    let before = text.as_bytes().iter().take(at);
    u32::try_from(1 + before.filter(|byte| **byte == b'\n').count()).unwrap_or(u32::MAX)
}

/// The line that an element begins in.
pub(crate) fn line(node: Node<'_, '_>) -> u32 {
    node.document().text_pos_at(node.range().start).row
}

/// An error at an element.
pub(crate) fn at(node: Node<'_, '_>, what: &str) -> FormatError {
    FormatError { line: Some(line(node)), what: what.into() }
}

/// The first child element of a name.
pub(crate) fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// All child elements of a name.
pub(crate) fn children<'a, 'i>(node: Option<Node<'a, 'i>>, name: &str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.into_iter().flat_map(|node| node.children()).filter(move |child| child.has_tag_name(name))
}

/// A number in an attribute.
pub(crate) fn attribute<T: std::str::FromStr>(
    node: Node<'_, '_>,
    name: &str,
) -> Result<Option<T>, FormatError> {
    node.attribute(name).map(|text| parse(node, text, "number")).transpose()
}

/// A number in an element's text.
pub(crate) fn number<T: std::str::FromStr>(node: Node<'_, '_>) -> Result<T, FormatError> {
    parse(node, node.text().unwrap_or(""), "number")
}

/// A list of pCPUs, vCPUs or nodes in an attribute, in libvirt's form (`0-7,^3`).
pub(crate) fn cpus(node: Node<'_, '_>, name: &str) -> Result<Option<CpuSet>, FormatError> {
    let Some(text) = node.attribute(name) else { return Ok(None) };
    cpu_list::plain(text).map(Some).map_err(|_| wrong(node, text, "list of numbers, as in 0-3,8"))
}

fn parse<T: std::str::FromStr>(node: Node<'_, '_>, text: &str, want: &str) -> Result<T, FormatError> {
    text.trim().parse().map_err(|_| wrong(node, text, want))
}

/// An error about a text that should be something else.
pub(crate) fn wrong(node: Node<'_, '_>, text: &str, want: &str) -> FormatError {
    at(node, &format!("<{}>: {:?} is no {want}", node.tag_name().name(), short(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        open(text).unwrap_err().to_string()
    }

    #[test]
    fn entity_bombs_of_both_kinds_are_refused() {
        let mut bomb = String::from("<?xml version='1.0'?>\n<!DOCTYPE domain [\n<!ENTITY a0 'ha'>\n");
        for level in 1..30 {
            bomb += &format!("<!ENTITY a{level} '{}'>\n", format!("&a{};", level - 1).repeat(10));
        }
        bomb += "]>\n<domain><name>&a29;</name></domain>";
        assert!(refused(&bomb).starts_with("line 3: declares entities"));
        let outside =
            "<!DOCTYPE domain [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><domain><name>&x;</name></domain>";
        assert!(refused(outside).starts_with("line 1: declares entities"));
        assert!(refused("<domain>&undeclared;</domain>").contains("is no XML"));
    }

    #[test]
    fn what_the_parser_would_compare_each_with_each_is_refused_before() {
        let nested: String = (0..5000).map(|i| format!("<a xmlns:n{i}='u{i}'>\n")).collect();
        assert_eq!(
            refused(&nested),
            "line 101: has more than 100 namespaces; no description of a host or VM has"
        );
        let many: String = (0..60_000).map(|i| format!(" a{i}='='")).collect();
        let harmless = format!("<!-- don't -->\n<name a='{}'/>", "=".repeat(1000));
        let bomb = format!("<domain>{harmless}\n<vcpu{many}/></domain>");
        assert!(refused(&bomb).starts_with("line 3: has an element with more than 200 attributes"));
    }

    #[test]
    fn a_document_type_alone_is_no_harm() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology/>";
        assert_eq!(open(text).unwrap().root_element().tag_name().name(), "topology");
    }

    #[test]
    fn depth_is_no_danger_to_the_stack_and_numbers_of_nodes_have_a_limit() {
        let deep = format!("{}{}", "<a>".repeat(1_000_000), "</a>".repeat(1_000_000));
        assert_eq!(open(&deep).unwrap().descendants().count(), 1_000_001);
        assert!(refused(&format!("<a>{}</a>", "<b/>".repeat(MAX_NODES as usize))).contains("is no XML"));
    }

    #[test]
    fn other_encodings_are_refused_with_the_remedy() {
        let latin = "<?xml version='1.0' encoding='ISO-8859-1'?><domain/>";
        assert!(
            refused(latin).contains("says it is in ISO-8859-1; convert it to UTF-8: iconv -f ISO-8859-1")
        );
        assert_eq!(refused(&latin.replace('=', "\n = ")), refused(latin));
    }
}
