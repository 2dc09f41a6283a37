use crate::rig::{FAIL, FILE_BYTES, LATER, MEMORY, NEVER, PANIC, REGION, Rig};
use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_net::port::{AskError, LaneLimits, PortOptions, Techniques};
use std::{sync::atomic::Ordering, time::Duration};

/// Random requests of every kind and size, many under way.
fn mixed(techniques: Techniques, seed: u64) -> Rig {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new(techniques);
    let mut asked: Vec<(u16, usize, usize)> = Vec::new();
    let mut answered = 0;
    while asked.len() < 400 || rig.port.under_way() > 0 {
        while asked.len() < 400 && rig.port.under_way() < 32 {
            let len = match rng.random_range(0..4) {
                0 => rng.random_range(4..100),
                1 => 4096,
                2 => rng.random_range(4..200_000),
                _ => 1 << 20,
            };
            let (method, offset) = (rng.random_range(1..5), rng.random_range(0..FILE_BYTES - len));
            if !rig.ask(method, offset, len, asked.len() as u64) {
                break;
            }
            asked.push((method, offset, len));
        }
        for done in rig.turn() {
            let (method, offset, len) = asked[done.token as usize];
            match method {
                FAIL => assert!(matches!(&done.outcome, Err(AskError::Failed { code: 42, .. })), "{done:?}"),
                _ => rig.check(&done, offset, len),
            }
            answered += 1;
        }
    }
    assert_eq!(answered, asked.len());
    assert_eq!(rig.files.alive.load(Ordering::SeqCst), 0, "regions that nobody dropped");
    rig
}

#[test]
fn every_answer_is_that_of_its_request() {
    let rig = mixed(Techniques::default(), 1);
    let stats = rig.port.stats();
    assert!(stats.low_waters > 0 && stats.answers == 400, "{stats:?}");
    assert!(rig.server.as_ref().expect("it runs").stats().sendfiles > 0);
}

#[test]
fn every_answer_is_that_of_its_request_in_the_plain_way() {
    let limits = LaneLimits { min: 4, max: 4 };
    let options = PortOptions { techniques: Techniques::PLAIN, bulk: limits, ..PortOptions::default() };
    let mut rig =
        Rig::with(options, sluice_net::port::DataServerOptions { techniques: Techniques::PLAIN, ..Default::default() });
    for n in 0..200 {
        let (offset, len) = (n * 1000, 4096 + n);
        while !rig.ask(REGION, offset, len, n as u64) {
            rig.turn().iter().for_each(|done| rig.check(done, done.token as usize * 1000, 4096 + done.token as usize));
        }
    }
    for done in rig.finish() {
        rig.check(&done, done.token as usize * 1000, 4096 + done.token as usize);
    }
    let stats = rig.server.as_ref().expect("it runs").stats();
    assert_eq!((stats.sendfiles, rig.port.stats().low_waters), (0, 0), "{stats:?}");
}

#[test]
fn each_technique_can_be_off() {
    let all = Techniques::default();
    let without = [
        Techniques { small_lanes: false, ..all },
        Techniques { coalesce: false, ..all },
        Techniques { batch: false, ..all },
        Techniques { low_water: false, ..all },
        Techniques { sendfile: false, ..all },
    ];
    for (seed, techniques) in (2..).zip(without) {
        mixed(techniques, seed);
    }
}

#[test]
fn small_requests_together_are_few_system_calls() {
    let mut rig = Rig::new(Techniques::default());
    let before = rig.port.stats();
    for n in 0..64 {
        assert!(rig.ask(MEMORY, n * 4096, 4096, n as u64));
    }
    rig.finish().iter().for_each(|done| rig.check(done, done.token as usize * 4096, 4096));
    let stats = rig.port.stats().since(&before);
    assert_eq!((stats.requests, stats.answers), (64, 64));
    assert!(stats.writes <= 8 && stats.reads <= 16 && stats.wakeups <= 16, "{stats:?}");
}

#[test]
fn an_answer_of_another_length_is_refused() {
    let mut rig = Rig::new(Techniques::default());
    let body = crate::rig::encode(0, 200_000);
    let deadline = rig.clock.monotonic() + Duration::from_secs(10);
    let mut port = sluice_net::port::Port::new(PortOptions::default(), rig.clock.clone()).expect("descriptors");
    let peer = port.peer(rig.server.as_ref().expect("it runs").address(), crate::rig::hello());
    let mut ends = Vec::new();
    let pages = sluice_base::Pages::new(0);
    let mut sink = Some(pages.take(100_000));
    while ends.is_empty() {
        port.turn(Some(Duration::from_millis(10)), |done| ends.push(done.outcome)).expect("it waits");
        if let (true, Some(into)) = (port.is_connected(peer), sink.take()) {
            let ask =
                sluice_net::port::Ask { method: REGION, body: &body, answer_bytes: 100_000, deadline, token: 1, into };
            port.ask(peer, ask).expect("room");
        } else if port.under_way() == 0 && ends.is_empty() && sink.is_none() {
            sink = Some(pages.take(100_000));
        }
    }
    assert_eq!(ends, [Err(AskError::BadLength(200_000))]);
    // The lane goes on.
    assert!(rig.ask(REGION, 0, 100_000, 0));
    rig.finish().iter().for_each(|done| rig.check(done, 0, 100_000));
}

#[test]
fn deadlines_and_cancels_end_requests_and_nothing_else() {
    let mut rig = Rig::new(Techniques::default());
    assert!(rig.ask_within(NEVER, 0, 10, 1, Duration::from_millis(200)));
    assert_eq!(rig.failed(), AskError::TimedOut);

    let deadline = rig.clock.monotonic() + Duration::from_secs(20);
    let body = crate::rig::encode(0, 10);
    let ask =
        |sink| sluice_net::port::Ask { method: NEVER, body: &body, answer_bytes: 10, deadline, token: 2, into: sink };
    let ticket = rig.port.ask(rig.peer, ask(vec![1, 2, 3])).expect("room");
    rig.turn();
    assert_eq!(rig.port.cancel(ticket), Some(vec![1, 2, 3]));
    assert_eq!((rig.port.cancel(ticket), rig.port.under_way()), (None, 0));
    assert!(rig.ask(LATER, 5, 5000, 3));
    rig.finish().iter().for_each(|done| rig.check(done, 5, 5000));
}

#[test]
fn a_handler_that_panics_fails_its_request_only() {
    let mut rig = Rig::new(Techniques::default());
    assert!(rig.ask(PANIC, 0, 10, 1));
    assert!(matches!(rig.failed(), AskError::Failed { .. }));
    assert!(rig.ask(MEMORY, 5, 5000, 3));
    rig.finish().iter().for_each(|done| rig.check(done, 5, 5000));
}
