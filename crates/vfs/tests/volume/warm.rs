//! Warm-ups beside readers: who reads goes first.

use crate::harness::{Shape, Volume, World, pattern};
use futures::future::{BoxFuture, FutureExt};
use sluice_base::{Clock, ObjectId, SystemClock};
use sluice_object::StoredObject;
use sluice_vfs::{Group, Piece, WarmTo};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Semaphore;

const M: usize = 1 << 20;
/// An object each.
const FILE_BYTES: usize = 4 * M;
const FILES: usize = 12;

/// Hosts that have nothing, and take their time to say so: as long as they are told.
pub struct Slow {
    pub answers: Semaphore,
    asked: Mutex<BTreeSet<ObjectId>>,
    under_way: Mutex<usize>,
    under_way_max: Mutex<usize>,
}

impl Slow {
    fn new() -> Arc<Self> {
        let (asked, under_way, under_way_max) = Default::default();
        Arc::new(Self { answers: Semaphore::new(0), asked, under_way, under_way_max })
    }

    pub fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Group for Slow {
    fn segments(&self, object: StoredObject, _: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>> {
        async move {
            self.asked.lock().unwrap().insert(object.id());
            let under_way = {
                let mut under_way = self.under_way.lock().unwrap();
                *under_way += 1;
                *under_way
            };
            {
                let mut most = self.under_way_max.lock().unwrap();
                *most = under_way.max(*most);
            }
            self.answers.acquire().await.unwrap().forget();
            *self.under_way.lock().unwrap() -= 1;
            None
        }
        .boxed()
    }

    fn fill(&self, _: StoredObject) -> BoxFuture<'_, Result<u64, String>> {
        async { Err("not here".into()) }.boxed()
    }

    fn held<'a>(&'a self, _: &'a [ObjectId]) -> BoxFuture<'a, Vec<(String, Vec<u128>)>> {
        async { Vec::new() }.boxed()
    }
}

/// A process of a volume whose files are in the store alone, behind hosts that are slow.
pub fn cold(seed: u64) -> (World, Volume, Arc<Slow>) {
    let mut world = World::new(seed, Shape { slots: 64, ..Shape::default() });
    let volume = world.start();
    for file in 0..FILES {
        let (_, handle) = volume.create(&format!("file{file}"));
        let bytes = pattern(file as u64, FILE_BYTES);
        bytes.chunks(M).enumerate().for_each(|(n, piece)| volume.write(handle, (n * M) as u64, piece).unwrap());
        volume.vfs.release(handle);
    }
    volume.upload();
    world.kill(volume);
    world.remove_cache();
    let slow = Slow::new();
    world.group = Some(slow.clone());
    let volume = world.start();
    (world, volume, slow)
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let clock = SystemClock::default();
    while !is_so() {
        assert!(clock.monotonic() < Duration::from_secs(30), "{what}: not in 30 s");
        std::thread::yield_now();
    }
}

/// While a reader waits for bytes of his own a warm-up brings one object at a time; when he has them, eight.
#[test]
fn a_warm_up_makes_way_for_a_reader() {
    let (world, volume, slow) = cold(1);
    let (_, handle) = volume.open("file0").unwrap();
    std::thread::scope(|scope| {
        let volume = &volume;
        let read = move || volume.read(handle, 0, 4096).unwrap();
        let reader = std::thread::Builder::new().spawn_scoped(scope, read).unwrap();
        wait_for("the reader to wait", || slow.asked() == 1);
        let (paths, warmup) = volume.vfs.warm(WarmTo::Local);
        (1..FILES).for_each(|file| paths.try_send(format!("file{file}").into_bytes()).unwrap());
        drop(paths);
        wait_for("the warm-up to begin", || slow.asked() == 2);
        // It knows of the next one, and has had the time to begin it. Before it has no more are looked for.
        wait_for("the next file to be found", || warmup.numbers().files >= 2);
        let clock = SystemClock::default();
        wait_for("a moment to pass", || clock.monotonic() > Duration::from_millis(100));
        assert_eq!((slow.asked(), *slow.under_way_max.lock().unwrap()), (2, 2), "the reader, and one of the warm-up");
        // He is served, whatever the warm-up does.
        slow.answers.add_permits(1);
        assert!(reader.join().unwrap() == pattern(0, FILE_BYTES)[..4096]);
        wait_for("the warm-up to have the way to itself", || *slow.under_way.lock().unwrap() == 8);
        slow.answers.add_permits(1000);
        wait_for("the warm-up to end", || warmup.numbers().over);
        let numbers = warmup.numbers();
        assert_eq!((numbers.files_done as usize, numbers.files_failed), (FILES - 1, 0), "{numbers:?}");
        assert_eq!(*slow.under_way_max.lock().unwrap(), 8);
    });
    volume.vfs.release(handle);
    world.kill(volume);
}
