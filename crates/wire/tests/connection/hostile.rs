//! A peer that breaks the rules is cut off with a reason, and nothing of what it sent is believed.

use crate::pair::{Pair, Side, events, hello, welcome};
use proptest::prelude::*;
use sluice_base::crc::crc32c;
use sluice_wire::{
    Clear, Connection, ConnectionError, Event, FrameError, HEADER_BYTES, Header, Kind, Limits, Options, PUSHES_MAX,
};
use std::time::Duration;

/// A frame as a hostile peer may send it.
fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    let crc = if body.is_empty() { 0 } else { crc32c(body) };
    let header = Header { length: body.len() as u32, body_crc: crc, ..header };
    [&header.to_bytes()[..], body].concat()
}

/// What an open side says to `bytes`.
fn answer(side: Side, bytes: &[u8]) -> ConnectionError {
    let mut pair = Pair::open();
    let now = pair.now;
    let error = pair.side(side).handle_input(now, bytes).expect_err("it breaks a rule");
    assert_eq!(events(pair.side(side)).last(), Some(&Event::Closed { why: error.clone() }));
    assert!(pair.side(side).handle_input(now, bytes).is_ok(), "what comes later is not looked at");
    pair.run();
    let told = events(pair.side(side.other()));
    assert_eq!(told.last(), Some(&Event::Closed { why: ConnectionError::Bye(error.to_string()) }));
    error
}

#[test]
fn a_claim_of_4_gib_is_refused_by_its_header() {
    let mut bytes = Header::new(Kind::Request, 1).to_bytes();
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let crc = crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    let claim = FrameError::TooLong { kind: Kind::Request, length: u32::MAX };
    assert_eq!(answer(Side::Acceptor, &bytes), claim.into());
}

#[test]
fn noise_is_refused_and_not_answered() {
    for noise in [&b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"[..], &[0; 64], &[0xF5; 64]] {
        let mut acceptor = Connection::acceptor(Duration::ZERO, Options::default(), Box::new(Clear));
        assert!(matches!(acceptor.handle_input(Duration::ZERO, noise), Err(ConnectionError::Frame(_))));
        assert_eq!(acceptor.output_bytes(), 0);
    }
}

#[test]
fn frames_at_the_wrong_time_are_refused() {
    let mut acceptor = Connection::acceptor(Duration::ZERO, Options::default(), Box::new(Clear));
    let early = frame(Header::new(Kind::Request, 1), b"");
    assert_eq!(acceptor.handle_input(Duration::ZERO, &early), Err(ConnectionError::OutOfPhase(Kind::Request)));
    // A second Hello, and requests before the Welcome.
    for second in [Header::new(Kind::Hello, 0), Header::new(Kind::Request, 1)] {
        let mut pair = Pair::new(Options::default(), Options::default());
        pair.run();
        let error = pair.acceptor.handle_input(pair.now, &frame(second, b""));
        assert_eq!(error, Err(ConnectionError::OutOfPhase(second.kind)));
        pair.acceptor.accept(welcome());
        assert!(pair.acceptor.is_closed(), "too late");
    }
    for kind in [Kind::Hello, Kind::Welcome, Kind::Refused] {
        for side in [Side::Initiator, Side::Acceptor] {
            assert_eq!(answer(side, &frame(Header::new(kind, 0), b"")), ConnectionError::OutOfPhase(kind));
        }
    }
    let push = frame(Header::new(Kind::Push, 1), b"");
    assert_eq!(answer(Side::Acceptor, &push), ConnectionError::OutOfPhase(Kind::Push));
    let ack = frame(Header::new(Kind::PushAck, 1), b"");
    assert_eq!(answer(Side::Initiator, &ack), ConnectionError::OutOfPhase(Kind::PushAck));
}

#[test]
fn answers_to_nothing_are_refused() {
    let unknown = |kind| ConnectionError::Unknown { kind, id: 1 };
    assert_eq!(answer(Side::Initiator, &frame(Header::new(Kind::Reply, 1), b"x")), unknown(Kind::Reply));
    assert_eq!(answer(Side::Initiator, &frame(Header::new(Kind::Failed, 1), b"1234")), unknown(Kind::Failed));
    assert_eq!(answer(Side::Acceptor, &frame(Header::new(Kind::Cancel, 1), b"")), unknown(Kind::Cancel));
    assert_eq!(answer(Side::Acceptor, &frame(Header::new(Kind::PushAck, 1), b"")), unknown(Kind::PushAck));
}

/// One answer counts a cancelled request off; a second one is to nothing.
#[test]
fn a_second_answer_is_refused() {
    let mut pair = Pair::open();
    let id = pair.initiator.request(pair.now, 1, &Default::default(), None).expect("room");
    pair.initiator.cancel(id);
    let reply = frame(Header::new(Kind::Reply, id.0), b"x");
    assert_eq!(pair.initiator.handle_input(pair.now, &reply), Ok(()));
    let error = ConnectionError::Unknown { kind: Kind::Reply, id: id.0 };
    assert_eq!(pair.initiator.handle_input(pair.now, &reply), Err(error));
}

#[test]
fn numbers_without_order_are_refused() {
    let skipped = ConnectionError::OutOfOrder { kind: Kind::Request, id: 2, expected: 1 };
    assert_eq!(answer(Side::Acceptor, &frame(Header::new(Kind::Request, 2), b"")), skipped);
    let twice = frame(Header::new(Kind::Request, 1), b"").repeat(2);
    let again = ConnectionError::OutOfOrder { kind: Kind::Request, id: 1, expected: 2 };
    assert_eq!(answer(Side::Acceptor, &twice), again);
}

#[test]
fn more_than_allowed_is_refused() {
    let limits = Limits { requests_max: 2, bytes_max: 100 };
    let refused = |bodies: &[usize]| {
        let mut pair = Pair::open_with(Options::default(), Options { limits, ..Options::default() });
        let mut number = 0;
        let requests = bodies.iter().flat_map(|count| {
            number += 1;
            frame(Header::new(Kind::Request, number), &vec![0; *count])
        });
        pair.acceptor.handle_input(pair.now, &requests.collect::<Vec<_>>())
    };
    assert_eq!(refused(&[50, 50]), Ok(()));
    assert_eq!(refused(&[1, 1, 1]), Err(ConnectionError::OverLimit("requests")));
    assert_eq!(refused(&[50, 51]), Err(ConnectionError::OverLimit("bytes of requests")));
    let pushes: Vec<u8> = (0..=PUSHES_MAX as u64).flat_map(|n| frame(Header::new(Kind::Push, n + 1), b"")).collect();
    assert_eq!(answer(Side::Initiator, &pushes), ConnectionError::OverLimit("pushes"));
}

#[test]
fn malformed_bodies_are_refused() {
    let mut pair = Pair::open();
    let id = pair.initiator.request(pair.now, 1, &Default::default(), None).expect("room");
    let failed = frame(Header::new(Kind::Failed, id.0), b"123");
    assert_eq!(pair.initiator.handle_input(pair.now, &failed), Err(ConnectionError::Malformed(Kind::Failed)));
    let bye = frame(Header::new(Kind::Bye, 0), &[0xff]);
    assert_eq!(answer(Side::Acceptor, &bye), ConnectionError::Malformed(Kind::Bye));
    let mut acceptor = Connection::acceptor(Duration::ZERO, Options::default(), Box::new(Clear));
    let short = frame(Header::new(Kind::Hello, 0), &[1, 0, 1, 0]);
    assert_eq!(acceptor.handle_input(Duration::ZERO, &short), Err(ConnectionError::Malformed(Kind::Hello)));
}

/// A version that was not offered.
#[test]
fn a_forced_version_is_refused() {
    let mut pair = Pair::new(Options::default(), Options::default());
    pair.run();
    pair.acceptor.accept(welcome());
    let mut sent = pair.sent(Side::Acceptor, usize::MAX);
    sent[HEADER_BYTES] = 2;
    let resent = frame(Header::new(Kind::Welcome, 0), &sent[HEADER_BYTES..]);
    assert_eq!(pair.initiator.handle_input(pair.now, &resent), Err(ConnectionError::Version(2)));
}

/// Everything that an initiator sends in a small conversation, and what each frame must be when it arrives.
fn conversation() -> Vec<u8> {
    let mut pair = Pair::open();
    for method in 0..4 {
        pair.initiator.request(pair.now, method, &vec![method as u8; 1000].into(), None).expect("room");
    }
    pair.initiator.cancel(sluice_wire::RequestId(2));
    pair.sent(Side::Initiator, usize::MAX)
}

proptest! {
    /// A changed byte is noticed before anything of its frame is believed.
    #[test]
    fn damage_never_gives_a_wrong_body(at in 0usize..4 * 1032 + 32, with in 1u8..) {
        let mut bytes = conversation();
        bytes[at] ^= with;
        let mut pair = Pair::open();
        prop_assert!(pair.acceptor.handle_input(pair.now, &bytes).is_err());
        for event in events(&mut pair.acceptor) {
            if let Event::Request(request) = event {
                prop_assert!(request.id.0 - 1 < (at as u64) / 1032 + 1);
                let expected = vec![request.method as u8; 1000];
                prop_assert_eq!(request.body.checked().expect("was checked"), expected);
            }
        }
    }

    /// Any bytes, with headers made right so that they get further: errors, never panics.
    #[test]
    fn any_frames_are_taken_or_refused(
        frames in prop::collection::vec((0u8..14, 0u16..3, 0u64..4, 0u8..3, prop::collection::vec(any::<u8>(), 0..80)), 1..20),
        open: bool,
        side: bool,
    ) {
        let mut pair = if open { Pair::open() } else { Pair::new(Options::default(), Options::default()) };
        let side = if side { Side::Initiator } else { Side::Acceptor };
        let now = pair.now;
        for (kind, method, id, flags, body) in frames {
            let mut bytes = [0; HEADER_BYTES];
            (bytes[0], bytes[1], bytes[2], bytes[8], bytes[20]) = (0xF5, kind, method as u8, id as u8, flags);
            bytes[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
            bytes[24..28].copy_from_slice(&if body.is_empty() { 0 } else { crc32c(&body) }.to_le_bytes());
            let crc = crc32c(&bytes[..28]);
            bytes[28..].copy_from_slice(&crc.to_le_bytes());
            let failed = pair.side(side).handle_input(now, &[&bytes[..], &body].concat()).is_err();
            prop_assert!(!failed || pair.side(side).is_closed());
        }
        let events = events(pair.side(side));
        let ends = events.iter().filter(|event| matches!(event, Event::Closed { .. })).count();
        prop_assert!(ends <= 1);
        prop_assert!(!events.iter().any(|event| *event == Event::Hello(hello())));
    }
}
