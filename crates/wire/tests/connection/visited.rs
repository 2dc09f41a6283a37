//! The way of drivers that copy nothing: frames out of the driver's own buffer, bytes to send from where they lie.

use crate::pair::{Pair, Side, events};
use bytes::Bytes;
use proptest::prelude::*;
use sluice_wire::{Connection, Event, Output, Payload, Piece, Region, ReplyRef, RequestRef, Visitor};
use std::{
    io::{self, IoSlice},
    os::fd::BorrowedFd,
    sync::Arc,
};

/// What a file would have.
#[derive(Debug)]
struct Memory(Vec<u8>);

impl Region for Memory {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        let found = self.0.get(offset..offset + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(found);
        Ok(())
    }
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

/// One that cannot be read.
#[derive(Debug)]
struct Broken;

impl Region for Broken {
    fn len(&self) -> usize {
        10
    }
    fn read_at(&self, _: usize, _: &mut [u8]) -> io::Result<()> {
        Err(io::Error::other("rotten"))
    }
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

/// Turns what is visited into the events that it stands for, and answers requests at once.
#[derive(Default)]
struct Echo {
    events: Vec<Event>,
    answers: bool,
}

impl Visitor for Echo {
    fn request(&mut self, connection: &mut Connection, request: RequestRef<'_>) {
        if self.answers {
            connection.reply(request.id, &Payload::from(Bytes::copy_from_slice(request.body.bytes)));
        }
        self.events.push(Event::Request(request.to_request()));
    }
    fn reply(&mut self, reply: ReplyRef<'_>) {
        self.events.push(Event::Reply { id: reply.id, epoch: reply.epoch, body: reply.body.to_body() });
    }
}

/// Everything that `side` sends, taken in steps of at most `step` bytes and two slices, regions read piecewise.
fn output(pair: &mut Pair, side: Side, step: usize) -> Vec<u8> {
    let (mut sent, now) = (Vec::new(), pair.now);
    let connection = pair.side(side);
    loop {
        let mut slices = [IoSlice::new(&[]); 2];
        let count = match connection.output(&mut slices) {
            Output::Nothing => return sent,
            Output::Slices { count, .. } => {
                let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let count = step.min(all.len());
                sent.extend(&all[..count]);
                count
            }
            Output::Region { region, at } => {
                let mut bytes = vec![0; step.min(region.len() - at)];
                region.read_at(at, &mut bytes).expect("in memory");
                sent.extend(&bytes);
                bytes.len()
            }
        };
        connection.handle_sent(now, count);
    }
}

fn ask(pair: &mut Pair, sizes: &[usize]) {
    for (n, size) in sizes.iter().enumerate() {
        let body = vec![n as u8; *size];
        pair.initiator.request_copied(pair.now, n as u16, &body, None).expect("room");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_visited_is_what_would_be_events(
        sizes in prop::collection::vec(prop_oneof![0usize..100, 4000usize..5000, 60_000usize..140_000], 1..12),
        cuts in prop::collection::vec(1usize..80_000, 1..40),
        step in 1usize..200_000,
    ) {
        let (mut one, mut other) = (Pair::open(), Pair::open());
        [&mut one, &mut other].into_iter().for_each(|pair| ask(pair, &sizes));
        let mut sent = one.sent(Side::Initiator, usize::MAX);
        prop_assert_eq!(&sent, &output(&mut other, Side::Initiator, step));
        one.acceptor.handle_input(one.now, &sent).expect("sound");
        let expected = events(&mut one.acceptor);

        let mut echo = Echo { answers: true, ..Echo::default() };
        let mut rest = &mut sent[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at_mut((*cut).min(rest.len()));
            other.acceptor.handle_visited(other.now, piece, &mut echo).expect("sound");
            rest = after;
        }
        prop_assert_eq!(events(&mut other.acceptor), Vec::new());
        prop_assert_eq!(&echo.events, &expected);

        let mut answers = output(&mut other, Side::Acceptor, step);
        let mut visited = Echo::default();
        other.initiator.handle_visited(other.now, &mut answers, &mut visited).expect("sound");
        prop_assert_eq!(visited.events.len(), sizes.len());
        prop_assert_eq!(other.initiator.requests_under_way(), 0);
    }
}

#[test]
fn regions_go_out_between_what_is_in_memory() {
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    let crc = sluice_base::crc::crc32c(&[b"head", &bytes[..], &[7; 9000]].concat());
    for step in [1000, 70_000, usize::MAX] {
        let mut pair = Pair::open();
        ask(&mut pair, &[1]);
        pair.run();
        let Some(Event::Request(request)) = pair.acceptor.poll_event() else { panic!("a request") };
        let pieces = vec![
            Piece::Bytes(Bytes::from_static(b"head")),
            Piece::Region(Arc::new(Memory(bytes.clone()))),
            Piece::Region(Arc::new(Memory(Vec::new()))),
            Piece::Bytes(Bytes::from(vec![7; 9000])),
        ];
        pair.acceptor.reply(request.id, &Payload::from(pieces).with_crc(crc));
        assert_eq!(pair.acceptor.output_bytes(), 32 + 4 + 100_000 + 9000);
        let sent = if step == usize::MAX {
            pair.sent(Side::Acceptor, usize::MAX)
        } else {
            output(&mut pair, Side::Acceptor, step)
        };
        assert_eq!(pair.acceptor.output_bytes(), 0);
        pair.initiator.handle_input(pair.now, &sent).expect("sound");
        let Some(Event::Reply { body, .. }) = pair.initiator.poll_event() else { panic!("an answer") };
        assert_eq!(body.len(), 109_004);
    }
}

#[test]
fn a_region_that_cannot_be_read_ends_the_connection() {
    let mut pair = Pair::open();
    ask(&mut pair, &[1]);
    pair.run();
    let Some(Event::Request(request)) = pair.acceptor.poll_event() else { panic!("a request") };
    pair.acceptor.reply(request.id, &Payload::from(vec![Piece::Region(Arc::new(Broken))]).with_crc(1));
    pair.sent(Side::Acceptor, usize::MAX);
    assert!(matches!(events(&mut pair.acceptor)[..], [Event::Closed { .. }]));
    assert!(pair.acceptor.is_closed());
}
