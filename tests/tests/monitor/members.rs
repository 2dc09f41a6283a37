//! Nodes as members: drained, kept over a restart of the server, and whose a cache directory is.

use super::{LIMIT, MIB, noise};
use serde_json::Value;
use sluice_tests::{
    Server,
    group::{Node, members},
    skipped_in_local_mode, sluice, wait_for,
};
use std::fs;

fn member(server: &Server, name: &str) -> Value {
    members(server).into_iter().find(|member| member["name"] == name).unwrap_or(Value::Null)
}

fn epoch(server: &Server) -> u64 {
    sluice(["status", &server.meta(), "--json"]).ok().json()["epoch"].as_u64().expect("an epoch")
}

#[test]
fn a_drained_node_takes_nothing_and_that_is_kept() {
    if skipped_in_local_mode("a_drained_node_takes_nothing_and_that_is_kept") {
        return;
    }
    let mut server = Server::new();
    let _one = Node::start(&server, "one");
    let mut two = Node::start(&server, "two");
    sluice(["drain", &server.meta(), "three"]).refused_with(&["three", "sluice status"]);
    let before = epoch(&server);
    sluice(["drain", &server.meta(), "two"]).ok();
    sluice(["drain", &server.meta(), "two"]).ok();
    assert_eq!(member(&server, "two")["state"], "draining");
    assert!(epoch(&server) > before);

    let (writer, bytes) = (server.mount("writer"), noise(1, 24 * MIB));
    fs::write(writer.path("file"), &bytes).unwrap();
    writer.umount();
    let reader = server.try_mount("reader", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    assert!(fs::read(reader.path("file")).unwrap() == bytes);
    let fetched = |name| member(&server, name)["filled_bytes"].as_u64().unwrap_or(0);
    wait_for("the other node to have it all", LIMIT, || fetched("one") >= bytes.len() as u64);
    wait_for("news of the drained one", LIMIT, || member(&server, "two")["silent_ms"].as_u64() < Some(1000));
    assert_eq!(fetched("two"), 0);

    // Neither a restart of the server nor one of the node ends it.
    server.kill9();
    server.start();
    assert_eq!(member(&server, "two")["state"], "draining", "the list is there at once");
    two.kill9();
    wait_for("the node to be out of the group", LIMIT, || member(&server, "two").is_null());
    let _two = Node::start(&server, "two");
    assert_eq!(member(&server, "two")["state"], "draining");
    let dir = server.volume().dir();
    sluice(["drain".as_ref(), dir.as_os_str(), "two".as_ref(), "--undo".as_ref()]).ok();
    assert_eq!(member(&server, "two")["state"], "active");
}

/// To be survived: the server is killed; a node dies while it is away.
#[test]
fn the_list_outlives_the_server_and_its_epoch_grows() {
    if skipped_in_local_mode("the_list_outlives_the_server_and_its_epoch_grows") {
        return;
    }
    let mut server = Server::new();
    let _one = Node::start(&server, "one");
    let mut two = Node::start(&server, "two");
    let mut last = epoch(&server);
    for round in 0..2 {
        server.kill9();
        if round == 1 {
            two.kill9();
        }
        server.start();
        // For as long as a node that is gone may still come back.
        wait_for("both to be members", LIMIT, || members(&server).len() == 2);
        assert!(epoch(&server) > last, "round {round}");
        last = epoch(&server);
    }
    wait_for("the dead node to be out of the group", LIMIT, || member(&server, "two").is_null());
    assert!(!member(&server, "one").is_null() && epoch(&server) > last);
}

/// To be survived: somebody gives two processes one cache directory.
#[test]
fn a_cache_directory_belongs_to_one_process() {
    if skipped_in_local_mode("a_cache_directory_belongs_to_one_process") {
        return;
    }
    let server = Server::new();
    let node = Node::start(&server, "one");
    let dir = node.dir.display().to_string();
    let mut second = Node::spawn(&server, "two", "one");
    assert_eq!(second.ended(), Some(1));
    let words = second.log();
    assert!(words.contains(&format!("the cache {dir} is in use by pid")) && words.contains("--name one"), "{words}");
    let cache = format!("{dir}:64M");
    let refused = server.try_mount("mount", &["--cache", &cache]).map(drop).expect_err("it is the node's");
    refused.refused_with(&[&format!("the cache {dir} is in use by pid"), "--name one"]);
    assert_eq!(members(&server).len(), 1);
    // Two mounts do not share one either, and it is free once the first has ended.
    let own = server.volume().mountpoint().with_file_name("shared").display().to_string();
    let cache = format!("{own}:64M");
    let first = server.try_mount("first", &["--cache", &cache]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let refused = server.try_mount("second", &["--cache", &cache]).map(drop).expect_err("it is the first one's");
    refused.refused_with(&[&format!("the cache {own} is in use by pid"), "first"]);
    first.umount();
    server.try_mount("second", &["--cache", &cache]).unwrap_or_else(|ran| panic!("{ran:#?}"));
}

/// To be survived: a node is started with the cache directory of a node of another volume.
#[test]
fn a_cache_of_another_volume_is_refused() {
    if skipped_in_local_mode("a_cache_of_another_volume_is_refused") {
        return;
    }
    let (server, other) = (Server::new(), Server::new());
    let mut node = Node::start(&server, "one");
    node.kill9();
    let cache = format!("{}:256M", node.dir.display());
    let refused = sluice(["serve", &other.meta(), "--listen", "127.0.0.1:0", "--name", "two", "--cache", &cache]);
    refused.refused_with(&[&node.dir.display().to_string(), "caches volume", "choose another directory"]);
    assert!(members(&other).is_empty());
}
