//! Names that are no UTF-8 as text, and back: a control group may be called anything.
//!
//! A byte that is no part of a UTF-8 character is the character U+10FE00 and its value (from a private plane, so that it is
//! nobody's letter); and so are the bytes of such a character itself, so that each text stands for one name.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BASE: u32 = 0x10_fe00;

/// The byte that a character stands for; `None` for any other character.
#[must_use]
pub fn byte(character: char) -> Option<u8> {
    u8::try_from(u32::from(character).checked_sub(BASE)?).ok().filter(|byte| *byte >= 0x80)
}

/// Bytes as text.
#[must_use]
pub fn text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains(|c| byte(c).is_some()) => text,
        Ok(text) => escape(text.as_bytes()),
        Err(error) => escape(error.as_bytes()),
    }
}

/// The path that a text names.
#[must_use]
pub fn path(text: &str) -> Cow<'_, Path> {
    // All such characters begin with this byte.
    if !text.as_bytes().contains(&0xf4) {
        return Cow::Borrowed(Path::new(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(Path::new(OsStr::from_bytes(&bytes)).to_owned())
}

fn escape(bytes: &[u8]) -> String {
    let escaped = |byte: &u8| char::from_u32(BASE + u32::from(*byte));
    let mut text = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match byte(character) {
                Some(_) => {
                    text.extend(character.encode_utf8(&mut [0; 4]).as_bytes().iter().filter_map(escaped))
                }
                None => text.push(character),
            }
        }
        text.extend(chunk.invalid().iter().filter_map(escaped));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_one_text_and_each_text_one_name() {
        let names: [&[u8]; 6] = [
            b"plain",
            "\u{e9}\u{8868}".as_bytes(),
            b"b\xffx",
            b"\xc3",
            "\u{10feff}".as_bytes(), // what \xff becomes
            "\u{10fe00}\u{10fffd}\\xff".as_bytes(),
        ];
        let mut texts: Vec<String> = names.iter().map(|name| text(name.to_vec())).collect();
        for (name, text) in names.iter().zip(&texts) {
            assert_eq!(path(text).as_os_str().as_bytes(), *name, "{text:?}");
        }
        assert_eq!((texts[0].as_str(), texts[2].as_str()), ("plain", "b\u{10feff}x"));
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), names.len());
    }
}
