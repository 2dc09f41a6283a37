//! To be survived: nodes that are rotten, stopped or gone while files are read through them.

use crate::{HEARD, LIMIT, MIB, Node, number, reader, stored, sum};
use sluice_tests::{Mount, Stopwatch, skipped_in_local_mode, wait_for};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    time::Duration,
};

const PART: usize = MIB / 4;

/// Reads the file part by part, with `at_part` before the 40th; returns the time of the slowest part.
fn read_in_parts(mount: &Mount, bytes: &[u8], mut at_part: impl FnMut()) -> Duration {
    let file = File::open(mount.path("file")).unwrap();
    let (mut part, mut slowest) = (vec![0; PART], Duration::ZERO);
    for (n, expected) in bytes.chunks(PART).enumerate() {
        if n == 40 {
            at_part();
        }
        let watch = Stopwatch::start();
        file.read_exact_at(&mut part, (n * PART) as u64).unwrap();
        slowest = slowest.max(watch.elapsed());
        assert!(part == expected, "part {n}");
    }
    slowest
}

/// Flips a bit of each segment in a slab.
fn rot(slab: &Path) {
    let file = File::options().read(true).write(true).open(slab).unwrap();
    let mut byte = [0];
    for at in (1234..file.metadata().unwrap().len()).step_by(32 << 10) {
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 8], at).unwrap();
    }
}

#[test]
fn rot_on_the_nodes_disks_is_never_read() {
    if skipped_in_local_mode("rot_on_the_nodes_disks_is_never_read") {
        return;
    }
    let (server, bytes) = stored(16 * MIB);
    let nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    let first = reader(&server, "first", 2);
    assert!(fs::read(first.path("file")).unwrap() == bytes);
    wait_for("the nodes to hold the file", HEARD, || sum(&server, "used_bytes") >= bytes.len() as u64);
    // Of so few objects one node may own none, and then has no slab.
    let slabs: Vec<_> = nodes.iter().map(|node| node.dir.join("slab-00000")).filter(|slab| slab.exists()).collect();
    assert!(!slabs.is_empty());
    slabs.iter().for_each(|slab| rot(slab));
    let second = reader(&server, "second", 2);
    assert!(fs::read(second.path("file")).unwrap() == bytes);
    // Their readers told them; what they fetched since is sound.
    wait_for("the nodes to know", LIMIT, || sum(&server, "corrupt_segments") > 0);
    let third = reader(&server, "third", 2);
    assert!(fs::read(third.path("file")).unwrap() == bytes);
}

#[test]
fn a_node_stopped_under_a_reader_costs_no_error() {
    if skipped_in_local_mode("a_node_stopped_under_a_reader_costs_no_error") {
        return;
    }
    let (server, bytes) = stored(32 * MIB);
    let nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    let mount = reader(&server, "mount", 2);
    let slowest = read_in_parts(&mount, &bytes, || nodes[0].stop());
    // It takes one second until the next one is asked for what it lacks.
    assert!(slowest < Duration::from_secs(8), "a read took {slowest:?}");
    assert!(number(&mount, "group_fetches") > 0);
}

#[test]
fn all_nodes_killed_under_a_reader_cost_no_error() {
    if skipped_in_local_mode("all_nodes_killed_under_a_reader_cost_no_error") {
        return;
    }
    let (server, bytes) = stored(32 * MIB);
    let mut nodes = [Node::start(&server, "one"), Node::start(&server, "two")];
    let mount = reader(&server, "mount", 2);
    let slowest = read_in_parts(&mount, &bytes, || nodes.iter_mut().for_each(Node::kill9));
    assert!(slowest < Duration::from_secs(8), "a read took {slowest:?}");
    assert!(number(&mount, "group_fetches") > 0 && number(&mount, "fetches") > 0);
}
