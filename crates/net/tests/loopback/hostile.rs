//! Peers that keep no rules: each is cut off, and the others do not notice.

use crate::rig::{ECHO, LONG, MANY, Mount, Toy, client, client_with, clock, hello, local};
use sluice_base::crc::crc32c;
use sluice_net::{CallError, ClientOptions, LaneState, Server, ServerOptions};
use sluice_wire::{
    Clear, Connection, ConnectionError, Event, HEADER_BYTES, Header, Kind, Limits, Options, Payload, RefusalCode,
    Timers, Versions,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A server that loses patience soon.
async fn server(toy: &Arc<Toy>, connections_max: usize) -> Server {
    let ms = Duration::from_millis;
    let timers = Timers { handshake: ms(300), ping: ms(100), silence: ms(300) };
    let connection = Options { timers, output_bytes_max: 1 << 20, ..Options::default() };
    let options = ServerOptions { connections_max, connection };
    Server::bind(local(), toy.clone(), options, clock()).await.expect("a free port")
}

/// A peer that has shaken hands and is now a bare stream.
async fn greeted(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a server");
    let now = Duration::ZERO;
    let mut connection = Connection::initiator(now, hello(), Options::default(), Box::new(Clear));
    let mut out = Vec::new();
    connection.poll_transmit(now, &mut out, usize::MAX);
    stream.write_all(&out.concat()).await.expect("it listens");
    while !connection.is_open() {
        stream.read_buf(connection.input()).await.expect("an answer");
        connection.handle_received(now).expect("sound");
    }
    stream
}

/// What the server still says until it closes.
async fn last_words(stream: &mut TcpStream) -> Vec<u8> {
    let mut words = Vec::new();
    let ended = timeout(LONG, stream.read_to_end(&mut words)).await.expect("it closes");
    // A reset is an end too.
    let _ = ended;
    words
}

async fn others_go_on(address: SocketAddr) {
    assert!(client(address).call(ECHO, vec![1], LONG).await.is_ok());
}

#[tokio::test]
async fn noise_half_a_hello_and_silence_are_cut_off() {
    let server = server(&Toy::new(), 100).await;
    let half = &Header::new(Kind::Hello, 0).to_bytes()[..20];
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xF5; 500], half, b""] {
        let mut stream = TcpStream::connect(server.address()).await.expect("a server");
        stream.write_all(words).await.expect("it listens");
        assert_eq!(last_words(&mut stream).await, b"", "strangers are told nothing");
    }
    others_go_on(server.address()).await;
}

#[tokio::test]
async fn a_claim_of_4_gib_is_cut_off_with_a_reason() {
    let toy = Toy::new();
    let server = server(&toy, 100).await;
    let mut stream = greeted(server.address()).await;
    let mut claim = Header::new(Kind::Request, 1).to_bytes();
    claim[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let crc = crc32c(&claim[..28]);
    claim[28..].copy_from_slice(&crc.to_le_bytes());
    stream.write_all(&claim).await.expect("it listens");
    let words = last_words(&mut stream).await;
    let bye = String::from_utf8_lossy(&words[HEADER_BYTES..]);
    assert!(bye.contains("4294967295 bytes"), "{bye}");
    toy.one_gone(|why| matches!(why, ConnectionError::Frame(_))).await;
    others_go_on(server.address()).await;
}

#[tokio::test]
async fn half_a_request_and_silence_is_cut_off() {
    let toy = Toy::new();
    let server = server(&toy, 100).await;
    let mut stream = greeted(server.address()).await;
    let header = Header { length: 1000, body_crc: 1, ..Header::new(Kind::Request, 1) };
    stream.write_all(&header.to_bytes()).await.expect("it listens");
    toy.one_gone(|why| *why == ConnectionError::Silent).await;
    last_words(&mut stream).await;
    others_go_on(server.address()).await;
}

/// It asks for 192 MiB and reads nothing: the server stops at its bounds, and gives it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_is_cut_off() {
    let toy = Toy::new();
    let server = server(&toy, 100).await;
    let mut stream = greeted(server.address()).await;
    for id in 1..=64 {
        let body = [0; 3];
        let header = Header { method: MANY, length: 3, body_crc: crc32c(&body), ..Header::new(Kind::Request, id) };
        stream.write_all(&[&header.to_bytes()[..], &body].concat()).await.expect("room in the socket");
    }
    others_go_on(server.address()).await;
    toy.one_gone(|why| *why == ConnectionError::Silent).await;
}

#[tokio::test]
async fn another_version_is_told_both() {
    let server = server(&Toy::new(), 100).await;
    let connection = Options { versions: Versions { min: 7, max: 9 }, ..Options::default() };
    let options = ClientOptions { connection, ..ClientOptions::default() };
    let client = client_with(server.address(), hello(), Arc::new(Mount::default()), options);
    let Err(CallError::NotSent(why)) = client.call(ECHO, Payload::default(), LONG).await else {
        panic!("it was let in")
    };
    assert!(why.contains("version 1,") && why.contains("7 to 9"), "{why}");
}

#[tokio::test]
async fn connections_have_a_limit_that_is_told() {
    let toy = Toy::new();
    let server = server(&toy, 2).await;
    let (first, second) = (client(server.address()), client(server.address()));
    first.connected(LONG).await.expect("a place");
    second.connected(LONG).await.expect("a place");
    let third = client(server.address());
    let busy = |states: &Vec<LaneState>| matches!(&states[0], LaneState::Refused(refused) if refused.code == RefusalCode::Busy);
    timeout(LONG, third.states().wait_for(busy)).await.expect("in time").expect("it lives");
    first.close().await;
    // It tries again by itself.
    assert!(third.call(ECHO, Payload::default(), LONG).await.is_ok());
}

/// A server that answers what nobody asked.
#[tokio::test]
async fn a_client_cuts_off_a_server_without_rules() {
    let listener = tokio::net::TcpListener::bind(local()).await.expect("a port");
    let client = client(listener.local_addr().expect("bound"));
    let (mut stream, _) = listener.accept().await.expect("the client");
    let now = Duration::ZERO;
    let limits = Limits::default();
    let mut acceptor = Connection::acceptor(now, Options { limits, ..Options::default() }, Box::new(Clear));
    while !matches!(acceptor.poll_event(), Some(Event::Hello(_))) {
        stream.read_buf(acceptor.input()).await.expect("a greeting");
        acceptor.handle_received(now).expect("sound");
    }
    acceptor.accept(sluice_wire::Welcome { volume: crate::rig::VOLUME, session: None, name: "bad".into() });
    let mut out = Vec::new();
    acceptor.poll_transmit(now, &mut out, usize::MAX);
    stream.write_all(&out.concat()).await.expect("it listens");
    stream.write_all(&Header::new(Kind::Reply, 1).to_bytes()).await.expect("it listens");
    let mut states = client.states();
    let lost = |states: &Vec<LaneState>| matches!(&states[0], LaneState::Disconnected(why) if why.contains("number 1"));
    timeout(LONG, states.wait_for(lost)).await.expect("in time").expect("it lives");
}
