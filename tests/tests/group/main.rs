//! A volume's server, nodes that lend their caches to it, and a mount that reads through them.

mod interrupted;
mod killed;
mod trouble;

use sluice_tests::{
    Mount, Server, Stopwatch,
    group::{Node, members, sum},
    noise, skipped_in_local_mode, wait_for,
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    time::Duration,
};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);
/// Numbers of a node arrive with its next heartbeat.
const HEARD: Duration = Duration::from_secs(10);

/// A served volume with one file in its store.
fn stored(len: usize) -> (Server, Vec<u8>) {
    let (server, bytes) = (Server::new(), noise(1, len));
    let writer = server.mount("writer");
    fs::write(writer.path("file"), &bytes).unwrap();
    writer.umount();
    (server, bytes)
}

fn number(mount: &Mount, name: &str) -> u64 {
    mount.status()["numbers"][name].as_u64().expect("a number")
}

/// A fresh mount without a cache of its own, which knows the group.
fn reader(server: &Server, name: &str, nodes: usize) -> Mount {
    wait_for("the nodes", LIMIT, || members(server).len() == nodes);
    server.try_mount(name, &["--cache", "none"]).unwrap_or_else(|ran| panic!("the mount failed: {ran:#?}"))
}

#[test]
fn reads_go_through_the_nodes() {
    if skipped_in_local_mode("reads_go_through_the_nodes") {
        return;
    }
    // Enough objects that no node owns none but once in some thousand runs.
    let (server, bytes) = stored(48 * MIB + 77);
    let _nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    let first = reader(&server, "first", 2);
    assert!(fs::read(first.path("file")).unwrap() == bytes);
    assert!(number(&first, "group_fetches") > 0 && number(&first, "fetches") == 0);
    // What a fresh mount reads now is with the nodes already: the store is asked for nothing.
    let second = reader(&server, "second", 2);
    let all_held = || sum(&server, "used_bytes") >= bytes.len() as u64;
    wait_for("the nodes to hold the file", HEARD, all_held);
    let before = (sum(&server, "filled_bytes"), sum(&server, "served_bytes"), sum(&server, "hits"));
    assert!(fs::read(second.path("file")).unwrap() == bytes);
    assert_eq!(number(&second, "fetches"), 0, "the store was asked by the mount");
    wait_for("the nodes' numbers", HEARD, || sum(&server, "served_bytes") >= before.1 + bytes.len() as u64);
    assert_eq!(sum(&server, "filled_bytes"), before.0, "the store was asked by a node");
    assert!(sum(&server, "hits") > before.2);
    for member in members(&server) {
        assert!(member["served_bytes"].as_u64().unwrap() > 0, "each serves its share: {member}");
    }
}

/// To be survived: a node is killed while a file is read through it.
#[test]
fn a_node_killed_under_a_reader_costs_no_error() {
    if skipped_in_local_mode("a_node_killed_under_a_reader_costs_no_error") {
        return;
    }
    let (server, bytes) = stored(32 * MIB);
    let mut nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    let mount = reader(&server, "mount", 2);
    let file = File::open(mount.path("file")).unwrap();
    let (mut part, mut slowest) = (vec![0; MIB / 4], Duration::ZERO);
    for (n, expected) in bytes.chunks(part.len()).enumerate() {
        if n == 40 {
            nodes[0].kill9();
        }
        let watch = Stopwatch::start();
        file.read_exact_at(&mut part, (n * expected.len()) as u64).unwrap();
        slowest = slowest.max(watch.elapsed());
        assert!(part == expected, "part {n}");
    }
    assert!(slowest < Duration::from_secs(4), "a read took {slowest:?}");
    assert!(number(&mount, "group_fetches") > 0);
    wait_for("the dead node to be out of the group", LIMIT, || members(&server).len() == 1);
    nodes[1].kill9();
    let last = server.try_mount("last", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    assert!(fs::read(last.path("file")).unwrap() == bytes, "without nodes the store serves");
}

/// To be survived: somebody starts a second node under a name that is taken.
#[test]
fn the_second_node_of_one_name_is_refused() {
    if skipped_in_local_mode("the_second_node_of_one_name_is_refused") {
        return;
    }
    let server = Server::new();
    let mut first = Node::start(&server, "one");
    let mut second = Node::spawn(&server, "one", "other");
    assert_eq!(second.ended(), Some(1));
    assert!(second.log().contains("is called `one` already"), "{}", second.log());
    assert_eq!(members(&server).len(), 1);
    // A name whose process has died is free again soon.
    first.kill9();
    let _third = Node::start(&server, "one");
}

/// To be survived: the server is restarted; nodes and mounts go on by themselves.
#[test]
fn the_group_outlives_its_server() {
    if skipped_in_local_mode("the_group_outlives_its_server") {
        return;
    }
    let (mut server, bytes) = stored(8 * MIB);
    let _nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    let mount = reader(&server, "mount", 2);
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    server.kill9();
    server.start();
    wait_for("the nodes to be back", LIMIT, || members(&server).len() == 2);
    let before = number(&mount, "group_fetches");
    let file = File::open(mount.path("file")).unwrap();
    let mut part = vec![0; MIB];
    wait_for("the mount to read through the group", LIMIT, || {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut part, 4 * MIB as u64).unwrap();
        assert!(part[..] == bytes[4 * MIB..5 * MIB]);
        number(&mount, "group_fetches") > before
    });
}
