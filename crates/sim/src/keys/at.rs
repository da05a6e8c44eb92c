//! Which key a place in a text belongs to, whether or not the text can be read as a whole.

/// The key, with the tables and lists above it, to whose name or value this byte of the text belongs; `None` where that is not plain to see.
#[must_use]
pub fn key_at(text: &str, at: usize) -> Option<String> {
    let mut before = Before::default();
    let mut now = 0;
    while now < at.min(text.len()) {
        now += before.pass(text, now);
    }
    before.key(text)
}

/// What stands before a place.
#[derive(Default)]
struct Before<'a> {
    /// Tables that began in a line of their own.
    headers: Vec<(&'a str, bool)>,
    /// Brackets that are open: whose value they begin, if it has a name, and in a list how many values came before.
    open: Vec<(&'a str, Option<usize>)>,
    /// Whose value is being read; empty: a name is, or a value of a list.
    key: &'a str,
    /// Where that name begins.
    from: usize,
}

impl<'a> Before<'a> {
    /// Takes in what stands here; its bytes.
    fn pass(&mut self, text: &'a str, now: usize) -> usize {
        let rest = &text[now..];
        let line = rest.lines().next().unwrap_or_default();
        if self.open.is_empty()
            && (now == 0 || text.as_bytes()[now - 1] == b'\n')
            && let Some(header) = header(line)
        {
            self.headers.push(header);
            (self.key, self.from) = ("", now + line.len());
            return line.len();
        }
        let Some(c) = rest.chars().next() else { return 1 };
        let next = now + c.len_utf8();
        match c {
            '"' | '\'' => return quoted(rest, c),
            '#' => return line.len(),
            '=' if self.key.is_empty() => self.key = text[self.from..now].trim(),
            '[' | '{' => {
                self.open.push((std::mem::take(&mut self.key), (c == '[').then_some(0)));
                self.from = next;
            }
            ']' | '}' => (self.key, self.from) = (self.open.pop().map_or("", |(key, _)| key), next),
            ',' => {
                if let Some((_, Some(number))) = self.open.last_mut() {
                    *number += 1;
                }
                (self.key, self.from) = ("", next);
            }
            '\n' if self.open.is_empty() || self.key.is_empty() => (self.key, self.from) = ("", next),
            _ => {}
        }
        next - now
    }

    fn key(&self, text: &str) -> Option<String> {
        let rest = &text[self.from..];
        let ends = rest.find(['=', '\n', ',', '[', ']', '{', '}', '#']);
        let name = ends.filter(|end| rest[*end..].starts_with('=')).map_or("", |end| rest[..end].trim());
        let last = (if self.key.is_empty() { name } else { self.key }, None);
        let mut path = String::new();
        for (name, number) in self.open.iter().copied().chain([last]) {
            if !name.chars().all(plain) {
                return None;
            }
            path += if name.is_empty() || path.is_empty() { "" } else { "." };
            path += name;
            path += &number.map_or(String::new(), |number| format!("[{number}]"));
        }
        let table = self.headers.last().map_or(String::new(), |last| match last {
            (name, true) => {
                format!("{name}[{}].", self.headers.iter().filter(|one| *one == last).count() - 1)
            }
            (name, false) => format!("{name}."),
        });
        // (A bracket that nobody's value begins with is a header that does not end.)
        (!path.is_empty() && !path.starts_with('[')).then(|| table + &path)
    }
}

/// Bytes of a text in such quotes, as far as it goes.
fn quoted(rest: &str, quote: char) -> usize {
    let three: String = [quote; 3].iter().collect();
    let (ends, lines) = if rest.starts_with(&three) { (&three[..], true) } else { (&three[..1], false) };
    let mut at = ends.len();
    while let Some(c) = rest[at..].chars().next() {
        if rest[at..].starts_with(ends) {
            return at + ends.len();
        }
        if c == '\n' && !lines {
            break;
        }
        at += c.len_utf8();
        if c == '\\' && quote == '"' {
            at += rest[at..].chars().next().filter(|c| *c != '\n').map_or(0, char::len_utf8);
        }
    }
    at
}

/// A character of a key that needs no quotes, and of a path of such keys.
fn plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// The name in a line that begins a table, and whether it is one of a list of tables.
fn header(line: &str) -> Option<(&str, bool)> {
    let inner = line.trim().strip_prefix('[')?;
    let (name, rest) = inner.strip_prefix('[').unwrap_or(inner).split_once(']')?;
    let (name, list) = (name.trim(), inner.starts_with('['));
    let ends = rest.strip_prefix(if list { "]" } else { "" })?.trim_start();
    let is_header = !name.is_empty() && name.chars().all(plain) && (ends.is_empty() || ends.starts_with('#'));
    is_header.then_some((name, list))
}
