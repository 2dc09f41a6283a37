//! A record layer that changes bytes and has a handshake of its own: what encryption will ask of the seam.

use crate::pair::{Pair, Side, events};
use bytes::{Buf, BytesMut};
use sluice_wire::{ConnectionError, Event, Options, RecordError, Records};

/// Exchanges a byte, then turns each record by a count and adds a tag of three bytes. No secret is kept.
#[derive(Default)]
struct Toy {
    greeted: bool,
    sealed: u8,
    opened: u8,
}

fn tag_of(record: &[u8], count: u8) -> [u8; 3] {
    [record.iter().fold(count, |sum, byte| sum.wrapping_mul(3).wrapping_add(*byte)), count, 0xAA]
}

impl Records for Toy {
    fn handshake(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> Result<bool, RecordError> {
        if !self.greeted {
            self.greeted = true;
            output.push(b'!');
        }
        match input.first() {
            None => Ok(false),
            Some(b'!') => {
                input.advance(1);
                Ok(true)
            }
            Some(_) => Err(RecordError("no greeting".into())),
        }
    }
    fn tag_bytes(&self) -> usize {
        3
    }
    fn seal(&mut self, record: &mut [u8], tag: &mut [u8]) {
        self.sealed = self.sealed.wrapping_add(1);
        tag.copy_from_slice(&tag_of(record, self.sealed));
        record.iter_mut().for_each(|byte| *byte ^= self.sealed);
    }
    fn open(&mut self, record: &mut [u8], tag: &[u8]) -> Result<(), RecordError> {
        self.opened = self.opened.wrapping_add(1);
        record.iter_mut().for_each(|byte| *byte ^= self.opened);
        if tag == tag_of(record, self.opened) { Ok(()) } else { Err(RecordError("wrong tag".into())) }
    }
}

fn pair() -> Pair {
    let mut pair = Pair::with_records(Options::default(), Options::default(), || Box::new(Toy::default()));
    pair.shake();
    pair
}

#[test]
fn sealed_frames_arrive_however_they_are_split() {
    for chunk in [1, 7, 35, 1000, 1 << 20] {
        let mut pair = pair();
        for size in [0, 1, 5000, 100_000] {
            pair.initiator.request(pair.now, 1, &vec![size as u8; size].into(), None).expect("room");
        }
        let sent = pair.sent(Side::Initiator, usize::MAX);
        assert_eq!(sent.len(), 4 * 32 + 105_001 + 7 * 3);
        for piece in sent.chunks(chunk) {
            pair.acceptor.handle_input(pair.now, piece).expect("sound");
            assert_eq!(pair.acceptor.expects_body(), None, "a sealed body must pass through the record layer");
        }
        let sizes: Vec<_> = events(&mut pair.acceptor)
            .into_iter()
            .map(|event| match event {
                Event::Request(request) => request.body.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sizes, [0, 1, 5000, 100_000]);
    }
}

#[test]
fn a_changed_record_is_refused() {
    let mut pair = pair();
    pair.initiator.request(pair.now, 1, &vec![1; 100].into(), None).expect("room");
    let mut sent = pair.sent(Side::Initiator, usize::MAX);
    sent[60] ^= 1;
    assert_eq!(
        pair.acceptor.handle_input(pair.now, &sent),
        Err(ConnectionError::Records(RecordError("wrong tag".into())))
    );
}

#[test]
fn a_peer_without_the_handshake_is_refused() {
    let mut pair = Pair::with_records(Options::default(), Options::default(), || Box::new(Toy::default()));
    let error = pair.acceptor.handle_input(pair.now, b"hello");
    assert_eq!(error, Err(ConnectionError::Records(RecordError("no greeting".into()))));
}
