//! With nodes and a server.

use crate::{MIB, noise, number};
use sluice_tests::{
    Mount, Ran, Server,
    group::{Node, members, sum},
    skipped_in_local_mode, wait_for,
};
use std::{ffi::OsStr, fs, time::Duration};

const LIMIT: Duration = Duration::from_secs(30);

fn warm(server: &Server, mount: &Mount, options: &[&str]) -> Ran {
    let args = [OsStr::new("warmup"), mount.root().as_os_str()].into_iter();
    server.volume().sluice(args.chain(options.iter().map(OsStr::new)))
}

/// A served volume with files in its store.
fn stored() -> (Server, Vec<u8>) {
    let (server, bytes) = (Server::new(), noise(1, 40 * MIB));
    let writer = server.mount("writer");
    fs::create_dir(writer.path("dir")).unwrap();
    fs::write(writer.path("dir/file"), &bytes).unwrap();
    (0..20).for_each(|n| fs::write(writer.path(format!("dir/{n}")), noise(n, 5000)).unwrap());
    writer.umount();
    (server, bytes)
}

#[test]
fn the_nodes_fetch_by_themselves() {
    if skipped_in_local_mode("the_nodes_fetch_by_themselves") {
        return;
    }
    let (server, bytes) = stored();
    let nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    wait_for("the nodes", LIMIT, || members(&server).len() == 2);
    let mount = server.try_mount("mount", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let none = warm(&server, &mount, &["--check", "--json"]).ok().json();
    assert_eq!((&none["group_bytes"], &none["local_bytes"]), (&0.into(), &0.into()), "{none}");
    let warmed = warm(&server, &mount, &["--to", "group", "--wait", "--json"]).ok().json();
    assert_eq!((&warmed["files_done"], &warmed["files_failed"]), (&21.into(), &0.into()), "{warmed}");
    assert_eq!((number(&mount, "fetches"), number(&mount, "group_fetches")), (0, 0), "bytes passed through the mount");
    let held = warm(&server, &mount, &["--check", "--json"]).ok().json();
    assert_eq!((&held["group_bytes"], &held["local_bytes"]), (&held["bytes"], &0.into()), "{held}");
    let shares = ["one", "two"].map(|name| held["nodes"][name].as_u64().unwrap());
    assert!(
        shares.iter().all(|share| *share > 0) && shares.iter().sum::<u64>() == held["bytes"].as_u64().unwrap(),
        "{held}"
    );
    // A second time there is nothing to do, and a reader makes nobody ask the store.
    let again = warm(&server, &mount, &["--to", "group", "--wait", "--json"]).ok().json();
    assert_eq!((&again["brought_bytes"], &again["present_bytes"]), (&0.into(), &held["bytes"]), "{again}");
    wait_for("the nodes' numbers", LIMIT, || sum(&server, "used_bytes") >= bytes.len() as u64);
    let fetched = sum(&server, "filled_bytes");
    assert!(fs::read(mount.path("dir/file")).unwrap() == bytes);
    assert_eq!((number(&mount, "fetches"), sum(&server, "filled_bytes")), (0, fetched), "the store was asked");
    // A node's cache is scrubbed by its own process, asked by its directory.
    let scrubbed = server.volume().sluice(["scrub".as_ref(), nodes[0].dir.as_os_str(), "--json".as_ref()]).ok().json();
    assert!(scrubbed["last"]["bytes"].as_u64().unwrap() >= shares[0], "{scrubbed}");
    let told = server.volume().sluice(["status".as_ref(), nodes[0].dir.as_os_str()]).ok();
    assert!(told.stdout.contains("nothing bad"), "{}", told.stdout);
}

/// To be survived: a node is killed while others are asked to fetch.
#[test]
fn a_killed_node_is_made_up_for() {
    if skipped_in_local_mode("a_killed_node_is_made_up_for") {
        return;
    }
    let (server, _) = stored();
    let mut nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    wait_for("the nodes", LIMIT, || members(&server).len() == 2);
    let mount = server.try_mount("mount", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    nodes[0].kill9();
    let warmed = warm(&server, &mount, &["--to", "group", "--wait", "--json"]).ok().json();
    assert_eq!((&warmed["files_done"], &warmed["files_failed"]), (&21.into(), &0.into()), "{warmed}");
    let held = warm(&server, &mount, &["--check", "--json"]).ok().json();
    assert_eq!(held["nodes"]["two"], held["bytes"], "{held}");
}

/// Names and attributes that were warmed are answered while the server says nothing.
#[test]
fn warm_metadata_needs_no_server() {
    if skipped_in_local_mode("warm_metadata_needs_no_server") {
        return;
    }
    let (server, _) = stored();
    let mount = server.mount("mount");
    let warmed = warm(&server, &mount, &["--metadata", "--wait", "--json"]).ok().json();
    assert_eq!((&warmed["files_done"], &warmed["brought_bytes"]), (&21.into(), &0.into()), "{warmed}");
    assert_eq!(number(&mount, "fetches"), 0);
    server.freeze();
    let found: Vec<_> =
        (0..20).map(|n| fs::metadata(mount.path(format!("dir/{n}"))).map(|found| found.len())).collect();
    server.thaw();
    assert!(found.iter().all(|len| *len.as_ref().unwrap() == 5000));
}
