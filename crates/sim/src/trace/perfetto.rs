//! Perfetto's track events, as much of them as is needed.
//!
//! A trace is a protocol buffer of packets; field numbers are those of `protos/perfetto/trace/` in Perfetto.
//! Names are sent once (interned data) and referred to by number.

/// A trace being written.
#[derive(Debug, Default)]
pub(super) struct Packets(pub(super) Vec<u8>);

/// Packets of one sequence share their interned names.
const SEQUENCE: u64 = 1;

/// What happens to a track.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// An event of a track.
#[derive(Default)]
pub(super) struct Event {
    pub(super) name: u64,
    /// Numbers shown with it: interned name, and value.
    pub(super) details: [Option<(u64, u64)>; 2],
    /// An arrow begins here, or ends.
    pub(super) arrow_from: Option<u64>,
    pub(super) arrow_to: Option<u64>,
}

impl Packets {
    /// The first packet: names of events, and of their details, by number from 1.
    pub(super) fn names(&mut self, events: &[String], details: &[&str]) {
        let mut data = vec![];
        let entry = |number: usize, name: &str| {
            let mut entry = vec![];
            varint_field(&mut entry, 1, number as u64 + 1);
            bytes_field(&mut entry, 2, name.as_bytes());
            entry
        };
        for (number, name) in events.iter().enumerate() {
            bytes_field(&mut data, 2, &entry(number, name));
        }
        for (number, name) in details.iter().enumerate() {
            bytes_field(&mut data, 3, &entry(number, name));
        }
        let mut packet = vec![];
        varint_field(&mut packet, 10, SEQUENCE);
        varint_field(&mut packet, 13, 1 | 2); // what was interned before is void; this needs it
        bytes_field(&mut packet, 12, &data);
        bytes_field(&mut self.0, 1, &packet);
    }

    /// A group of tracks, which Perfetto shows as a process.
    pub(super) fn group(&mut self, id: u64, number: u64, name: &str) {
        let mut process = vec![];
        varint_field(&mut process, 1, number);
        bytes_field(&mut process, 6, name.as_bytes());
        let mut track = vec![];
        varint_field(&mut track, 1, id);
        bytes_field(&mut track, 3, &process);
        varint_field(&mut track, 11, 3); // tracks below it are in the order of their ranks
        self.descriptor(&track);
    }

    /// A track of a group.
    pub(super) fn track(&mut self, id: u64, group: u64, rank: u64, name: &str) {
        let mut track = vec![];
        varint_field(&mut track, 1, id);
        varint_field(&mut track, 5, group);
        bytes_field(&mut track, 2, name.as_bytes());
        varint_field(&mut track, 12, rank);
        self.descriptor(&track);
    }

    fn descriptor(&mut self, track: &[u8]) {
        let mut packet = vec![];
        varint_field(&mut packet, 10, SEQUENCE);
        bytes_field(&mut packet, 60, track);
        bytes_field(&mut self.0, 1, &packet);
    }

    /// Something happens on a track.
    pub(super) fn event(&mut self, at_ns: u64, track: u64, kind: Kind, event: &Event) {
        let mut inner = vec![];
        for (name, value) in event.details.iter().flatten() {
            let mut detail = vec![];
            varint_field(&mut detail, 1, *name);
            varint_field(&mut detail, 3, *value);
            bytes_field(&mut inner, 4, &detail);
        }
        varint_field(&mut inner, 9, kind as u64);
        if event.name > 0 {
            varint_field(&mut inner, 10, event.name);
        }
        varint_field(&mut inner, 11, track);
        for (field, arrow) in [(47, event.arrow_from), (48, event.arrow_to)] {
            if let Some(arrow) = arrow {
                varint(&mut inner, field << 3 | 1);
                inner.extend(arrow.to_le_bytes());
            }
        }
        let mut packet = vec![];
        varint_field(&mut packet, 8, at_ns);
        varint_field(&mut packet, 10, SEQUENCE);
        bytes_field(&mut packet, 11, &inner);
        varint_field(&mut packet, 13, 2);
        bytes_field(&mut self.0, 1, &packet);
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low(value) | 0x80);
        value >>= 7;
    }
    out.push(low(value));
}

fn low(value: u64) -> u8 {
    (value & 0x7f) as u8
}

fn varint_field(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes_field(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_the_format_says() {
        let mut out = vec![];
        varint_field(&mut out, 1, 150);
        assert_eq!(out, [0x08, 0x96, 0x01], "the example of the protocol buffers' documentation");
        let mut out = vec![];
        bytes_field(&mut out, 2, b"testing");
        assert_eq!(out, [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
    }
}
