//! Two connections that ask each other at random over a stream that carries a random number of bytes at a time, against a plain
//! record of who asked what.

use crate::pair::{Pair, Side};
use proptest::prelude::*;
use sluice_wire::{Event, Limits, Options, PushNumber, RequestId};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

#[derive(Clone, Debug)]
enum Step {
    Ask { side: Side, size: usize, deadline_ms: Option<u64> },
    Answer { side: Side, which: usize, fail: bool },
    Cancel { side: Side, which: usize },
    Push,
    Ack { which: usize },
    Carry { side: Side, bytes: usize },
    Wait { ms: u64 },
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Initiator), Just(Side::Acceptor)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (side(), 0usize..9000, prop::option::of(1u64..50)).prop_map(|(side, size, deadline_ms)| Step::Ask { side, size, deadline_ms }),
        4 => (side(), any::<usize>(), any::<bool>()).prop_map(|(side, which, fail)| Step::Answer { side, which, fail }),
        1 => (side(), any::<usize>()).prop_map(|(side, which)| Step::Cancel { side, which }),
        1 => Just(Step::Push),
        1 => any::<usize>().prop_map(|which| Step::Ack { which }),
        6 => (side(), 1usize..6000).prop_map(|(side, bytes)| Step::Carry { side, bytes }),
        1 => (1u64..30).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// What one side knows.
#[derive(Default)]
struct Known {
    asked: HashMap<RequestId, usize>,
    /// Requests of the peer that this side has not answered.
    to_answer: Vec<RequestId>,
    to_ack: Vec<PushNumber>,
    pushed: HashSet<PushNumber>,
}

struct Model {
    pair: Pair,
    known: [Known; 2],
}

/// The answer to a request with `size` bytes.
fn answer(id: RequestId, size: usize) -> Vec<u8> {
    (0..size * 2 + 3).map(|n| (n as u64 * 31 + id.0) as u8).collect()
}

impl Model {
    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { side, size, deadline_ms } => {
                let now = self.pair.now;
                let deadline = deadline_ms.map(|ms| now + Duration::from_millis(ms));
                if let Ok(id) = self.pair.side(side).request(now, size as u16, &vec![5; size].into(), deadline) {
                    self.known[side as usize].asked.insert(id, size);
                }
            }
            Step::Answer { side, which, fail } => {
                let known = &mut self.known[side as usize];
                if !known.to_answer.is_empty() {
                    let id = known.to_answer.swap_remove(which % known.to_answer.len());
                    // The size is known to the asker's side only; its method says it too.
                    let size = self.known[side.other() as usize].asked.get(&id).copied().unwrap_or(0);
                    if fail {
                        self.pair.side(side).fail(id, 77, "no");
                    } else {
                        self.pair.side(side).reply(id, &answer(id, size).into());
                    }
                }
            }
            Step::Cancel { side, which } => {
                let asked = &mut self.known[side as usize].asked;
                let mut ids: Vec<_> = asked.keys().copied().collect();
                ids.sort();
                if !ids.is_empty() {
                    let id = ids[which % ids.len()];
                    asked.remove(&id);
                    self.pair.side(side).cancel(id);
                }
            }
            Step::Push => {
                if let Ok(number) = self.pair.acceptor.push(&vec![9; 10].into()) {
                    self.known[Side::Acceptor as usize].pushed.insert(number);
                }
            }
            Step::Ack { which } => {
                let to_ack = &mut self.known[Side::Initiator as usize].to_ack;
                if !to_ack.is_empty() {
                    let number = to_ack.swap_remove(which % to_ack.len());
                    self.pair.initiator.ack_push(number);
                }
            }
            Step::Carry { side, bytes } => self.carry(side, bytes),
            Step::Wait { ms } => self.pair.pass(Duration::from_millis(ms)),
        }
        self.look(Side::Initiator);
        self.look(Side::Acceptor);
    }

    fn carry(&mut self, from: Side, bytes: usize) {
        if self.pair.side(from.other()).wants_input() {
            let (sent, now) = (self.pair.sent(from, bytes), self.pair.now);
            self.pair.side(from.other()).handle_input(now, &sent).expect("both keep the rules");
        }
    }

    fn look(&mut self, side: Side) {
        while let Some(event) = self.pair.side(side).poll_event() {
            let known = &mut self.known[side as usize];
            match event {
                Event::Request(request) => {
                    assert_eq!(request.body.len() as u16, request.method);
                    known.to_answer.push(request.id);
                }
                Event::Reply { id, body, .. } => {
                    let size = known.asked.remove(&id).expect("asked, and answered once");
                    assert_eq!(body.checked().expect("sound"), answer(id, size));
                }
                Event::Failed { id, code, .. } => {
                    assert_eq!(code, 77);
                    known.asked.remove(&id).expect("asked, and answered once");
                }
                Event::TimedOut { id } => drop(known.asked.remove(&id).expect("asked, and not answered")),
                Event::Cancelled { id } => known.to_answer.retain(|other| *other != id),
                Event::Push(push) => known.to_ack.push(push.number),
                Event::PushAcked { number } => assert!(known.pushed.remove(&number)),
                other => panic!("{other:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn everything_is_answered_once(steps in prop::collection::vec(step(), 1..300)) {
        let limits = Limits { requests_max: 8, bytes_max: 20_000 };
        let options = Options { limits, output_bytes_max: 30_000, ..Options::default() };
        let mut model = Model { pair: Pair::open_with(options.clone(), options), known: Default::default() };
        steps.into_iter().for_each(|step| model.step(step));
        // Whatever is left is answered and acked; then nobody waits for anything.
        for _ in 0..100 {
            for side in [Side::Initiator, Side::Acceptor] {
                model.step(Step::Answer { side, which: 0, fail: false });
                model.step(Step::Ack { which: 0 });
                model.step(Step::Carry { side, bytes: usize::MAX });
            }
        }
        for side in [Side::Initiator, Side::Acceptor] {
            let known = &model.known[side as usize];
            prop_assert!(known.asked.is_empty() && known.to_answer.is_empty());
            prop_assert!(known.to_ack.is_empty() && known.pushed.is_empty());
            let connection = model.pair.side(side);
            prop_assert_eq!((connection.requests_under_way(), connection.requests_unanswered()), (0, 0));
        }
    }
}
