//! Configurations of `xl create` (xl.cfg(5)): `key = value`, with lists and comments.

use corefit_core::check::{Manager, Place, Set, Vcpu, Vm};
use corefit_core::topology::Topology;
use corefit_core::{CpuSet, Quota, Weight};

use super::{FormatError, Vms, cpu_list, short, xl_vnuma};

/// What Xen's credit schedulers account in, us: a cap is a part of it.
const PERIOD_US: u64 = 30_000;
const MAX_VCPUS: u32 = 8192;
const MAX_DEPTH: usize = 16;

/// Reads a configuration.
pub(super) fn read(text: &str, file: &str, host: Option<&Topology>) -> Result<Vms, FormatError> {
    let entries = Scanner { text, at: 0, line: 1 }.entries()?;
    let config = Config { entries, file, host };
    let name = config.text("name")?.ok_or_else(|| fail(1, "no name = \"...\""))?;
    let vnuma = config.get("vnuma");
    let vnuma = vnuma.map(|(_, nodes, line)| {
        let cells = xl_vnuma::cells(nodes, *line, |line| config.place(line, "vnuma"))?;
        Ok::<_, FormatError>((cells, *line))
    });
    let (cells, vnuma) = vnuma.transpose()?.filter(|(cells, _)| !cells.is_empty()).unwrap_or_default();
    let of_nodes = cells.iter().map(|cell| cell.vcpus.len() as u64).sum();
    let vcpus = config.number("vcpus")?;
    let most = config.number("maxvcpus")?.or(vcpus);
    if let Some((most, _)) = most.filter(|(most, _)| !cells.is_empty() && *most != of_nodes) {
        let what = format!("vnuma: its nodes have {of_nodes} vCPUs, the guest {most}: xl refuses it");
        return Err(fail(vnuma, &what));
    }
    let usual = if cells.is_empty() { (1, 1) } else { (of_nodes, vnuma) };
    let (vcpus, most) = (vcpus.unwrap_or(usual), most.unwrap_or(usual));
    for (number, line) in [vcpus, most] {
        if number == 0 || number > u64::from(MAX_VCPUS) {
            return Err(fail(line, &format!("{number} is no number of vCPUs")));
        }
    }
    let place = config.place(config.line("vcpus").unwrap_or(1), "vcpus");
    let mut vm = Vm { name: name.0, manager: Manager::Xen, place, cells, ..Vm::default() };
    let count = |n: u64| usize::try_from(n).unwrap_or(0);
    let all = most.0.max(vcpus.0);
    vm.vcpus = (0..all).map(|number| Vcpu { online: number < vcpus.0, ..Vcpu::default() }).collect();
    config.affinity("cpus", count(all), |vcpu, set| vm.vcpus[vcpu].affinity = Some(set))?;
    config.affinity("cpus_soft", count(all), |vcpu, set| vm.vcpus[vcpu].prefers = Some(set))?;
    if let Some((weight, line)) = config.number("cpu_weight")?.filter(|(weight, _)| *weight > 0) {
        let weight = u16::try_from(weight);
        let weight =
            weight.map_err(|_| fail(line, "cpu_weight: xl takes no more than 65535; give 1 to 65535"))?;
        let value = Weight(f64::from(weight));
        vm.weight = Some(Set { value, place: config.place(line, "cpu_weight") });
    }
    if let Some((percent, line)) = config.number("cap")?.filter(|(percent, _)| *percent > 0) {
        let quota_us = Some(percent.saturating_mul(PERIOD_US) / 100);
        let value = Quota { quota_us, period_us: PERIOD_US, burst_us: 0, source: "cap".into() };
        vm.cap = Some(Set { value, place: config.place(line, "cap") });
    }
    Ok(Vms { vms: vec![vm], shared: None })
}

pub(super) fn fail(line: u32, what: &str) -> FormatError {
    FormatError { line: Some(line), what: what.into() }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    List(Vec<(Value, u32)>),
}

struct Config<'a> {
    entries: Vec<(String, Value, u32)>,
    file: &'a str,
    host: Option<&'a Topology>,
}

impl Config<'_> {
    /// The last value of a key, as xl takes it.
    fn get(&self, key: &str) -> Option<&(String, Value, u32)> {
        self.entries.iter().rev().find(|(known, ..)| known == key)
    }

    fn line(&self, key: &str) -> Option<u32> {
        self.get(key).map(|(.., line)| *line)
    }

    fn place(&self, line: u32, element: &str) -> Place {
        Place { file: self.file.into(), line: Some(line), element: element.into() }
    }

    fn text(&self, key: &str) -> Result<Option<(String, u32)>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some((_, Value::Text(text), line)) => Ok(Some((text.clone(), *line))),
            Some((.., line)) => Err(fail(*line, &format!("{key} is no list"))),
        }
    }

    fn number(&self, key: &str) -> Result<Option<(u64, u32)>, FormatError> {
        let Some((text, line)) = self.text(key)? else { return Ok(None) };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let below = text.strip_prefix('-').is_some_and(|rest| rest.parse::<u64>().is_ok());
        let what = if below { "is below 0" } else { "is no number" };
        let number = number.map_err(|_| fail(line, &format!("{key}: {:?} {what}", short(&text))))?;
        Ok(Some((number, line)))
    }

    /// A text holds for all vCPUs, the n-th entry of a list for the n-th.
    fn affinity(
        &self,
        key: &str,
        vcpus: usize,
        mut give: impl FnMut(usize, Set<CpuSet>),
    ) -> Result<(), FormatError> {
        let read = |text: &str, line: u32| -> Result<Option<Set<CpuSet>>, FormatError> {
            let set = cpu_list::xl(text, self.host).map_err(|why| fail(line, &format!("{key}: {why}")))?;
            let set = set.filter(|_| text.trim() != "all");
            Ok(set.map(|value| Set { value, place: self.place(line, key) }))
        };
        match self.get(key) {
            None => {}
            Some((_, Value::Text(text), line)) => {
                if let Some(set) = read(text, *line)? {
                    (0..vcpus).for_each(|vcpu| give(vcpu, set.clone()));
                }
            }
            Some((_, Value::List(list), _)) => {
                for (vcpu, (entry, line)) in list.iter().enumerate().take(vcpus) {
                    let Value::Text(text) = entry else {
                        return Err(fail(*line, &format!("{key}: a list in a list")));
                    };
                    if let Some(set) = read(text, *line)? {
                        give(vcpu, set);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What an escape stands for, and how long it is.
fn escaped(rest: &str) -> Option<(char, usize)> {
    let number = |skip: usize, most: usize, radix: u32| {
        let digits: String = rest[skip..].chars().take(most).take_while(|c| c.is_digit(radix)).collect();
        let value = u8::from_str_radix(&digits, radix).ok()?;
        Some((char::from(value), skip + digits.len()))
    };
    let first = rest.chars().next()?;
    let plain = match first {
        '\\' | '\'' | '"' => first,
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        'x' => return number(1, 2, 16),
        '0'..='7' => return number(0, 3, 8),
        _ => return None,
    };
    Some((plain, first.len_utf8()))
}

impl Value {
    /// What `+=` makes of them: texts and lists grow, each with its kind.
    fn and(self, more: Value) -> Option<Value> {
        match (self, more) {
            (Value::Text(text), Value::Text(more)) => Some(Value::Text(text + &more)),
            (Value::List(mut list), Value::List(more)) => {
                list.extend(more);
                Some(Value::List(list))
            }
            _ => None,
        }
    }
}

/// Goes through a text.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Scanner<'a> {
    fn entries(mut self) -> Result<Vec<(String, Value, u32)>, FormatError> {
        let mut entries = Vec::new();
        loop {
            self.skip(true, ";");
            if self.peek().is_none() {
                return Ok(entries);
            }
            let line = self.line;
            let key = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
            if key.is_empty() {
                let rest = self.text[self.at..].lines().next().unwrap_or("");
                return Err(fail(line, &format!("{:?} is no key = value", short(rest))));
            }
            self.skip(false, "");
            let adds = self.text[self.at..].starts_with("+=");
            if adds {
                self.at += 1;
            }
            if !self.take('=') {
                return Err(fail(line, &format!("{}: no = after it", short(key))));
            }
            let value = self.value(0)?;
            let earlier = entries.iter().rev().find(|(known, ..)| adds && known == key);
            let value = match earlier {
                Some((_, earlier, _)) => earlier
                    .clone()
                    .and(value)
                    .ok_or_else(|| fail(line, &format!("{}: += of a text and a list", short(key))))?,
                None => value,
            };
            entries.push((key.to_owned(), value, line));
            self.skip(false, "");
            match self.peek() {
                None | Some('\n' | ';') => {}
                Some(_) => {
                    let rest = self.text[self.at..].lines().next().unwrap_or("");
                    return Err(fail(self.line, &format!("{:?} after a value", short(rest))));
                }
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, FormatError> {
        self.skip(depth > 0, "");
        let line = self.line;
        match self.peek() {
            Some(quote @ ('"' | '\'')) => {
                self.at += 1;
                self.quoted(quote)
            }
            Some('[') if depth < MAX_DEPTH => {
                self.at += 1;
                let mut list = Vec::new();
                loop {
                    self.skip(true, "");
                    if self.take(']') {
                        return Ok(Value::List(list));
                    }
                    let at = self.line;
                    list.push((self.value(depth + 1)?, at));
                    self.skip(true, "");
                    if !self.take(',') && self.peek() != Some(']') {
                        return Err(fail(self.line, "a list needs , or ] here"));
                    }
                }
            }
            Some('[') => Err(fail(line, "lists nested too deeply")),
            _ => {
                let word = self.word(|c| !c.is_whitespace() && !",;]#[\"'".contains(c));
                if word.is_empty() { Err(fail(line, "no value")) } else { Ok(Value::Text(word.to_owned())) }
            }
        }
    }

    /// A text up to its closing quote, with escapes as in C (xlu__cfgl_dequote in libxlu_cfg.c).
    fn quoted(&mut self, quote: char) -> Result<Value, FormatError> {
        let line = self.line;
        let mut text = String::new();
        loop {
            let next = self.peek().filter(|c| *c != '\n');
            let c = next.ok_or_else(|| fail(line, "a text without its closing quote"))?;
            self.at += c.len_utf8();
            if c == quote {
                return Ok(Value::Text(text));
            }
            if c == '\\' {
                let what = "after \\ in a text come \\ ' \" a b f n r t v, xHH or octal digits";
                let (stands_for, long) = escaped(&self.text[self.at..]).ok_or_else(|| fail(line, what))?;
                text.push(stands_for);
                self.at += long;
            } else {
                text.push(c);
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    fn word(&mut self, part: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Goes past blanks and comments, past ends of lines if so told, and past `also`.
    fn skip(&mut self, lines: bool, also: &str) {
        while let Some(c) = self.peek() {
            match c {
                '\n' if lines => self.line += 1,
                '\n' => return,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find('\n').unwrap_or(rest.len());
                    continue;
                }
                c if c.is_whitespace() || also.contains(c) => {}
                _ => return,
            }
            self.at += c.len_utf8();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Topology {
        "2 sockets x 2 nodes x 4 modules x 2 cores".parse().unwrap()
    }

    fn vm(text: &str) -> Result<Vm, String> {
        read(text, "a.cfg", Some(&host())).map(|mut vms| vms.vms.remove(0)).map_err(|e| e.to_string())
    }

    #[test]
    fn reads_what_decides_about_pcpus_with_its_lines() {
        let text = "# npb\nname = 'npb' ; memory = 4096\nvcpus=2\nmaxvcpus = 4\ncpus = [ \"16\",\n  \"17-18,^18\" ]\n\
                    cpus_soft = \"nodes:0,nodes:2\"\ncap = 150  # percent\ncpu_weight = 0x200\ndisk = [ 'a,b', ['x'] ]\n";
        let vm = vm(text).unwrap();
        assert_eq!((vm.name.as_str(), vm.vcpus.len(), vm.width()), ("npb", 4, 2));
        let pin = vm.vcpus[1].affinity.as_ref().unwrap();
        assert_eq!((pin.value.to_string().as_str(), pin.place.line), ("17", Some(6)));
        let soft = vm.vcpus[3].prefers.as_ref().unwrap();
        assert_eq!((soft.value.to_string().as_str(), soft.place.line), ("0-7,16-23", Some(7)));
        assert!(vm.vcpus[3].affinity.is_none());
        assert_eq!(vm.cap.unwrap().value.cpus().unwrap().0, 1.5);
        assert_eq!(vm.weight.unwrap().value, Weight(512.0));
    }

    #[test]
    fn texts_have_escapes_and_values_can_be_added_to() {
        let text =
            "name = 'it\\'s \\x41\\102' ; vcpus = 2\ncpus = [ '0' ]\ncpus += [ \"1\" ]\nname += \"!\"\n";
        let vm = vm(text).unwrap();
        assert_eq!(vm.name, "it's AB!");
        let pin = vm.vcpus[1].affinity.as_ref().unwrap();
        assert_eq!((pin.value.to_string().as_str(), pin.place.line), ("1", Some(3)));
    }

    #[test]
    fn nodes_of_the_guest_have_their_memory_on_nodes_of_the_host() {
        let text = "name = 'a'\nvnuma = [ [ \"pnode=0\", \"size=512\", \"vcpus=0-1,4\", \"vdistances=10,20\" ],\n\
                    [ \"vcpus = 2-3\",\n \"pnode = 2\" ] ]\n";
        for (text, width) in [(text.to_owned(), 5), (format!("{text}vcpus = 2\nmaxvcpus = 5"), 2)] {
            let vm = vm(&text).unwrap();
            assert_eq!((vm.vcpus.len(), vm.width()), (5, width));
            let cells = vm.cells.iter().map(|cell| {
                let memory = cell.memory.as_ref().unwrap();
                (cell.id, cell.vcpus.to_string(), memory.value.to_string(), memory.place.line)
            });
            let expected = [(0, "0-1,4", "0", 2), (1, "2-3", "2", 4)];
            let expected =
                expected.map(|(id, vcpus, node, line)| (id, vcpus.into(), node.into(), Some(line)));
            assert_eq!(cells.collect::<Vec<(u32, String, String, Option<u32>)>>(), expected);
        }
        assert!(vm("name = 'a'\nvnuma = []").unwrap().cells.is_empty());
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for (text, error) in [
            ("name = 'a'\nvnuma = 'x'", "line 2: vnuma: is no list of lists"),
            ("name = 'a'\nvnuma = [ 'pnode=0' ]", "line 2: vnuma: a node is a list"),
            ("name = 'a'\nvnuma = [ [\n'pnode' ] ]", "line 3: vnuma: an option of a node is a text"),
            ("name = 'a'\nvnuma = [ [ ['pnode=1'] ] ]", "line 2: vnuma: an option of a node is a text"),
            ("name = 'a'\nvnuma = [ [ 'pnode=x' ] ]", "line 2: vnuma: pnode: \"x\" is no number of a node"),
            ("name = 'a'\nvnuma = [ [ 'pnode=70000' ] ]", "line 2: vnuma: pnode: \"70000\" is no number"),
            ("name = 'a'\nvnuma = [ [ 'vcpus=a' ] ]", "line 2: vnuma: vcpus: \"a\" is no list"),
            (
                "name = 'a'\nvnuma = [ [ 'vcpus=0-1' ],\n[ 'vcpus=1' ] ]",
                "line 3: vnuma: vCPU 1 is in two nodes",
            ),
            (
                "name = 'a'\nvcpus = 4\nvnuma = [ [ 'vcpus=0-1' ] ]",
                "line 3: vnuma: its nodes have 2 vCPUs, the guest 4: xl refuses it",
            ),
            ("vcpus = 1", "line 1: no name"),
            ("name = 'a'\nvcpus = many", "line 2: vcpus: \"many\" is no number"),
            ("name = 'a'\nvcpus = 0", "line 2: 0 is no number of vCPUs"),
            ("name = 'a'\ncap = -5", "line 2: cap: \"-5\" is below 0"),
            ("name = 'a", "line 1: a text without its closing quote"),
            ("name = 'a'\n= 3", "line 2: \"= 3\" is no key = value"),
            ("name 'a'", "line 1: name: no = after it"),
            ("name = 'a\\q'", "line 1: after \\ in a text come"),
            ("name = 'a\\'", "line 1: a text without its closing quote"),
            ("name = 'a'\ncpus = '0'\ncpus += [ '1' ]", "line 3: cpus: += of a text and a list"),
            ("name = 'a' b", "line 1: \"b\" after a value"),
            ("name = 'a'\ncpus = [ '1' '2' ]", "line 2: a list needs , or ] here"),
            ("name = 'a'\ncpus = [ '1',\n", "line 3: no value"),
            ("name = 'a'\ncpus = 'nodes:9'", "line 2: cpus: node 9 does not exist"),
            ("name = 'a'\ncpu_weight = 65536", "line 2: cpu_weight: xl takes no more than 65535"),
            ("name = 'a'\ncpus = 'x'", "line 2: cpus: \"x\" is no list of pCPUs"),
            (&format!("name = {}", "[".repeat(100_000)), "line 1: lists nested too deeply"),
        ] {
            let got = vm(text).unwrap_err();
            assert!(got.starts_with(error), "{got}");
        }
    }
}
