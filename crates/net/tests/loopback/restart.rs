//! The server goes and comes.

use crate::rig::{ECHO, LONG, Toy, WAIT, client, clock, local, server};
use sluice_base::OsEntropy;
use sluice_net::{CallError, Client, ClientOptions, LaneState, NoCallbacks, Server, ServerOptions};
use sluice_wire::{ConnectionError, Payload};
use std::{sync::Arc, time::Duration};

#[tokio::test]
async fn a_client_finds_a_restarted_server() {
    let toy = Toy::new();
    let first = server(&toy).await;
    let address = first.address();
    let client = client(address);
    let mut call = Box::pin(client.call(WAIT, Payload::default(), LONG));
    tokio::select! {
        answer = &mut call => panic!("{answer:?}"),
        () = toy.waiting_is(1) => {}
    }
    first.shutdown(Duration::ZERO).await;
    // It was sent: whether it was done only the server could tell.
    assert!(matches!(call.await, Err(CallError::Unknown(_))));
    assert_eq!(*toy.waiting.borrow(), 0, "its handler is gone");

    let not_there = client.call(ECHO, Payload::default(), Duration::from_millis(50)).await;
    assert!(matches!(not_there, Err(CallError::NotSent(_))), "{not_there:?}");

    let second = Server::bind(address, toy.clone(), ServerOptions::default(), clock()).await.expect("the same port");
    for _ in 0..10 {
        assert!(client.call(ECHO, Payload::default(), LONG).await.is_ok());
    }
    // The session goes on.
    let sessions = toy.sessions.lock().clone();
    assert!(sessions[0].is_none() && sessions.last().expect("two").is_some(), "{sessions:?}");
    drop(second);
}

/// What runs may end, what is new is refused, and the client learns that it was no accident.
#[tokio::test]
async fn shutdown_lets_requests_end() {
    let toy = Toy::new();
    let server = server(&toy).await;
    let client = client(server.address());
    let mut call = Box::pin(client.call(WAIT, vec![7], LONG));
    tokio::select! {
        answer = &mut call => panic!("{answer:?}"),
        () = toy.waiting_is(1) => {}
    }
    let open = async {
        let refused = loop {
            // The server may not have heard of its end yet.
            match client.call(ECHO, Payload::default(), LONG).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, CallError::Failed { code: sluice_wire::FAILED_CLOSING, .. }), "{refused:?}");
        toy.gate.add_permits(1);
    };
    let (answer, (), ()) = tokio::join!(call, open, server.shutdown(LONG));
    assert_eq!(answer.expect("an echo").body.len(), 1);
    toy.one_gone(|why| matches!(why, ConnectionError::Ended(_))).await;
}

#[tokio::test]
async fn a_client_takes_leave() {
    let toy = Toy::new();
    let server = server(&toy).await;
    for closes in [true, false] {
        toy.gone.send_modify(Vec::clear);
        let client = client(server.address());
        client.connected(LONG).await.expect("a server");
        if closes {
            client.close().await;
        } else {
            drop(client);
        }
        toy.one_gone(|why| matches!(why, ConnectionError::Bye(_))).await;
    }
}

/// Two addresses of one peer, the first of them dead.
#[tokio::test]
async fn other_addresses_are_tried() {
    let server = server(&Toy::new()).await;
    let dead = std::net::TcpListener::bind(local()).and_then(|listener| listener.local_addr()).expect("a free port");
    let addresses = vec![dead, server.address()];
    let options = ClientOptions::default();
    let client =
        Client::new(addresses, crate::rig::hello(), Arc::new(NoCallbacks), options, clock(), Arc::new(OsEntropy));
    assert!(client.call(ECHO, Payload::default(), LONG).await.is_ok());
    assert!(matches!(client.states().borrow()[0], LaneState::Connected(_)));
}
