//! Highest random weight, in integers: every host must come to the same order, and floating-point logarithms may differ in
//! their last bit from one library to the next. docs/protocol.md, "Placement", has the definition.
//!
//! Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); the weights are those of Schindelhauer
//! and Schomaker, "Weighted distributed hash tables" (2005): the least of -ln(u) / weight, with u uniform in (0, 1), falls to
//! each member in proportion to its weight.

use sluice_base::ObjectId;

/// Bits behind the point of a logarithm: shares are exact to about 2^-32.
const FRACTION_BITS: u32 = 32;

/// FNV-1a, 64 bits. Names differ little; [`mix`] spreads what this gives.
pub fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How far a member of `weight` is from an object: the least one owns it. `None` for weight 0.
pub fn distance(object: ObjectId, name_hash: u64, weight: u32) -> Option<u128> {
    let id = u128::from_le_bytes(object.0);
    let hash = mix(mix(name_hash ^ id as u64) ^ (id >> 64) as u64);
    let scaled = u128::from(minus_log2(hash)) << 64;
    scaled.checked_div(u128::from(weight))
}

/// -log2((2 x `hash` + 1) / 2^65), with [`FRACTION_BITS`] behind the point. The logarithm's bits come one by one, each by a
/// square: log2(x^2) = 2 x log2(x).
fn minus_log2(hash: u64) -> u64 {
    let odd = u128::from(hash) << 1 | 1;
    let whole = odd.ilog2();
    // 1 <= x < 2, with 63 bits behind the point.
    let mut x = (odd << (127 - whole) >> 64) as u64;
    let mut log = u64::from(whole);
    for _ in 0..FRACTION_BITS {
        let square = u128::from(x) * u128::from(x);
        let carry = square >> 127;
        x = (square >> (63 + carry)) as u64;
        log = log << 1 | carry as u64;
    }
    (65 << FRACTION_BITS) - log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms() {
        let one = f64::from(2).powi(FRACTION_BITS as i32);
        for hash in [0, 1, 2, 3, 1000, u64::MAX / 3, 1 << 62, u64::MAX / 2, u64::MAX - 12345, u64::MAX] {
            let exact = 65.0 - (2.0 * hash as f64 + 1.0).log2();
            assert!((minus_log2(hash) as f64 / one - exact).abs() < 1e-8, "{hash}");
        }
    }

    #[test]
    fn known_distances() {
        // Hosts of every version must agree: a change here moves every cached object.
        let object = ObjectId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(name_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(distance(object, name_hash("node-1"), 0), None);
        let one = distance(object, name_hash("node-1"), 1).unwrap();
        assert_eq!(distance(object, name_hash("node-1"), 2), Some(one / 2));
        // By floating point: 6461769248.33.
        assert_eq!(one >> 64, 6_461_769_249);
    }
}
