//! What callers see while everybody keeps the rules.

use crate::rig::{
    ASK_BACK, ECHO, FAIL, LONG, MANY, Mount, PANIC, Toy, VOLUME, WAIT, client, client_with, hello, server,
};
use bytes::Bytes;
use futures::future::join_all;
use sluice_base::{Pages, VolumeId};
use sluice_net::{CallError, ClientOptions, LaneState};
use sluice_wire::{FAILED_INTERNAL, Full, Hello, LaneClass, Limits, Options, Payload, RefusalCode};
use std::{sync::Arc, time::Duration};

#[tokio::test]
async fn bodies_of_every_size_come_back() {
    let server = server(&Toy::new()).await;
    let lanes = ClientOptions { lanes_small: 1, lanes_bulk: 1, ..ClientOptions::default() };
    let client = client_with(server.address(), hello(), Arc::new(Mount::default()), lanes);
    for size in [0, 1, 100, 4096, 4097, 65_536, 1 << 20, 4 << 20] {
        let sent = Bytes::from((0..size).map(|n: u32| ((n * 7) >> 3) as u8).collect::<Vec<_>>());
        for class in [LaneClass::Small, LaneClass::Bulk] {
            let reply = client.call_on(class, ECHO, sent.clone(), LONG).await.expect("an echo");
            assert!(reply.body.checked().expect("sound") == sent, "{size} bytes");
        }
    }
    let pieces = vec![Bytes::from(vec![1; 100_000]), Bytes::from_static(b"end")];
    let reply = client.call(ECHO, pieces.clone(), LONG).await.expect("an echo");
    assert_eq!(reply.body.checked().expect("sound"), pieces.concat());
    let too_long = client.call(ECHO, vec![0; sluice_wire::DATA_BYTES_MAX + 1], LONG).await;
    assert_eq!(too_long, Err(CallError::Refused(Full::TooLong)));
}

/// Large bodies come in buffers of the pool and give them back; small ones, failures and given up calls beside them do no harm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_come_in_buffers_that_are_used_again() {
    let (toy, pages) = (Toy::new(), Pages::new(16 << 20));
    let server = server(&toy).await;
    let lanes = ClientOptions { lanes_small: 1, lanes_bulk: 1, pages: Some(pages.clone()), ..ClientOptions::default() };
    let client = client_with(server.address(), hello(), Arc::new(Mount::default()), lanes);
    for round in 0..3u8 {
        let echo = async |size: usize| {
            let sent = Bytes::from((0..size).map(|n| ((n * 7) >> 3) as u8 ^ round).collect::<Vec<_>>());
            let reply = client.call_on(LaneClass::Bulk, ECHO, sent.clone(), LONG).await.expect("an echo");
            assert!(reply.body.checked().expect("sound") == sent, "{size} bytes");
        };
        let sizes = [0, 1, 100, 4097, 65_535, 65_536, 70_000, 1 << 20, (1 << 20) + 256, 4 << 20];
        let echoes = join_all(sizes.map(echo));
        let failures = join_all((0..5).map(|_| client.call_on(LaneClass::Bulk, FAIL, &b"no"[..], LONG)));
        // Given up while their answers are on their way.
        let given_up =
            join_all((0..5).map(|_| client.call_on(LaneClass::Bulk, MANY, vec![0; 3], Duration::from_millis(1))));
        let (_, failed, _) = tokio::join!(echoes, failures, given_up);
        assert!(failed.iter().all(|failed| matches!(failed, Err(CallError::Failed { code: 5, .. }))), "{failed:?}");
    }
    assert!((1 << 20..=16 << 20).contains(&pages.idle_bytes()), "{} idle bytes", pages.idle_bytes());
}

/// More than the server takes at once wait in the client, and small answers overtake waiting ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_under_way_in_any_order() {
    let toy = Toy::new();
    let server = server(&toy).await;
    let client = client(server.address());
    let waiting = join_all((0..63).map(|n| client.call(WAIT, vec![n], LONG)));
    let overtaking = async {
        toy.waiting_is(63).await;
        // One place is left for all of these.
        for reply in join_all((0..200).map(|n| client.call(ECHO, vec![n], LONG))).await {
            assert_eq!(reply.expect("an echo").body.len(), 1);
        }
        assert_eq!(*toy.waiting.borrow(), 63);
        toy.gate.add_permits(63);
    };
    let (replies, ()) = tokio::join!(waiting, overtaking);
    for (n, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply.expect("an echo").body.checked().expect("sound")[..], [n as u8]);
    }
}

#[tokio::test]
async fn errors_reach_the_caller() {
    let server = server(&Toy::new()).await;
    let client = client(server.address());
    let failed = client.call(FAIL, &b"no such file"[..], LONG).await;
    assert_eq!(failed, Err(CallError::Failed { code: 5, text: "no such file".into() }));
    let panicked = client.call(PANIC, Payload::default(), LONG).await;
    assert!(matches!(panicked, Err(CallError::Failed { code: FAILED_INTERNAL, .. })), "{panicked:?}");
    assert!(client.call(ECHO, Payload::default(), LONG).await.is_ok(), "others go on");
}

/// Whoever uses the body checks it.
#[tokio::test]
async fn a_body_may_be_left_unchecked() {
    let server = server(&Toy::new()).await;
    let client = client(server.address());
    let wrong = Payload::from(Bytes::from_static(b"bytes")).with_crc(1).unchecked();
    assert!(matches!(client.call(ECHO, wrong, LONG).await, Err(CallError::Failed { code: 9, .. })));
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server() {
    let toy = Toy::new();
    let server = server(&toy).await;
    let client = client(server.address());
    {
        let mut call = Box::pin(client.call(WAIT, Payload::default(), LONG));
        tokio::select! {
            answer = &mut call => panic!("{answer:?}"),
            () = toy.waiting_is(1) => {}
        }
    }
    toy.waiting_is(0).await;
    assert!(client.call(ECHO, Payload::default(), LONG).await.is_ok());
}

#[tokio::test]
async fn a_deadline_ends_the_call_on_both_sides() {
    let toy = Toy::new();
    let server = server(&toy).await;
    let client = client(server.address());
    client.connected(LONG).await.expect("a server");
    let call = client.call(WAIT, Payload::default(), Duration::from_millis(50)).await;
    assert_eq!(call, Err(CallError::TimedOut));
    toy.waiting_is(0).await;
}

#[tokio::test]
async fn the_server_asks_over_the_same_connection() {
    let server = server(&Toy::new()).await;
    let client = client_with(server.address(), hello(), Arc::new(Mount::default()), ClientOptions::default());
    let calls = (0..100u32).map(|n| client.call(ASK_BACK, vec![n as u8; 10_000], LONG));
    for (n, reply) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(reply.expect("asked back").body.checked().expect("sound"), vec![n as u8; 10_000]);
    }
}

#[tokio::test]
async fn a_push_is_acked_once_it_was_acted_on() {
    let (toy, mount) = (Toy::new(), Arc::new(Mount::default()));
    let server = server(&toy).await;
    let client = client_with(server.address(), hello(), mount.clone(), ClientOptions::default());
    client.connected(LONG).await.expect("a server");
    let peer = toy.peers.lock()[0].clone();
    assert_eq!(peer.hello().name, "test");
    let mut push = Box::pin(peer.push(&b"forget 7"[..], LONG));
    // An answer that comes later than the push shows that the push has arrived.
    tokio::select! {
        done = &mut push => panic!("{done:?} before it was acted on"),
        reply = client.call(ECHO, Payload::default(), LONG) => drop(reply.expect("an echo")),
    }
    assert_eq!(mount.pushed.lock()[..], [Bytes::from_static(b"forget 7")]);
    mount.acted.notify_one();
    assert_eq!(push.await, Ok(()));
    let more = (0..200u32).map(|n| peer.push(vec![n as u8], LONG));
    let acting = async {
        for _ in 0..200 {
            mount.acted.notify_one();
            client.call(ECHO, Payload::default(), LONG).await.expect("an echo");
        }
    };
    let (done, ()) = tokio::join!(join_all(more), acting);
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(mount.pushed.lock().len(), 201);
}

#[tokio::test]
async fn another_volume_is_refused_and_calls_say_so_at_once() {
    let server = server(&Toy::new()).await;
    let other = Hello { volume: Some(VolumeId([9; 16])), ..hello() };
    let client = client_with(server.address(), other, Arc::new(Mount::default()), ClientOptions::default());
    let Err(CallError::NotSent(why)) = client.call(ECHO, Payload::default(), LONG).await else {
        panic!("it was let in")
    };
    assert!(why.contains(&VOLUME.to_string()), "{why}");
    let state = client.states().borrow()[0].clone();
    assert!(matches!(state, LaneState::Refused(refused) if refused.code == RefusalCode::Volume));
}

/// Answers that do not fit in what the server keeps wait in its handlers, and all arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_answers_wait_for_their_turn() {
    let toy = Toy::new();
    let limits = Limits { requests_max: 32, ..Limits::default() };
    let connection = Options { output_bytes_max: 1 << 20, limits, ..Options::default() };
    let options = sluice_net::ServerOptions { connection, ..Default::default() };
    let server =
        sluice_net::Server::bind(crate::rig::local(), toy, options, crate::rig::clock()).await.expect("a port");
    let client = client(server.address());
    for reply in join_all((0..48).map(|_| client.call(MANY, vec![0; 3], LONG))).await {
        assert_eq!(reply.expect("an answer").body.checked().expect("sound").len(), 3 << 20);
    }
}

#[tokio::test]
async fn lanes_share_a_session() {
    let toy = Toy::new();
    let server = server(&toy).await;
    let lanes = ClientOptions { lanes_small: 2, lanes_bulk: 1, ..ClientOptions::default() };
    let client = client_with(server.address(), hello(), Arc::new(Mount::default()), lanes);
    let mut states = client.states();
    let all_open = |states: &Vec<LaneState>| states.iter().all(|state| matches!(state, LaneState::Connected(_)));
    tokio::time::timeout(LONG, states.wait_for(all_open)).await.expect("in time").expect("the client lives");
    let sessions = toy.sessions.lock().clone();
    assert_eq!(sessions[0], None);
    assert!(sessions[1..].iter().all(|session| session.is_some_and(|session| session.id.0 == 41)), "{sessions:?}");
    assert_eq!(sessions.len(), 3);
}
