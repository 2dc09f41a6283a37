use super::*;
use crate::ahead::Budget;
use sluice_base::ObjectId;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy)]
enum Fault {
    /// A bit of the answer is another one.
    Flips,
    /// It fails.
    Fails,
    /// Its token is that of an earlier request.
    IsOld,
}

/// Somebody who has every object, and answers in the opposite order when it is told to.
#[derive(Default)]
struct Host {
    asked: Vec<(Wanted, Target)>,
    refuses: bool,
    fault: Option<Fault>,
}

#[derive(Clone, Default)]
struct Lane(Arc<Mutex<Host>>);

fn bytes(wanted: &Wanted) -> Vec<u8> {
    (wanted.offset as usize..wanted.offset as usize + wanted.len).map(|at| (at / 3) as u8).collect()
}

fn answer(wanted: Wanted, target: Target, fault: Option<Fault>) -> Ended {
    let mut bytes = bytes(&wanted);
    let flips = matches!(fault, Some(Fault::Flips));
    if flips {
        bytes[7] ^= 1;
    }
    let is_sound = Some(!flips || !wanted.is_checked).filter(|_| !matches!(fault, Some(Fault::Fails)));
    let target = match target {
        Target::Memory(mut memory) => {
            memory.copy_from_slice(&bytes);
            Target::Memory(memory)
        }
        Target::Pipe(mut pipe) => {
            pipe.put(&bytes).unwrap();
            Target::Pipe(pipe)
        }
    };
    let token = if matches!(fault, Some(Fault::IsOld)) { wanted.token - (1 << 32) } else { wanted.token };
    Ended { token, target, is_sound }
}

impl Lanes for Lane {
    fn descriptor(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits here")
    }

    fn ask(&mut self, wanted: Wanted, into: Target) -> Result<(), Target> {
        let mut host = self.0.lock().unwrap();
        if host.refuses {
            return Err(into);
        }
        host.asked.push((wanted, into));
        Ok(())
    }

    fn turn(&mut self, ended: &mut dyn FnMut(Ended)) {
        let mut host = self.0.lock().unwrap();
        let fault = host.fault;
        host.asked.drain(..).rev().for_each(|(wanted, target)| ended(answer(wanted, target, fault)));
    }
}

#[derive(Default)]
struct Answers {
    sent: Vec<(u64, Vec<u8>)>,
    piped: Vec<Vec<u8>>,
    later: Vec<u64>,
    refuses_pipes: bool,
}

impl Replies for Answers {
    fn send(&mut self, id: u64, bytes: &[u8]) {
        self.sent.push((id, bytes.to_vec()));
    }
    fn send_pipe(&mut self, mut pipe: Pipe) -> bool {
        let mut bytes = vec![0; pipe.held()];
        pipe.take(&mut bytes).unwrap();
        self.piped.push(bytes);
        !self.refuses_pipes
    }
    fn read_later(&mut self, id: u64, read: Begun) {
        assert_eq!(id, read.id);
        self.later.push(id);
    }
}

fn setup() -> (Far, Lane) {
    let (far, lane, _) = setup_with(256 << 20);
    (far, lane)
}

fn setup_with(memory_bytes: u64) -> (Far, Lane, Budget) {
    let (lane, budget) = (Lane::default(), Budget::new(memory_bytes));
    (Far::new(Box::new(lane.clone()), budget.share()), lane, budget)
}

fn object() -> StoredObject {
    StoredObject::new(ObjectId([7; 16]), 128, 4 << 20).unwrap_or_else(|error| panic!("{error}"))
}

fn begin(far: &mut Far, id: u64, offset: u32, len: usize, is_checked: bool) -> bool {
    let begun = Begun {
        id,
        handle: HandleId(1),
        offset: offset.into(),
        len,
        direct: false,
        is_checked,
        began: std::time::Duration::ZERO,
    };
    far.begin(begun, object(), offset, || {
        let mut pipe = Pipe::new(64).unwrap();
        pipe.put(b"header").unwrap();
        Some(pipe)
    })
}

fn expected(offset: u32, len: usize) -> Vec<u8> {
    bytes(&Wanted { object: object(), offset, len, is_checked: true, token: 0 })
}

#[test]
fn answers_go_to_who_asked() {
    let (mut far, _) = setup();
    for id in 0..10 {
        assert!(begin(&mut far, id, id as u32 * 1000, 4000 + id as usize, true));
    }
    let mut answers = Answers::default();
    let happened = far.turn(&mut answers);
    assert_eq!((happened.reads, happened.given_up), (10, 0));
    for (id, bytes) in &answers.sent {
        assert_eq!(*bytes, expected(*id as u32 * 1000, 4000 + *id as usize), "{id}");
    }
    assert_eq!((answers.sent.len(), far.bytes, far.free.len()), (10, 0, UNDER_WAY_MAX));
}

#[test]
fn memory_is_used_again() {
    let (mut far, _) = setup();
    let mut places = Vec::new();
    for id in 0..5 {
        assert!(begin(&mut far, id, 0, 100_000 - id as usize, true));
        far.turn(&mut Answers::default());
        places.push(far.idle.all[0].as_ptr());
    }
    assert!(places.windows(2).all(|pair| pair[0] == pair[1]) && far.idle.all.len() == 1);
    assert_eq!(far.idle.bytes, far.idle.all[0].capacity());
}

#[test]
fn what_fails_is_read_another_way() {
    for (fault, is_checked, is_late) in [
        (Fault::Flips, true, true),
        (Fault::Fails, true, true),
        (Fault::Fails, false, true),
        // The words of `Verify`.
        (Fault::Flips, false, false),
    ] {
        let (mut far, lane) = setup();
        lane.0.lock().unwrap().fault = Some(fault);
        assert!(begin(&mut far, 3, 0, 5000, is_checked));
        let mut answers = Answers::default();
        let happened = far.turn(&mut answers);
        assert_eq!((answers.later.len(), happened.given_up), (usize::from(is_late), u64::from(is_late)));
        assert!(answers.sent.is_empty() && answers.piped.len() == usize::from(!is_late));
    }
    let (mut far, _) = setup();
    assert!(begin(&mut far, 4, 0, 5000, false));
    let mut answers = Answers { refuses_pipes: true, ..Answers::default() };
    far.turn(&mut answers);
    assert_eq!(answers.later, [4]);
}

#[test]
fn unchecked_bytes_go_through_pipes() {
    let (mut far, _) = setup();
    assert!(begin(&mut far, 1, 500, 3000, false));
    let mut answers = Answers::default();
    far.turn(&mut answers);
    assert_eq!(answers.piped, [[&b"header"[..], &expected(500, 3000)].concat()]);
}

#[test]
fn an_answer_to_somebody_before_is_nobodys() {
    let (mut far, lane) = setup();
    assert!(begin(&mut far, 1, 0, 1000, true));
    far.turn(&mut Answers::default());
    lane.0.lock().unwrap().fault = Some(Fault::IsOld);
    assert!(begin(&mut far, 2, 0, 1000, true));
    let mut answers = Answers::default();
    far.turn(&mut answers);
    assert!(answers.sent.is_empty() && answers.later.is_empty());
    assert_eq!(far.bytes, 1000, "it is still awaited");
}

#[test]
fn no_more_is_under_way_than_allowed() {
    let (mut far, lane) = setup();
    let begun = (0..100).take_while(|id| begin(&mut far, *id, 0, 1 << 20, true)).count();
    assert_eq!(begun << 20, UNDER_WAY_BYTES_MAX);
    far.turn(&mut Answers::default());
    assert!(far.idle.bytes <= IDLE_BYTES_MAX);
    // Answers of another size have their memory too.
    assert!(begin(&mut far, 1, 0, 100_000, true));
    far.turn(&mut Answers::default());
    assert!(far.idle.bytes <= IDLE_BYTES_MAX && far.idle.all.iter().any(|memory| memory.len() == 100_000));
    let begun = (0..1000).take_while(|id| begin(&mut far, *id, 0, 512, true)).count();
    assert_eq!(begun, UNDER_WAY_MAX);
    far.turn(&mut Answers::default());
    lane.0.lock().unwrap().refuses = true;
    assert!(!begin(&mut far, 1, 0, 512, true));
    assert_eq!((far.bytes, far.free.len()), (0, UNDER_WAY_MAX));
}

/// What is under way, in memory or in pipes, and what is kept idle is counted, and given back.
#[test]
fn memory_is_that_of_the_mount() {
    for is_checked in [true, false] {
        let (mut far, lane, budget) = setup_with(8 << 20);
        let len = 128 << 10;
        let begun = (0..100).take_while(|id| begin(&mut far, *id, 0, len, is_checked)).count();
        assert_eq!((begun, budget.taken_bytes()), (48, 6 << 20), "three quarters");
        let reader = budget.try_take(1 << 20);
        assert!(reader.is_some(), "there is some for who waits");
        far.turn(&mut Answers::default());
        assert!(budget.taken_bytes() <= (1 << 20) + (512 << 10), "{}", budget.taken_bytes());
        assert!(far.idle.bytes <= (8 << 20) / 32);
        drop(reader);
        // Somebody else has it all: the slow path waits for him, a thread does not.
        let ahead: Vec<_> = (0..100).map_while(|_| budget.try_take_ahead(64 << 10)).collect();
        assert!(!begin(&mut far, 1, 0, 4 * len, is_checked) && lane.0.lock().unwrap().asked.is_empty());
        drop(ahead);
        assert!(begin(&mut far, 1, 0, 4 * len, is_checked));
    }
}

/// Idle memory of another size makes room for the next answer.
#[test]
fn idle_memory_is_in_nobodys_way() {
    let (mut far, _, budget) = setup_with(8 << 20);
    assert!((0..4).all(|id| begin(&mut far, id, 0, 60 << 10, true)));
    far.turn(&mut Answers::default());
    assert_eq!(far.idle.all.len(), 4);
    let _ahead: Vec<_> = (0..100).map_while(|_| budget.try_take_ahead(4096)).take(1).collect();
    let left = (6 << 20) - (4096 + far.idle.bytes);
    assert!(begin(&mut far, 1, 0, left + (100 << 10), true), "without what is idle there is room");
    assert!(far.idle.bytes <= 60 << 10);
}

/// What sixteen threads keep at rest leaves most of the memory to read-ahead.
#[test]
fn many_threads_keep_little_together() {
    let budget = Budget::new(64 << 20);
    let lane = || Box::new(Lane::default());
    let mut all: Vec<_> = (0..16).map(|_| Far::new(lane(), budget.share())).collect();
    for far in &mut all {
        let begun = (0..100).take_while(|id| begin(far, *id, 0, 128 << 10, true)).count();
        assert!(begun >= 16, "{begun}");
        far.turn(&mut Answers::default());
    }
    let taken = budget.taken_bytes();
    assert!(all.iter().all(|far| far.idle.bytes >= 256 << 10), "what they need again at once");
    assert!(taken <= (64 << 20) / 4, "{taken}");
}
