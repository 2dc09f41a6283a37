//! Peers that ask for what does not exist, that are of another volume, that do not read, and a store that is slow.

use crate::rig::{Rig, VOLUME, assert_right, client, clock, eventually, hello, reader, reader_with};
use futures::future::select;
use sluice_base::VolumeId;
use sluice_net::{CallError, Client};
use sluice_node::{
    GroupError, Members,
    message::{self, CheckSegments, FAILED_BUSY, FAILED_MALFORMED, FAILED_STORE, READ_SEGMENTS, ReadSegments, Set},
};
use sluice_object::backend::{Fault, RequestKind};
use sluice_wire::{Clear, Connection, Event, Options, Payload, PeerKind};
use std::{net::SocketAddr, pin::pin, time::Duration};
use tokio::net::{TcpSocket, TcpStream};

const LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn what_does_not_parse_is_said_to_be_so() {
    let rig = Rig::new();
    let host = rig.host("a").await;
    let client = client(host.server.address(), hello(PeerKind::Mount, "m"));
    for (method, body) in [
        (READ_SEGMENTS, vec![]),
        (READ_SEGMENTS, vec![0xff; 37]),
        (1, vec![1]),
        (message::JOIN, vec![]),
        (message::CHECK_SEGMENTS, vec![0; 32]),
        (message::CHECK_SEGMENTS, vec![1; 31]),
    ] {
        let failed = client.call(method, body, LONG).await;
        assert!(matches!(failed, Err(CallError::Failed { code: FAILED_MALFORMED, .. })), "{failed:?}");
    }
}

#[tokio::test]
async fn a_peer_of_another_volume_is_not_let_in() {
    let rig = Rig::new();
    let host = rig.host("a").await;
    let mut stranger = hello(PeerKind::Mount, "m");
    stranger.volume = Some(VolumeId([8; 16]));
    let refused = client(host.server.address(), stranger).connected(LONG).await;
    assert!(refused.unwrap_err().to_string().contains(&VOLUME.to_string()));
}

/// Asks for the same so many times and reads nothing.
pub async fn greedy(address: SocketAddr, method: u16, ask: &[u8], times: usize) -> (TcpStream, Connection) {
    // What the kernel keeps for who does not read is little.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let (stream, clock) = (socket.connect(address).await.unwrap(), clock());
    let hello = hello(PeerKind::Mount, "greedy");
    let mut connection = Connection::initiator(clock.monotonic(), hello, Options::default(), Box::new(Clear));
    let send = async |connection: &mut Connection| {
        let mut pieces = Vec::new();
        connection.poll_transmit(clock.monotonic(), &mut pieces, usize::MAX);
        let mut rest = &pieces.concat()[..];
        while !rest.is_empty() {
            stream.writable().await.unwrap();
            rest = stream.try_write(rest).map_or(rest, |written| &rest[written..]);
        }
    };
    send(&mut connection).await;
    while !matches!(connection.poll_event(), Some(Event::Established { .. })) {
        stream.readable().await.unwrap();
        if stream.try_read_buf(connection.input()).is_ok() {
            connection.handle_received(clock.monotonic()).unwrap();
        }
    }
    for _ in 0..times {
        connection.request(clock.monotonic(), method, &Payload::from(ask.to_vec()), None).unwrap();
    }
    send(&mut connection).await;
    (stream, connection)
}

#[tokio::test]
async fn who_does_not_read_waits_for_himself_alone() {
    let rig = Rig::new();
    let (host, object) = (rig.host("a").await, rig.object(1, &[true; 128]).await);
    let ask = ReadSegments { object, range: 0..128, cached_only: false };
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(greedy(host.server.address(), READ_SEGMENTS, &ask.encode(), 64).await);
    }
    let served = || host.node.numbers().served_bytes;
    // What their lanes take; how much more goes to their sockets is the kernel's to say.
    eventually("all of them to be stuck", || served() >= 4 * (8 << 20)).await;
    let group = reader();
    group.update(Members::new(1, vec![host.member(1)]).unwrap());
    for first in 0..20 {
        assert_right(object, first, &group.read(object, first..first + 30).await.unwrap());
    }
    // What the sockets took, what waits in the lanes, and a share each; not what was asked for, 1 GiB.
    assert!(served() < 4 * (48 << 20) + (20 << 20), "{}", served());
}

#[tokio::test]
async fn a_slow_store_is_not_a_slow_node() {
    let rig = Rig::new();
    let (host, group) = (rig.host("a").await, reader_with(Duration::from_secs(2)));
    let (slow, quick) = (rig.object(1, &[true; 3]).await, rig.object(2, &[true; 3]).await);
    group.update(Members::new(1, vec![host.member(1)]).unwrap());
    group.read(quick, 0..3).await.unwrap();
    rig.backend.plan(RequestKind::Get, Fault::Delay(Duration::from_secs(4)));
    assert_eq!(group.read(slow, 0..3).await, Err(GroupError::NoOwner));
    assert_right(quick, 0, &group.read(quick, 0..3).await.unwrap());
    let client = client(host.server.address(), hello(PeerKind::Mount, "m"));
    let ask = ReadSegments { object: slow, range: 0..3, cached_only: false };
    let failed = client.call(READ_SEGMENTS, ask.encode(), Duration::from_secs(1)).await;
    assert!(matches!(failed, Err(CallError::Failed { code: FAILED_STORE, .. })), "{failed:?}");
}

/// What a node found damaged.
async fn checked(by: &Client, check: &[u8]) -> Result<Set, CallError> {
    let told = by.call(message::CHECK_SEGMENTS, check.to_vec(), LONG).await?;
    Ok(message::decode_set(&told.body.checked().unwrap()).unwrap())
}

/// Checks read the disk and gain the asker nothing, so that a connection has one at a time.
#[test]
fn a_second_check_is_refused_while_one_is_running() {
    // Whoever occupies the one thread for disks keeps a check from its end.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let rig = Rig::new();
        let (host, object) = (rig.host("a").await, rig.object(1, &[true; 3]).await);
        let [one, another] = ["one", "another"].map(|name| client(host.server.address(), hello(PeerKind::Mount, name)));
        let body = CheckSegments { object: object.id(), segments: 1 }.encode();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let occupied = tokio::task::spawn_blocking(move || released.recv());
        let (mut check, mut also) = (pin!(checked(&one, &body)), pin!(checked(&one, &body)));
        let (refused, running) = select(&mut check, &mut also).await.factor_first();
        assert!(matches!(refused, Err(CallError::Failed { code: FAILED_BUSY, .. })), "{refused:?}");
        drop(release);
        assert_eq!((running.await, checked(&another, &body).await, checked(&one, &body).await), (Ok(0), Ok(0), Ok(0)));
        occupied.await.unwrap().unwrap_err();
    });
}
