//! Sets of small numbers as words of bits, all of the same length.

pub(crate) fn set(bits: &mut [u64], i: usize) {
    bits[i / 64] |= 1 << (i % 64);
}

pub(crate) fn clear(bits: &mut [u64], i: usize) {
    bits[i / 64] &= !(1 << (i % 64));
}

pub(crate) fn contains(bits: &[u64], i: usize) -> bool {
    bits[i / 64] & (1 << (i % 64)) != 0
}

pub(crate) fn add(bits: &mut [u64], other: &[u64]) {
    bits.iter_mut().zip(other).for_each(|(b, o)| *b |= o);
}

pub(crate) fn remove(bits: &mut [u64], other: &[u64]) {
    bits.iter_mut().zip(other).for_each(|(b, o)| *b &= !o);
}

/// Adds what `a` and `b` have in common.
pub(crate) fn add_common(bits: &mut [u64], a: &[u64], b: &[u64]) {
    bits.iter_mut().zip(a.iter().zip(b)).for_each(|(bits, (a, b))| *bits |= a & b);
}

pub(crate) fn common(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().zip(b).map(|(a, b)| a & b).collect()
}

/// The first from `from` on that both have.
pub(crate) fn next_common(a: &[u64], b: &[u64], from: usize) -> Option<usize> {
    let first = from / 64;
    let mut skip = u64::MAX << (from % 64);
    for (i, (a, b)) in a.iter().zip(b).enumerate().skip(first) {
        let word = a & b & skip;
        if word != 0 {
            return Some(i * 64 + word.trailing_zeros() as usize);
        }
        skip = u64::MAX;
    }
    None
}

pub(crate) fn len(bits: &[u64]) -> usize {
    bits.iter().map(|word| word.count_ones() as usize).sum()
}

pub(crate) fn iter(bits: &[u64]) -> impl Iterator<Item = usize> + '_ {
    bits.iter().enumerate().flat_map(|(i, &word)| {
        let mut word = word;
        std::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
            word &= word - 1;
            Some(i * 64 + bit)
        })
    })
}

/// Items whose sets of numbers below `count` are connected, with the union of their sets, in the
/// order of their first items. Items with empty sets stand alone.
pub(crate) fn components(
    items: &[usize],
    set_of: impl Fn(usize) -> Vec<u64>,
    count: usize,
) -> Vec<(Vec<usize>, Vec<u64>)> {
    // For each number the part that it belongs to; parts point to what they were merged into.
    let mut part_of = vec![usize::MAX; count];
    let mut into: Vec<usize> = Vec::new();
    let mut unions: Vec<Vec<u64>> = Vec::new();
    let mut placed = Vec::with_capacity(items.len());
    fn top(into: &mut [usize], mut part: usize) -> usize {
        while into[part] != part {
            into[part] = into[into[part]];
            part = into[part];
        }
        part
    }
    for &item in items {
        let set = set_of(item);
        let known = iter(&set).next().map(|i| part_of[i]).filter(|&p| p != usize::MAX);
        let part = match known {
            Some(part) => top(&mut into, part),
            None => {
                into.push(into.len());
                unions.push(vec![0; set.len()]);
                into.len() - 1
            }
        };
        let mut rest = set;
        remove(&mut rest, &unions[part]);
        while let Some(i) = next_common(&rest, &rest, 0) {
            if part_of[i] == usize::MAX {
                self::set(&mut unions[part], i);
                part_of[i] = part;
                clear(&mut rest, i);
                continue;
            }
            let other = top(&mut into, part_of[i]);
            if other == part {
                clear(&mut rest, i);
                continue;
            }
            into[other] = part;
            let merged = std::mem::take(&mut unions[other]);
            add(&mut unions[part], &merged);
            remove(&mut rest, &merged);
        }
        placed.push(part);
    }
    let mut result: Vec<(Vec<usize>, Vec<u64>)> = Vec::new();
    let mut index = vec![usize::MAX; into.len()];
    for (&item, part) in items.iter().zip(placed) {
        let part = top(&mut into, part);
        if index[part] == usize::MAX {
            index[part] = result.len();
            result.push((Vec::new(), std::mem::take(&mut unions[part])));
        }
        result[index[part]].0.push(item);
    }
    result
}
