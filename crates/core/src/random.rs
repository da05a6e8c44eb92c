//! Seeded pseudo-random numbers: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).

/// Numbers that look random, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to n - 1; 0 if there is none. The bias of the remainder is below n / 2^64.
    pub fn below<T: Default + TryFrom<u64> + TryInto<u64>>(&mut self, n: T) -> T {
        let rest = self.draw().checked_rem(n.try_into().unwrap_or(0));
        rest.and_then(|rest| T::try_from(rest).ok()).unwrap_or_default()
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of these, of which there is one at least.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_all_items_and_is_decided_by_its_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Random(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_shuffle_puts_every_item_first_about_equally_often() {
        let mut first = [0_u32; 4];
        let mut random = Random(1);
        for _ in 0..4000 {
            let mut items = [0, 1, 2, 3];
            random.shuffle(&mut items);
            first[items[0]] += 1;
        }
        assert!(first.iter().all(|n| (900..1100).contains(n)), "{first:?}");
    }
}
