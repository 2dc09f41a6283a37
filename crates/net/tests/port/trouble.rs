//! Peers that go, come back, or do not read.

use crate::rig::{REGION, Rig, hello};
use sluice_net::port::{AskError, DataServerOptions, PortOptions, Techniques};
use std::{sync::atomic::Ordering, time::Duration};

/// Survived must be: every request ends, with an error that says so, and nothing is kept.
#[test]
fn a_server_that_ends_with_answers_under_way_fails_them() {
    let mut rig = Rig::new(Techniques::default());
    let asked = (0..40).filter(|n| rig.ask(REGION, n * 100_000, 1 << 20, *n as u64)).count();
    rig.turn();
    drop(rig.server.take());
    let ends = rig.finish();
    assert!(ends.len() <= asked);
    for done in ends {
        match done.outcome {
            Ok(_) => rig.check(&done, done.token as usize * 100_000, 1 << 20),
            Err(error) => assert!(matches!(error, AskError::Lost(_)), "{error:?}"),
        }
    }
    assert_eq!(rig.files.alive.load(Ordering::SeqCst), 0);
    assert!(!rig.ask(REGION, 0, 100, 0), "nobody is there");
}

/// A reader that does not read keeps what it asked for, within its bounds, and is left after a while, with all its pins.
#[test]
fn a_peer_that_takes_nothing_is_left() {
    let options = DataServerOptions { threads: 1, stall_max: Duration::from_secs(2), ..DataServerOptions::default() };
    let mut rig = Rig::with(PortOptions::default(), options);
    let mut slow =
        sluice_net::port::Port::<Vec<u8>>::new(PortOptions::default(), rig.clock.clone()).expect("descriptors");
    let peer = slow.peer(rig.server.as_ref().expect("it runs").address(), hello());
    while !slow.is_connected(peer) {
        slow.turn(Some(Duration::from_millis(10)), |_| {}).expect("it waits");
    }
    let deadline = rig.clock.monotonic() + Duration::from_secs(60);
    for n in 0..60 {
        let body = crate::rig::encode(n * 1000, 4 << 20);
        let ask = sluice_net::port::Ask {
            method: REGION,
            body: &body,
            answer_bytes: 4 << 20,
            deadline,
            token: n as u64,
            into: Vec::new(),
        };
        if slow.ask(peer, ask).is_err() {
            break;
        }
    }
    slow.flush();
    let until = rig.clock.monotonic() + Duration::from_secs(20);
    let mut most = 0;
    // Others are served meanwhile.
    while most == 0 || rig.files.alive.load(Ordering::SeqCst) > 0 {
        assert!(rig.clock.monotonic() < until, "{} regions are still kept", rig.files.alive.load(Ordering::SeqCst));
        assert!(rig.ask(REGION, 5, 5000, 1));
        rig.finish().iter().for_each(|done| rig.check(done, 5, 5000));
        most = most.max(rig.files.alive.load(Ordering::SeqCst));
    }
    assert!(most <= 64, "{most} regions of one peer");
    let mut ends = Vec::new();
    while slow.under_way() > 0 {
        slow.turn(Some(Duration::from_millis(100)), |done| ends.push(done.outcome.is_ok())).expect("it waits");
    }
    assert!(ends.contains(&false));
}

/// A port finds a server again that comes back at the same address.
#[test]
fn a_server_that_comes_back_is_found() {
    let mut rig = Rig::new(Techniques::default());
    let server = rig.server.take().expect("it runs");
    let address = server.address();
    server.shutdown(Duration::ZERO);
    for _ in 0..5 {
        rig.turn();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("one");
    let again = sluice_net::port::DataServer::bind(
        address,
        rig.files.clone(),
        DataServerOptions::default(),
        rig.clock.clone(),
        runtime.handle().clone(),
    );
    rig.server = Some(again.expect("the port is free again"));
    rig.connect();
    assert!(rig.ask(REGION, 7, 300_000, 1));
    rig.finish().iter().for_each(|done| rig.check(done, 7, 300_000));
}

/// Another volume's peer is told no, and asked again only now and then.
#[test]
fn a_refused_peer_is_not_connected() {
    let mut rig = Rig::new(Techniques::default());
    let address = rig.server.as_ref().expect("it runs").address();
    let other = sluice_wire::Hello { volume: Some(sluice_base::VolumeId([9; 16])), ..hello() };
    let stranger = rig.port.peer(address, other);
    let before = rig.port.stats().connections;
    for _ in 0..10 {
        rig.turn();
    }
    assert!(!rig.port.is_connected(stranger));
    assert!(rig.port.stats().connections - before <= 20);
    assert!(rig.ask(REGION, 7, 300_000, 1), "others are");
    rig.finish().iter().for_each(|done| rig.check(done, 7, 300_000));
}
