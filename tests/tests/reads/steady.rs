//! What a reactor needs for a read once it knows the file.

use crate::{needs_binary, noise, open_direct, read_all_over, requests};
use sluice_tests::Volume;
use std::fs;

/// Rounds until nothing is new to any reactor.
const ROUNDS_MAX: usize = 30;

/// The allocator counts in the running binary: from some round on a thousand reads ask for no memory at all.
#[test]
fn reads_ask_for_no_memory() {
    needs_binary!();
    for options in [["full", "copy"], ["off", "splice"]] {
        let volume = Volume::new().option("--reactors", "2").option("--verify", options[0]).option("--io", options[1]);
        let mount = volume.up();
        let bytes = noise(1, 24 << 20);
        fs::write(mount.path("f"), &bytes).unwrap();
        let file = open_direct(&mount.path("f"));
        let mut asked = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let before = (requests(&mount, "read_allocations"), answered(&mount));
            read_all_over(&file, &bytes, 4096, 700);
            read_all_over(&file, &bytes, 128 << 10, 300);
            assert!(answered(&mount) - before.1 >= 990, "reads are not answered by reactors: {options:?}");
            asked.push(requests(&mount, "read_allocations") - before.0);
            if asked.last() == Some(&0) {
                break;
            }
        }
        assert_eq!(asked.last(), Some(&0), "memory asked for by rounds of 1000 reads, {options:?}: {asked:?}");
        assert!(asked.iter().sum::<u64>() > 0, "nothing counts");
        drop(file);
        mount.umount();
    }
}

fn answered(mount: &sluice_tests::Mount) -> u64 {
    requests(mount, "reads_copied") + requests(mount, "reads_spliced")
}
