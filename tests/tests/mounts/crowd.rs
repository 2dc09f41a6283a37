//! Many at once.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use sluice_tests::{Server, skipped_in_local_mode, wait_for};

use crate::noise;

/// Where a file's extents are grouped: each span is asked for by itself.
const SPAN_BYTES: u64 = 64 << 20;
const SPANS: u64 = 24;
const PIECE: usize = 140_000;

/// To be survived: many read parts of a file of which a mount knows nothing yet, while it asks the server for it. Whoever waits for
/// the server must not be waited for by those who carry its answer.
#[test]
fn many_readers_of_an_unknown_file() {
    if skipped_in_local_mode("many_readers_of_an_unknown_file") {
        return;
    }
    let server = Server::new();
    let names: Vec<String> = (0..3).map(|n| format!("file-{n}")).collect();
    let piece = |file: usize, span: u64| noise(file as u64 * 1000 + span, PIECE);
    let writer = server.mount("writer");
    for (n, name) in names.iter().enumerate() {
        let file = File::create(writer.path(name)).unwrap();
        for span in 0..SPANS {
            file.write_all_at(&piece(n, span), span * SPAN_BYTES).unwrap();
        }
    }
    writer.umount();
    let reader = server.try_mount("reader", &["--cache", "none"]).unwrap();
    for (n, name) in names.iter().enumerate() {
        let right = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..SPANS * 2)
            .map(|number| {
                let (path, right): (PathBuf, _) = (reader.path(name), right.clone());
                let (span, expected) = (number / 2, piece(n, number / 2));
                let read = move || {
                    let mut bytes = vec![0; PIECE];
                    let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, span * SPAN_BYTES));
                    if read.is_ok() && bytes == expected {
                        right.fetch_add(1, Ordering::Relaxed);
                    }
                };
                thread::Builder::new().name(format!("reader-{number}")).spawn(read).expect("a thread")
            })
            .collect();
        wait_for("all readers", Duration::from_secs(60), || threads.iter().all(thread::JoinHandle::is_finished));
        assert_eq!(right.load(Ordering::Relaxed), threads.len(), "{name}");
    }
    assert_eq!(fs::metadata(reader.path(&names[0])).unwrap().len(), (SPANS - 1) * SPAN_BYTES + PIECE as u64);
    reader.umount();
}
