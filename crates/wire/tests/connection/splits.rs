//! The same bytes in any pieces are the same events.

use crate::pair::{Pair, Side, events};
use bytes::Bytes;
use proptest::prelude::*;

/// What the acceptor of a busy connection sends: answers of every size, errors, pushes, requests.
fn stream(sizes: &[usize]) -> (Pair, Vec<u8>) {
    let mut pair = Pair::open();
    let (mut copy, now) = (Pair::open(), pair.now);
    for (n, size) in sizes.iter().enumerate() {
        for pair in [&mut pair, &mut copy] {
            let id = pair.initiator.request(now, n as u16, &Default::default(), None).expect("room");
            pair.run();
            pair.acceptor.poll_event();
            if n % 5 == 4 {
                pair.acceptor.fail(id, n as u32, "no");
            } else {
                pair.acceptor.reply(id, &Bytes::from(vec![n as u8; *size]).into());
            }
            if n % 3 == 0 {
                pair.acceptor.push(&vec![1; n].into()).expect("room");
                pair.acceptor.request(now, 1, &vec![2; size / 7].into(), None).expect("room");
            }
        }
    }
    let bytes = copy.sent(Side::Acceptor, usize::MAX);
    (pair, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_split_gives_the_same_events(
        sizes in prop::collection::vec(prop_oneof![0usize..100, 4000usize..5000, 60_000usize..140_000], 1..12),
        cuts in prop::collection::vec(1usize..80_000, 1..40),
        straight: bool,
    ) {
        let (mut whole, bytes) = stream(&sizes);
        whole.initiator.handle_input(whole.now, &bytes).expect("sound");
        let expected = events(&mut whole.initiator);
        prop_assert!(expected.len() >= sizes.len());

        let (mut split, _) = stream(&sizes);
        let mut rest = &bytes[..];
        let mut got = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let body = split.initiator.expects_body().map(|header| header.length as usize);
            // A driver may read bodies to another place whenever none of it was read yet.
            if let Some(length) = body.filter(|length| straight && *length <= rest.len()) {
                split.initiator.handle_body(split.now, Bytes::copy_from_slice(&rest[..length])).expect("sound");
                rest = &rest[length..];
            } else {
                let (piece, behind) = rest.split_at((*cut).min(rest.len()));
                if cut % 2 == 0 {
                    split.initiator.handle_input(split.now, piece).expect("sound");
                } else {
                    split.initiator.input().extend_from_slice(piece);
                    split.initiator.handle_received(split.now).expect("sound");
                }
                rest = behind;
            }
            got.extend(events(&mut split.initiator));
        }
        prop_assert_eq!(got, expected);
    }

    /// However little is taken at a time, it is the same stream.
    #[test]
    fn any_bound_of_transmission_gives_the_same_bytes(
        sizes in prop::collection::vec(0usize..20_000, 1..8),
        bounds in prop::collection::vec(1usize..9000, 1..10),
    ) {
        let (mut pair, bytes) = stream(&sizes);
        let mut got = Vec::new();
        for bound in bounds.iter().cycle() {
            let piece = pair.sent(Side::Acceptor, *bound);
            if piece.is_empty() {
                break;
            }
            got.extend(piece);
        }
        prop_assert_eq!(got, bytes);
        prop_assert_eq!(pair.acceptor.output_bytes(), 0);
    }
}
