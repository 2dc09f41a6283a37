//! The log is ahead of the bytes that it speaks of, and hosts are lost in between: what was acked is there, with its objects.

use crate::rig::{Bytes, LONG, Process, Rig, all_keys};
use futures::{StreamExt, stream};
use sluice_base::{Entropy, ObjectId, Seq, SessionId};
use sluice_meta::records::{ObjectRecord, ObjectState, object_key, unstored};
use sluice_object::{StoreError, backend::Faults};
use sluice_ship::{Line, RestoreError};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// A rig in which objects come and go.
struct Volume {
    rig: Rig,
    /// Up to here a sync has returned, or a restore has brought it back.
    acked: u64,
    /// Objects whose bytes are gone for good, as far as anybody knows.
    lost: BTreeSet<ObjectId>,
}

fn record(state: ObjectState, live_bytes: u64) -> Option<Vec<u8>> {
    Some(ObjectRecord { state, live_bytes, ..ObjectRecord::open(SessionId(1)) }.encode())
}

impl Volume {
    fn known(&self, id: ObjectId) -> Option<ObjectRecord> {
        let value = self.rig.history.last().expect("one at least").get(&object_key(id))?;
        Some(ObjectRecord::decode(value).expect("an object's record"))
    }

    /// One of those that are dirty.
    fn any_dirty(&self, process: &Process) -> Option<ObjectId> {
        let objects: Vec<_> = process.bytes.0.lock().objects.keys().copied().collect();
        (!objects.is_empty()).then(|| objects[self.rig.below(objects.len() as u64) as usize])
    }

    fn begin(&mut self, process: &Process) {
        let mut id = [0; 16];
        self.rig.random.fill(&mut id);
        let id = ObjectId(id);
        process.bytes.0.lock().objects.insert(id, self.rig.history.len() as u64);
        let others = self.rig.below(3);
        self.rig.write(process, others);
        self.rig.commit(
            process,
            vec![(object_key(id), record(ObjectState::Open, 5)), (b"dname".to_vec(), Some(id.0.to_vec()))],
        );
    }

    /// Its last reference goes.
    fn unlink(&mut self, process: &Process, id: ObjectId) {
        if let Some(known) = self.known(id) {
            self.rig.commit(process, vec![(object_key(id), record(known.state, 0)), (b"dname".to_vec(), None)]);
        }
    }

    /// The uploader has an object in the store, or gives it up where nothing refers to it.
    async fn store(&mut self, process: &Process, id: ObjectId) {
        if self.known(id).is_none_or(|known| known.live_bytes == 0) {
            let last = self.rig.commit(process, vec![(object_key(id), None)]);
            let mut dirty = process.bytes.0.lock();
            let first = dirty.objects[&id];
            dirty.given_up.push((first, last));
            dirty.objects.remove(&id);
            return;
        }
        match self.rig.store.put_object(id, &[Some(bytes::Bytes::from_static(b"bytes"))]).await {
            Ok(_) | Err(StoreError::Exists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let live_bytes = self.known(id).expect("it was there").live_bytes;
        self.rig.commit(process, vec![(object_key(id), record(ObjectState::Stored, live_bytes))]);
        process.bytes.0.lock().objects.remove(&id);
    }

    /// As fsync does.
    async fn sync(&mut self, process: &Process) {
        let mut wanted = self.rig.history.len() as u64 - 1;
        loop {
            let shipper = process.shipper.clone();
            let shipped = tokio::spawn(async move { shipper.shipped(Seq(wanted)).await });
            loop {
                let dirty =
                    process.bytes.0.lock().objects.iter().find(|(_, first)| **first <= wanted).map(|(id, _)| *id);
                let Some(id) = dirty else { break };
                self.store(process, id).await;
            }
            shipped.await.expect("it ended").expect("shipped");
            match process.bytes.whole(wanted) {
                whole if whole == wanted => break,
                whole => wanted = whole,
            }
        }
        self.acked = wanted;
    }

    async fn live(&mut self, process: &Process, steps: u64) {
        for _ in 0..steps {
            match (self.rig.below(12), self.any_dirty(process)) {
                (0..3, _) => self.begin(process),
                (3, Some(id)) => self.unlink(process, id),
                (4..6, Some(id)) => self.store(process, id).await,
                (6, _) => self.sync(process).await,
                (7, _) => {
                    let pause = Duration::from_millis(self.rig.below(8));
                    tokio::time::sleep(pause).await;
                }
                // Somebody begins a sync, and the process ends before.
                (8, _) => {
                    let (shipper, last) = (process.shipper.clone(), self.rig.log.last());
                    tokio::spawn(async move { shipper.shipped(last).await });
                }
                // Part of a file is truncated whose bytes are gone.
                (9, _) if !self.lost.is_empty() => {
                    let id = *self.lost.first().expect("one at least");
                    if let Some(known) = self.known(id) {
                        self.rig.commit(process, vec![(object_key(id), record(known.state, 4))]);
                    }
                }
                _ => self.rig.write(process, 1),
            }
        }
    }

    /// The process ended, and starts again where it was. Some of the bytes may be lost.
    fn start_again(&mut self) -> Process {
        let bytes = Bytes::default();
        let records = self.rig.log.records();
        let last = self.rig.history.last().expect("one at least").clone();
        for (id, _) in last.iter().filter_map(|(key, value)| unstored(key, Some(value))).filter(|(_, is)| *is) {
            if self.lost.contains(&id) || self.rig.below(10) == 0 {
                self.lost.insert(id);
                continue;
            }
            let key = object_key(id);
            let speaks = |record: &[u8]| record.windows(key.len()).any(|window| window == key);
            let first = records.iter().find(|(_, _, record)| speaks(record)).map(|(seq, ..)| seq.0);
            bytes.0.lock().objects.insert(id, first.unwrap_or(1));
        }
        let journal = Seq(self.rig.below(self.rig.log.last().0 + 2));
        let is_ahead = self.rig.below(4) != 0;
        self.rig.start_with(journal, Arc::new(bytes), is_ahead)
    }

    /// The host is lost.
    async fn lose_host(&mut self, seed: u64) {
        let line = Line(self.rig.line.0 + 1);
        let (tables, restored) = match self.rig.restore_as(line).await {
            Ok(restored) => restored,
            // All of it is still there in this directory, which nobody has taken anything from.
            Err(RestoreError::Nothing(_)) if self.acked == 0 => return,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        let (seq, keys) = (restored.seq, all_keys(&tables));
        assert!(seq.0 >= self.acked, "seed {seed}: {} was acked, {seq:?} is there", self.acked);
        assert!(keys == self.rig.history[seq.0 as usize], "seed {seed}: not what was there at {seq:?}");
        for (key, value) in &keys {
            let Some((id, _)) = unstored(key, Some(value)) else { continue };
            let record = ObjectRecord::decode(value).expect("a record");
            let is_there = self.rig.store.find_object(id).await.expect("the store").is_some();
            assert!(
                is_there || record.live_bytes == 0 || self.lost.contains(&id),
                "seed {seed}: {id} of {record:?} is not in the store"
            );
        }
        self.rig.go_on(tables, seq, line);
        self.acked = seq.0;
    }
}

/// Five processes, some of which lose their host. How many of them synced, and how many records were left out.
async fn lives(seed: u64) -> (usize, u64) {
    let mut volume = Volume { rig: Rig::new(seed), acked: 0, lost: BTreeSet::new() };
    let delay_max = Duration::from_millis(5);
    let faults = Faults { unavailable: 20, lost_answer: 20, delay: 400, delay_max, ..Faults::default() };
    volume.rig.backend.set_faults(faults);
    let (mut syncs, mut left_out) = (0, 0);
    for _ in 0..5 {
        let process = volume.start_again();
        let (steps, acked) = (volume.rig.below(40), volume.acked);
        tokio::time::timeout(LONG, volume.live(&process, steps)).await.unwrap_or_else(|_| panic!("seed {seed}: stuck"));
        syncs += usize::from(volume.acked > acked);
        process.end().await;
        let end = volume.rig.log.last();
        if volume.rig.below(2) == 0 {
            volume.lose_host(seed).await;
            left_out += end.0 - volume.rig.log.last().0;
        }
    }
    (syncs, left_out)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acked_comes_back_with_its_objects() {
    let mut seeds = stream::iter(0..300).map(lives).buffer_unordered(64);
    let (mut syncs, mut left_out) = (0, 0);
    while let Some((some, records)) = seeds.next().await {
        (syncs, left_out) = (syncs + some, left_out + records);
    }
    assert!(
        syncs > 100 && left_out > 500,
        "{syncs} processes synced, {left_out} records left out: not what is to be tried"
    );
}
