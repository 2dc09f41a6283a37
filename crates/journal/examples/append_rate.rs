//! What an append and a group commit cost on this host: `cargo run --release -p sluice-journal --example append_rate -- DIR`.

use sluice_base::{Clock, SystemClock, VolumeId, disk::RealDisk};
use sluice_journal::{Class, Journal, JournalOptions};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: append_rate DIR (a new directory)")?;
    let options = JournalOptions::new(dir, VolumeId([1; 16]));
    let (journal, _) = Journal::open(Arc::new(RealDisk), options, &mut |_, _| Ok(()))?;
    let clock = SystemClock::default();
    for (bytes, count) in [(300, 500_000u32), (4096, 50_000)] {
        let record = vec![1u8; bytes];
        // The first segment pays for block allocation, recycled ones do not.
        for round in ["fresh", "recycled", "recycled"] {
            let start = clock.monotonic();
            for _ in 0..count {
                journal.append(Class::Metadata, &[&record[..64], &record[64..]])?;
            }
            println!("{bytes} B, {round}: {:?} per append", (clock.monotonic() - start) / count);
            journal.sync()?;
            journal.free_before(journal.synced())?;
        }
    }
    let start = clock.monotonic();
    for _ in 0..200 {
        journal.append(Class::Metadata, &[&[1; 300]])?;
        journal.sync()?;
    }
    println!("300 B and a sync: {:?}", (clock.monotonic() - start) / 200);
    Ok(())
}
