//! Random numbers as a pure function of (seed, entity, purpose, counter): drawing once more somewhere does
//! not change what another entity draws, so runs of two policies can be compared with common random
//! numbers. Entities are threads, programs and vCPUs by their numbers on the whole host: one more in a VM
//! changes what the VMs after it draw, one more VM at the end nothing.
//!
//! The generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014) on the counter. Logarithms are
//! computed from the four basic operations only, which IEEE 754 defines to the last bit, so results
//! do not depend on a platform's mathematics library.

/// 2^64 over the golden ratio: consecutive counters become far apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Lengths of computations of a thread.
    Compute = 1,
    /// Lengths of sleeps of a thread.
    Sleep = 2,
    /// When a program starts.
    Start = 3,
    /// What a vCPU had left of what was before the simulation.
    Before = 4,
    /// When pCPUs are first looked at by who decides their speed.
    Sample = 5,
    /// How much later than the first one a thread of it starts.
    Thread = 6,
}

/// The scrambling step of splitmix64.
#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The numbers of one entity for one purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    key: u64,
    drawn: u64,
}

impl Stream {
    pub(crate) fn new(seed: u64, entity: u64, purpose: Purpose) -> Stream {
        let key = mix(seed.wrapping_add(GOLDEN)) ^ mix(entity.wrapping_mul(GOLDEN) ^ purpose as u64);
        Stream { key: mix(key), drawn: 0 }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(GOLDEN);
        mix(self.key.wrapping_add(self.drawn))
    }

    /// Above 0, at most 1.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// 0 to `n` - 1; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }

    /// Exponentially distributed, mean 1: the inverse of the distribution, linear between 1,024 steps
    /// (the mean is 1e-4 too high), exact in the last one.
    #[inline]
    pub(crate) fn exponential(&mut self) -> f64 {
        let bits = self.next();
        let step = (bits >> 54) as usize;
        let within = (bits & ((1 << 53) - 1)) as f64 / (1_u64 << 53) as f64;
        if step == 0 {
            return -ln((within + f64::EPSILON) / STEPS as f64);
        }
        TABLE[step] + within * (TABLE[step + 1] - TABLE[step])
    }

    /// About normally distributed, mean 0, variance 1: the sum of twelve uniform numbers less 6
    /// (never beyond 6).
    #[expect(clippy::cast_possible_truncation, reason = "16 bits of 64")]
    pub(crate) fn normal(&mut self) -> f64 {
        // Four at a time: 16 bits are enough for each.
        let quarter = |bits: u64, n: u32| f64::from((bits >> (16 * n)) as u16) + 0.5;
        let four = |bits: u64| (0..4).map(|n| quarter(bits, n)).sum::<f64>();
        (0..3).map(|_| four(self.next())).sum::<f64>() / 65_536.0 - 6.0
    }
}

/// Steps of the table of logarithms.
const STEPS: usize = 1024;

/// -ln(i / STEPS), for i above 0.
static TABLE: [f64; STEPS + 1] = {
    let mut table = [0.0; STEPS + 1];
    let mut i = 1;
    while i <= STEPS {
        table[i] = -ln(i as f64 / STEPS as f64);
        i += 1;
    }
    table
};

/// The natural logarithm of a positive, normal number, to 1e-12.
const fn ln(x: f64) -> f64 {
    const K: [f64; 6] = [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1022;
    let mut fraction = f64::from_bits((bits & ((1 << 52) - 1)) | (1022 << 52)); // 0.5 to 1
    if fraction < std::f64::consts::FRAC_1_SQRT_2 {
        fraction *= 2.0;
        exponent -= 1;
    }
    let s = (fraction - 1.0) / (fraction + 1.0); // at most 0.172: seven terms reach 1e-12
    let q = s * s;
    let mut series = 1.0 / 13.0;
    let mut i = 0;
    while i < K.len() {
        series = series * q + K[i];
        i += 1;
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_that_of_the_library() {
        let mut stream = Stream::new(1, 2, Purpose::Compute);
        for _ in 0..10_000 {
            let x = stream.unit();
            assert!((ln(x) - x.ln()).abs() < 1e-11, "{x}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn streams_differ_by_seed_entity_and_purpose_and_repeat_otherwise() {
        let first = |seed, entity, purpose| Stream::new(seed, entity, purpose).next();
        let one = first(1, 2, Purpose::Compute);
        assert_eq!(one, first(1, 2, Purpose::Compute));
        for other in
            [first(2, 2, Purpose::Compute), first(1, 3, Purpose::Compute), first(1, 2, Purpose::Sleep)]
        {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn means_and_variances_are_those_of_the_distributions() {
        let mut stream = Stream::new(7, 0, Purpose::Sleep);
        let n = 200_000;
        let (mut e, mut e2, mut g, mut g2) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..n {
            let (x, y) = (stream.exponential(), stream.normal());
            e += x;
            e2 += x * x;
            g += y;
            g2 += y * y;
        }
        let n = f64::from(n);
        assert!((e / n - 1.0).abs() < 0.01 && (e2 / n - 2.0).abs() < 0.05, "{} {}", e / n, e2 / n);
        assert!((g / n).abs() < 0.01 && (g2 / n - 1.0).abs() < 0.02, "{} {}", g / n, g2 / n);
    }
}
