use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LIMITS: Limits = Limits { window_max: 32 << 20, of_read_percent: 200 };
const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// What was asked for ahead of reads that are all late.
fn asked(reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<Range<u64>> {
    let mut pattern = Pattern::default();
    let mut all = Vec::new();
    for (offset, len) in reads {
        all.extend(pattern.handle_read(offset, len, true, &LIMITS).into_iter().flat_map(Wanted::pieces));
    }
    all
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[test]
fn one_who_reads_in_order_is_ahead_without_a_gap() {
    let mut pattern = Pattern::default();
    let (mut edge, mut ahead) = (0, 0);
    for n in 0..256 {
        let (from, end) = (n * M, (n + 1) * M);
        for piece in pattern.handle_read(from, M, true, &LIMITS).into_iter().flat_map(Wanted::pieces) {
            assert!(piece.start >= end && (edge == 0 || piece.start == edge), "{piece:?} after {edge}");
            assert!(piece.end - piece.start <= PIECE_MAX);
            edge = piece.end;
        }
        assert!(edge - end <= 2 * end, "never more than a share of what was read");
        ahead = edge - end;
    }
    assert_eq!(ahead, 32 * M, "as far as it may");
}

#[test]
fn the_window_grows_only_while_reads_wait() {
    let mut pattern = Pattern::default();
    let mut edge = 0;
    for n in 0..1024 {
        let wanted = pattern.handle_read(n * 128 * K, 128 * K, false, &LIMITS);
        edge = wanted.into_iter().flat_map(Wanted::pieces).last().map_or(edge, |piece| piece.end);
        assert!(edge <= (n + 1) * 128 * K + WINDOW_FIRST);
    }
    assert!(edge > 1024 * 128 * K);
}

#[test]
fn what_is_fetched_in_vain_shrinks_the_window() {
    let mut pattern = Pattern::default();
    let window = |pattern: &mut Pattern, n: u64| {
        let wanted = pattern.handle_read(n * M, M, true, &LIMITS);
        pattern.streams[0].grows_at = u64::MAX;
        wanted.map_or(0, |wanted| wanted.end - (n + 1) * M)
    };
    for n in 0..64 {
        pattern.handle_read(n * M, M, true, &LIMITS);
    }
    assert_eq!(window(&mut pattern, 64), 32 * M);
    (0..4).for_each(|_| pattern.handle_useless());
    assert!((65..140).all(|n| window(&mut pattern, n) <= 2 * M));
}

#[test]
fn what_was_refused_is_asked_for_again() {
    let mut pattern = Pattern::default();
    pattern.handle_read(0, M, true, &LIMITS);
    let wanted = pattern.handle_read(M, M, true, &LIMITS).unwrap();
    assert_eq!((wanted.start, wanted.end), (3 * M, 6 * M), "{wanted:?}");
    pattern.handle_refused(&wanted, M);
    let again = pattern.handle_read(2 * M, M, true, &LIMITS).unwrap();
    assert_eq!(again.start, 4 * M);
}

#[test]
fn a_header_is_not_a_stream() {
    assert_eq!(asked([(0, 4 * K)]), []);
    assert_eq!(asked([(0, 4 * K), (90 * M, 4 * K), (M, 64 * K)]), []);
    assert_ne!(asked([(0, 128 * K)]), [], "of that size it is");
}

#[test]
fn backward_is_forward_in_a_mirror() {
    let size = 64 * M;
    let forward = asked((0..64).map(|n| (M + n * M, M)));
    let backward = asked((0..62).map(|n| (size - 2 * M - n * M, M)));
    let mirrored: Vec<_> = backward.iter().map(|range| size - range.end..size - range.start).collect();
    assert_eq!(mirrored[..20], forward[..20]);
    assert_eq!(backward.last().unwrap().start, 0);
    assert!(backward.windows(2).all(|pair| pair[0].start == pair[1].end));
}

#[test]
fn runs_at_equal_distances_are_fetched_and_nothing_between() {
    for step in [M as i64, -(M as i64)] {
        let read = |n: u64| ((200 * M).checked_add_signed(step * n as i64).unwrap(), 64 * K);
        let ranges = asked((0..100).map(read));
        let expected: Vec<_> = (4..4 + ranges.len() as u64).map(|n| read(n).0..read(n).0 + 64 * K).collect();
        assert!(ranges.len() > 100, "{}", ranges.len());
        assert_eq!(ranges, expected);
    }
}

#[test]
fn requests_that_pass_each_other_are_one_stream() {
    let order = [0, 1, 3, 2, 5, 4, 6, 8, 7, 9, 11, 10];
    let ranges = asked(order.map(|n| (n * M, M)));
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
    assert!(ranges.last().unwrap().end >= 24 * M, "{ranges:?}");
}

#[test]
fn the_ends_of_all_offsets() {
    let end = i64::MAX as u64;
    let far = asked([(end - 2 * M, M), (end - M, M), (end, M), (u64::MAX - 1, 1)]);
    assert!(far.iter().all(|range| range.start < range.end));
    assert_eq!(asked([(M, M), (0, M), (0, 0)]), []);
}

proptest! {
    /// Four offsets at equal distances among so many are next to impossible; none of the reads touch.
    #[test]
    fn reads_at_random_want_nothing(offsets in proptest::collection::vec(0u64..1 << 28, 1..200)) {
        let ranges = asked(offsets.into_iter().map(|at| (8 * K * at + M, 4 * K)));
        prop_assert_eq!(bytes(&ranges), 0);
    }

    /// However several readers of one handle alternate, each gets what it would alone.
    #[test]
    fn several_readers_of_a_handle(turns in proptest::collection::vec(0usize..4, 40..200)) {
        const PART: u64 = 1 << 30;
        let (mut at, mut found) = ([0u64; 4], BTreeSet::new());
        let reads: Vec<_> = turns.iter().map(|&who| {
            at[who] += 1;
            (M + who as u64 * PART + (at[who] - 1) * 128 * K, 128 * K)
        }).collect();
        found.extend(asked(reads).into_iter().map(|range| (range.start, range.end)));
        for (who, &reads) in at.iter().enumerate() {
            let start = M + who as u64 * PART;
            let alone: BTreeSet<_> =
                asked((0..reads).map(|n| (start + n * 128 * K, 128 * K))).into_iter().map(|r| (r.start, r.end)).collect();
            let its: BTreeSet<_> = found.range((start, 0)..(start + PART, 0)).copied().collect();
            prop_assert_eq!(its, alone);
        }
    }

    /// Whatever is read: nothing is asked for twice while a stream lives, and no more than the limits say.
    #[test]
    fn any_reads(reads in proptest::collection::vec((0u64..64, 1u64..64, any::<bool>()), 1..100)) {
        let mut pattern = Pattern::default();
        for (offset, len, late) in reads {
            if let Some(wanted) = pattern.handle_read(offset * 16 * K, len * 16 * K, late, &LIMITS) {
                let all: Vec<_> = wanted.pieces().collect();
                prop_assert!(bytes(&all) <= LIMITS.window_max && !all.is_empty());
                prop_assert!(all.iter().all(|r| r.start < r.end && r.end - r.start <= PIECE_MAX.max(len * 16 * K)));
            }
            prop_assert!(pattern.streams.len() <= STREAMS_MAX);
        }
    }
}

/// What was answered elsewhere, without a note, in one run.
#[test]
fn a_run_that_was_at_hand_makes_the_first_miss_a_stream() {
    let mut pattern = Pattern::default();
    pattern.handle_run(0..8 * M, 128 * K);
    let wanted = pattern.handle_read(8 * M, 128 * K, true, &LIMITS).expect("its next bytes");
    assert_eq!((wanted.way, wanted.start), (Way::Forward, 8 * M + 128 * K));
    // A stream goes on behind it, with the window that it had.
    let window = pattern.streams[0].window;
    pattern.handle_run(8 * M + 128 * K..20 * M, 128 * K);
    let wanted = pattern.handle_read(20 * M, 128 * K, false, &LIMITS).expect("its next bytes");
    assert_eq!((wanted.way, wanted.start, pattern.streams.len()), (Way::Forward, 20 * M + 128 * K, 1));
    assert!(pattern.streams[0].window >= window);
}
