//! The memory of a mount's process: never more than `--memory` and 64 MiB, with 10,000 open files and 64 readers (`bench/volume --only
//! memory`). Here are fewer, so it is less.

use sluice_tests::{Mount, Server, group::Node, in_background, noise, skipped_in_local_mode};
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

const MIB: usize = 1 << 20;
/// The least that can be set.
const MEMORY_MIB: usize = 32;
const OVER_MIB_MAX: usize = 56;
const READERS: usize = 24;
const FILE_BYTES: usize = 8 * MIB;
const OPEN_FILES: usize = 500;
const PASSES: usize = 4;

/// A size in /proc/PID/status, in KiB.
fn size_kib(mount: &Mount, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

/// In order, from the mount each time.
fn read_again_and_again(path: &Path, bytes: &[u8]) {
    let mut buffer = vec![0; 128 << 10];
    for _ in 0..PASSES {
        let mut file = File::open(path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        for expected in bytes.chunks(buffer.len()) {
            file.read_exact(&mut buffer[..expected.len()]).unwrap();
            assert!(buffer[..expected.len()] == *expected, "{}", path.display());
        }
    }
}

/// Files of more than is kept with the names, each read once and kept open.
fn open_many(dir: PathBuf) -> Vec<File> {
    fs::create_dir(&dir).unwrap();
    let small = |n: usize| noise(n as u64, 8192);
    (0..OPEN_FILES).for_each(|n| fs::write(dir.join(n.to_string()), small(n)).unwrap());
    let open = |n: usize| {
        let (mut file, mut found) = (File::open(dir.join(n.to_string())).unwrap(), Vec::new());
        file.read_to_end(&mut found).unwrap();
        assert!(found == small(n));
        file
    };
    (0..OPEN_FILES).map(open).collect()
}

/// Many files open and many readers in order, whose bytes come from the store or from a node: no cache holds them.
fn reading_keeps_to_the_memory(nodes: usize) {
    let (server, bytes) = (Server::new(), Arc::new(noise(1, FILE_BYTES)));
    let writer = server.mount("writer");
    (0..READERS).for_each(|n| fs::write(writer.path(format!("file{n}")), &*bytes).unwrap());
    writer.umount();
    let _nodes: Vec<_> = (0..nodes).map(|n| Node::start(&server, &format!("node{n}"))).collect();
    let options = ["--cache", "none", "--memory", &format!("{MEMORY_MIB}M")];
    let mount = server.try_mount("reader", &options).unwrap_or_else(|ran| panic!("the mount failed: {ran:#?}"));
    let idle = size_kib(&mount, "VmRSS") >> 10;
    let open = open_many(mount.path("many"));
    let readers: Vec<_> = (0..READERS)
        .map(|n| {
            let (path, bytes) = (mount.path(format!("file{n}")), bytes.clone());
            in_background(move || read_again_and_again(&path, &bytes))
        })
        .collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let most = size_kib(&mount, "VmHWM") >> 10;
    eprintln!("{nodes} nodes: {idle} MiB at first, {most} MiB at most");
    assert!(most <= MEMORY_MIB + OVER_MIB_MAX, "{most} MiB, {idle} at first");
    drop(open);
    mount.umount();
}

#[test]
fn readers_of_a_store_keep_to_the_memory() {
    if skipped_in_local_mode("readers_of_a_store_keep_to_the_memory") {
        return;
    }
    reading_keeps_to_the_memory(0);
}

#[test]
fn readers_of_a_node_keep_to_the_memory() {
    if skipped_in_local_mode("readers_of_a_node_keep_to_the_memory") {
        return;
    }
    reading_keeps_to_the_memory(1);
}
