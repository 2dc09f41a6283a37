//! Memory has an end, whatever the peer does.

use crate::pair::{Pair, Side, events};
use bytes::Bytes;
use sluice_wire::{ConnectionError, DATA_BYTES_MAX, Event, Full, Limits, Options, Payload, RequestId};
use std::time::Duration;

fn limited(requests_max: u32, bytes_max: u32, output_bytes_max: usize) -> Options {
    Options { limits: Limits { requests_max, bytes_max }, output_bytes_max, ..Options::default() }
}

fn bytes(count: usize) -> Payload {
    vec![1; count].into()
}

#[test]
fn requests_keep_the_limits_that_the_peer_stated() {
    let mut pair = Pair::open_with(limited(0, 0, 1 << 20), limited(3, 1000, 1 << 20));
    let now = pair.now;
    assert_eq!(pair.acceptor.request(now, 1, &bytes(1), None), Err(Full::NotTaken));
    assert_eq!(pair.initiator.request(now, 1, &bytes(DATA_BYTES_MAX + 1), None), Err(Full::TooLong));
    // A single one may be larger than all together.
    assert!(pair.initiator.request(now, 1, &bytes(5000), None).is_ok());
    assert_eq!(pair.initiator.request(now, 1, &bytes(1), None), Err(Full::BytesInFlight));
    pair.run();
    pair.acceptor.reply(RequestId(1), &bytes(1));
    pair.run();
    for _ in 0..3 {
        assert!(pair.initiator.request(now, 1, &bytes(10), None).is_ok());
    }
    assert_eq!(pair.initiator.request(now, 1, &bytes(10), None), Err(Full::InFlight));
    pair.run();
    assert!(pair.acceptor.is_open(), "what the sender allows the receiver takes");
}

#[test]
fn queued_output_has_an_end() {
    let mut pair = Pair::open_with(limited(64, 1 << 20, 1000), Options::default());
    assert!(pair.initiator.request(pair.now, 1, &bytes(2000), None).is_ok());
    assert_eq!(pair.initiator.request(pair.now, 1, &bytes(1), None), Err(Full::Output));
    pair.run();
    assert!(pair.initiator.request(pair.now, 1, &bytes(1), None).is_ok());
}

/// A peer that asks but does not read: the acceptor stops listening to it, and in the end gives it up.
#[test]
fn a_peer_that_never_reads_is_not_listened_to() {
    let mut pair = Pair::open_with(Options::default(), limited(64, 1 << 20, 100_000));
    let mut asked = 0;
    while pair.acceptor.wants_input() {
        let id = pair.initiator.request(pair.now, 1, &Payload::default(), None).expect("few are under way");
        asked += 1;
        let sent = pair.sent(Side::Initiator, usize::MAX);
        pair.acceptor.handle_input(pair.now, &sent).expect("sound");
        pair.acceptor.reply(id, &bytes(10_000));
        assert!(pair.acceptor.output_bytes() < 100_000 + 10_032);
    }
    assert_eq!(asked, 10);
    pair.acceptor.poll_event();
    pair.pass(Duration::from_secs(14));
    assert!(pair.acceptor.is_open());
    // Taking some is a sign of life.
    pair.sent(Side::Acceptor, 10);
    pair.pass(Duration::from_secs(14));
    assert!(pair.acceptor.is_open());
    pair.pass(Duration::from_secs(1));
    assert_eq!(events(&mut pair.acceptor).last(), Some(&Event::Closed { why: ConnectionError::Silent }));
}

/// Once a slow reader has caught up it is listened to, and not taken for dead because nothing was heard of it meanwhile.
#[test]
fn a_slow_reader_catches_up() {
    let mut pair = Pair::open_with(Options::default(), limited(64, 1 << 20, 1000));
    let id = pair.initiator.request(pair.now, 1, &Payload::default(), None).expect("room");
    pair.run();
    pair.acceptor.reply(id, &bytes(4000));
    for _ in 0..3 {
        assert!(!pair.acceptor.wants_input());
        pair.pass(Duration::from_secs(10));
        let sent = pair.sent(Side::Acceptor, 1100);
        let _ = pair.initiator.handle_input(pair.now, &sent);
    }
    assert!(pair.acceptor.wants_input());
    pair.acceptor.handle_timeout(pair.now);
    assert!(pair.acceptor.is_open());
}

#[test]
fn a_peer_that_pings_and_does_not_read_gets_no_more_pongs() {
    let mut pair = Pair::open_with(limited(1, 1, 100), limited(1, 1, 100));
    let ping = sluice_wire::Header::new(sluice_wire::Kind::Ping, 0).to_bytes();
    for _ in 0..10_000 {
        pair.initiator.handle_input(pair.now, &ping).expect("sound");
    }
    assert!(pair.initiator.output_bytes() <= 132);
}

/// Half a frame, then nothing.
#[test]
fn half_a_frame_then_silence_ends() {
    let mut pair = Pair::open();
    pair.initiator.request(pair.now, 1, &bytes(100_000), None).expect("room");
    let sent = pair.sent(Side::Initiator, 50_000);
    pair.acceptor.handle_input(pair.now, &sent).expect("sound so far");
    pair.pass(Duration::from_secs(15));
    assert_eq!(events(&mut pair.acceptor), [Event::Closed { why: ConnectionError::Silent }]);
}

#[test]
fn half_a_handshake_ends() {
    let mut pair = Pair::new(Options::default(), Options::default());
    let sent = pair.sent(Side::Initiator, 40);
    pair.acceptor.handle_input(pair.now, &sent).expect("sound so far");
    assert_eq!(pair.acceptor.poll_timeout(), Some(pair.now + Duration::from_secs(10)));
    pair.pass(Duration::from_secs(10));
    for side in [Side::Initiator, Side::Acceptor] {
        assert_eq!(events(pair.side(side)), [Event::Closed { why: ConnectionError::HandshakeTimeout }]);
    }
}

/// The buffer has room for the frame that is awaited, and no more than one read beyond it.
#[test]
fn the_input_buffer_is_as_large_as_the_frame() {
    let mut pair = Pair::open();
    for round in 0..4 {
        pair.initiator.request(pair.now, 1, &Bytes::from(vec![9; 1 << 20]).into(), None).expect("room");
        for piece in pair.sent(Side::Initiator, usize::MAX).chunks(10_000) {
            let buffer = pair.acceptor.input();
            assert!(buffer.capacity() > buffer.len(), "room to read into");
            assert!(buffer.capacity() <= (2 << 20) + (128 << 10), "{} bytes in round {round}", buffer.capacity());
            buffer.extend_from_slice(piece);
            pair.acceptor.handle_received(pair.now).expect("sound");
        }
        pair.acceptor.reply(RequestId(round + 1), &Payload::default());
        pair.run();
        assert_eq!(events(&mut pair.acceptor).len(), 1);
    }
}
