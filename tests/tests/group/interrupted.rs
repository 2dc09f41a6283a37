//! Programs that are killed while they read from a node.

use crate::{LIMIT, Node, reader};
use rustix::fs::{Advice, Mode, OFlags};
use sluice_tests::{Gateway, Mount, Proxy, Server, Volume, noise, skipped_in_local_mode, wait_for};
use std::{
    fs::{self, File},
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

const BLOCK: usize = 128 << 10;
const LEN: usize = 96 * BLOCK;
/// So many at once; with what follows more than a thread can have under way.
const PROGRAMS: usize = 24;
const ROUNDS: usize = 3;

/// A volume whose store is reached through a proxy, with one file in it.
fn stored_behind(gateway: &Gateway) -> (Proxy, Server, Vec<u8>) {
    gateway.bucket("bucket");
    let proxy = Proxy::new(gateway.port());
    let url = Gateway::url_by(proxy.port(), "bucket", "volume");
    let server = Server::over(gateway.credentials(Volume::new()), &url, &[]);
    let (bytes, writer) = (noise(1, LEN), server.mount("writer"));
    fs::write(writer.path("file"), &bytes).unwrap();
    writer.umount();
    (proxy, server, bytes)
}

fn open_direct(path: &Path) -> File {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).expect("open").into()
}

fn direct(mount: &Mount, name: &str) -> u64 {
    mount.status()["numbers"]["direct"][name].as_u64().expect("a number")
}

fn requests(mount: &Mount, name: &str) -> u64 {
    mount.status()["requests"][name].as_u64().expect("a number")
}

/// Reads the whole file past the page cache.
fn read_all(file: &File, bytes: &[u8]) {
    let mut memory = vec![0; BLOCK + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let block = &mut memory[start..start + BLOCK];
    for (n, expected) in bytes.chunks(BLOCK).enumerate() {
        file.read_exact_at(block, (n * BLOCK) as u64).unwrap();
        assert!(*block == *expected, "block {n}");
    }
}

/// A program that reads a block of the file: through the page cache, where the kernel lets it go by itself when it is killed, or through
/// a memory map without read-ahead, where the kernel asks for one page, and sends INTERRUPT.
fn start_reading(file: File, block: usize, is_mapped: bool) -> Child {
    const TOUCH: &str = "import mmap, sys\n\
        memory = mmap.mmap(0, 0, prot=mmap.PROT_READ)\n\
        memory.madvise(mmap.MADV_RANDOM)\n\
        memory[int(sys.argv[1])]";
    let mut command = Command::new(if is_mapped { "python3" } else { "dd" });
    if is_mapped {
        command.args(["-c", TOUCH]).arg((block * BLOCK + 8192).to_string());
    } else {
        command.arg(format!("skip={block}"));
        command.args(["of=/dev/null", "bs=128k", "count=1", "status=none"]);
    }
    command.stdin(file).spawn().expect("start a program")
}

/// No page of one round is read in another one, nor one that is mapped by the kernel's read-ahead of others.
fn block_of(round: usize, program: usize) -> usize {
    if program.is_multiple_of(2) { round * 20 + program % 4 } else { 60 + round * PROGRAMS / 2 + program / 2 }
}

/// Whether the kernel has the program wait for bytes of a file of ours.
fn is_reading(program: &Child) -> bool {
    let stack = fs::read_to_string(format!("/proc/{}/stack", program.id())).unwrap_or_default();
    stack.contains("fuse_") || stack.contains("filemap_get_pages")
}

/// To be survived: programs killed while a node that has fallen silent is to answer them, on the reactor's own lanes or behind them, and
/// the store is silent too. They end at once, and take nothing with them: once the node speaks again reads come over the lanes, and
/// they are right. (Not so by O_DIRECT: there the kernel, which reads asynchronously, waits for the answer and sends no INTERRUPT.)
#[test]
fn killed_readers_of_a_silent_node_end_at_once() {
    if skipped_in_local_mode("killed_readers_of_a_silent_node_end_at_once") {
        return;
    }
    let gateway = Gateway::new();
    let (proxy, server, bytes) = stored_behind(&gateway);
    let node = Node::start(&server, "one");
    let mount = reader(&server, "mount", 1);
    let (path, file) = (mount.path("file"), open_direct(&mount.path("file")));
    let over_lanes = || {
        wait_for("reads to come over the reactors' lanes", LIMIT, || {
            let before = direct(&mount, "far_reads");
            read_all(&file, &bytes);
            direct(&mount, "far_reads") >= before + (LEN / BLOCK / 2) as u64
        });
    };
    for round in 0..ROUNDS {
        over_lanes();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let (given_up, interrupts) = (direct(&mount, "given_up"), requests(&mount, "interrupts"));
        // Who opens a file may have to wait for pages that others read at the moment, and cannot be killed then.
        let files: Vec<File> = (0..PROGRAMS).map(|_| File::open(&path).unwrap()).collect();
        let stuck = proxy.part();
        node.stop();
        let mut programs: Vec<Child> = files
            .into_iter()
            .enumerate()
            .map(|(n, file)| start_reading(file, block_of(round, n), n % 2 == 1))
            .collect();
        for (n, program) in programs.iter_mut().enumerate() {
            // The first ones as soon as they wait, whoever is asked then, the others when nobody answered for a while.
            wait_for("the program to read", LIMIT, || is_reading(program));
            if n >= PROGRAMS / 2 {
                wait_for("the lanes to be given up", LIMIT, || direct(&mount, "given_up") > given_up);
            }
            program.kill().unwrap();
        }
        // Else they would wait for the store, which has a minute.
        wait_for("the programs to end", Duration::from_secs(15), || {
            programs.iter_mut().all(|program| program.try_wait().unwrap().is_some())
        });
        for mut program in programs {
            assert_eq!(program.wait().unwrap().signal(), Some(9), "it was answered");
        }
        assert!(requests(&mount, "interrupts") > interrupts, "the kernel told of none");
        node.go_on();
        drop(stuck);
    }
    // Their room is free again.
    let used = || mount.status()["numbers"]["memory"]["used_bytes"].as_u64().expect("a number");
    wait_for("nothing to be kept for them", LIMIT, || used() <= 16 << 20);
    over_lanes();
    drop(file);
    mount.umount();
}
