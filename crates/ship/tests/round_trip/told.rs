//! Who waits is told.

use crate::rig::{LONG, Process, Rig, all_keys, place, taking};
use sluice_base::Seq;
use sluice_meta::store::{Batch, EngineError, MemoryTables, Tables, Value, Visit};
use sluice_object::{
    PutMode,
    backend::{Fault, RequestKind},
};
use sluice_ship::{Line, RestoreError, Taking, begin_anew, in_use, restore, survey};
use tokio::time::timeout;

/// A shipper that stops has nobody wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_told_to_whoever_waits() {
    let mut rig = Rig::new(1);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    rig.backend.plan(RequestKind::Put, Fault::Hang);
    let (puts, last) = (rig.backend.count(RequestKind::Put), rig.log.last());
    rig.write(&process, 1);
    let (shipper, wanted) = (process.shipper.clone(), Seq(last.0 + 1));
    let shipped = tokio::spawn(async move { shipper.shipped(wanted).await });
    let shipper = process.shipper.clone();
    let confirmed = tokio::spawn(async move { shipper.confirmed().await });
    rig.until(|rig| rig.backend.count(RequestKind::Put) > puts).await;
    // What is under way waits too.
    let shipper = process.shipper.clone();
    rig.until(|_| shipper.status().behind_ms >= 20).await;
    process.end().await;
    for told in [shipped, confirmed] {
        let told = timeout(LONG, told).await.expect("it is told").expect("it ended");
        assert_eq!(told, Err("shipping has ended".into()));
    }
    for later in [process.shipper.shipped(wanted).await, process.shipper.is_ours().await] {
        assert!(later.is_err(), "also who comes later");
    }
    let before = rig.backend.count(RequestKind::Put);
    assert_eq!(process.shipper.finish(LONG).await, Err("shipping has ended".into()));
    assert_eq!(rig.backend.count(RequestKind::Put), before);
}

/// Whether a process is still the one that ships is asked of the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_elsewhere_is_noticed_by_who_asks() {
    let mut rig = Rig::new(2);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.shipper.is_ours().await.expect("it is");
    process.shipper.confirmed().await.expect("it is");
    let (tables, restored) = rig.restore_as(Line(2)).await.expect("restored");
    assert_eq!((restored.seq, all_keys(&tables)), (rig.log.last(), rig.history.last().expect("some").clone()));
    let why = process.shipper.confirmed().await.expect_err("it is another's");
    assert!(why.contains("another process ships") && process.shipper.stopped() == Some(why.clone()), "{why}");
    process.end().await;
    // The next process of this directory knows before it ships or uploads anything.
    let keys = rig.backend.inner().keys();
    let old = rig.start(Seq(0));
    let why = old.shipper.is_ours().await.expect_err("it is not");
    assert!(why.contains("another line of changes"), "{why}");
    old.end().await;
    assert_eq!(rig.backend.inner().keys(), keys);
}

/// Tables on a disk that takes nothing.
struct Refusing(MemoryTables);

impl Tables for Refusing {
    fn get(&self, key: &[u8], at: Seq) -> Result<Option<Value>, EngineError> {
        self.0.get(key, at)
    }

    fn scan(&self, from: &[u8], to: &[u8], at: Seq, visit: &mut Visit<'_>) -> Result<(), EngineError> {
        self.0.scan(from, to, at, visit)
    }

    fn apply(&self, seq: Seq, batch: &Batch) {
        self.0.apply(seq, batch);
    }

    fn applied(&self) -> Seq {
        self.0.applied()
    }

    fn persisted(&self) -> Seq {
        self.0.persisted()
    }

    fn memtable_bytes(&self) -> u64 {
        self.0.memtable_bytes()
    }

    fn rotate(&self) {
        self.0.rotate();
    }

    fn flush(&self, _: Seq) -> Result<Seq, EngineError> {
        Err(EngineError::Injected)
    }
}

/// A recovery that cannot be has nobody stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_fails_leaves_the_store_to_its_owner() {
    let mut rig = Rig::new(4);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    let refused = restore(&rig.store, &Refusing(MemoryTables::default()), taking(2), |_, _| {}).await;
    assert!(matches!(refused, Err(RestoreError::Engine(_))), "{refused:?}");
    process.shipper.confirmed().await.expect("it is still the one");
    process.end().await;
}

/// Nobody is cut off unasked: neither who has the volume nor who was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_use_is_not_taken_but_by_force() {
    let asking = Taking { is_forced: false, ..taking(2) };
    let mut rig = Rig::new(5);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    let refused = restore(&rig.store, &MemoryTables::default(), asking, |_, _| {}).await;
    assert!(matches!(&refused, Err(RestoreError::InUse(found)) if found.place == place()), "{refused:?}");
    process.shipper.confirmed().await.expect("it is still the one");
    process.end().await;
    // Killed; and another one that says at its end that all of it is there.
    assert!(in_use(&rig.store).await.expect("a store").is_some());
    leave(rig.start(Seq(0))).await;
    assert_eq!(in_use(&rig.store).await.expect("a store"), None);
    restore(&rig.store, &MemoryTables::default(), asking, |_, _| {}).await.expect("nobody has it");
}

async fn leave(process: Process) {
    process.shipper.finish(LONG).await.expect("shipped");
    process.shipper.leave(LONG).await;
    process.end().await;
}

/// Nor is who begins while it is read, whenever that is.
#[tokio::test(flavor = "multi_thread")]
async fn who_begins_beside_a_recovery_is_not_cut_off() {
    let mut outcomes = Vec::new();
    for at in 0.. {
        let mut rig = Rig::new(at);
        let process = rig.start(Seq(0));
        rig.write(&process, 5);
        leave(process).await;
        let (mut looks, mut begun, tables) = (0, None, MemoryTables::default());
        let asking = Taking { is_forced: false, ..taking(2) };
        let restored = restore(&rig.store, &tables, asking, |_, _| {
            if looks == at {
                let begins = async {
                    let process = rig.start(Seq(0));
                    process.shipper.is_ours().await.expect("it is");
                    process.shipper.finish(LONG).await.expect("shipped");
                    process
                };
                begun = Some(tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(begins)));
            }
            looks += 1;
        });
        let restored = restored.await;
        let Some(process) = begun else {
            restored.expect("nobody has it");
            break;
        };
        outcomes.push(match restored {
            Err(RestoreError::InUse(_)) => "in use",
            Err(RestoreError::Moved(_)) => "moved",
            other => panic!("look {at}: {other:?}"),
        });
        process.shipper.confirmed().await.expect("it is still the one");
        process.end().await;
    }
    assert!(outcomes.contains(&"in use") && outcomes.contains(&"moved"), "{outcomes:?}");
}

/// Whoever looks finds who has the volume from the moment on in which that counts.
#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_who_has_the_volume_is_there_before_it_counts() {
    let rig = Rig::new(8);
    rig.backend.plan(RequestKind::Put, Fault::None);
    rig.backend.plan(RequestKind::Put, Fault::Hang);
    let process = rig.start(Seq(0));
    rig.until(|rig| rig.backend.count(RequestKind::Put) >= 2).await;
    let below = async |directory| rig.store.list_blobs(directory).await.expect("a store").len();
    assert_eq!((below("meta/in-use").await, below("meta/log").await), (1, 0));
    process.end().await;
}

/// A volume that was made of something else: the old directory does not make the store its own, whoever comes first.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_begins_anew_is_of_its_line_at_once() {
    let mut rig = Rig::new(3);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    begin_anew(&rig.store, (Line(2), Seq(3)), 0).await.expect("a store");
    assert!(rig.store.list_blobs("meta/checkpoint").await.expect("listed").is_empty());
    let found = survey(&rig.store).await.expect("a store");
    assert_eq!((found.line, found.end, found.damage), (Some(Line(2)), None, None));
    assert!(matches!(rig.restored().await, Err(RestoreError::Nothing(_))));
    let old = rig.start(Seq(0));
    let why = old.shipper.finish(LONG).await.expect_err("it is not of that line");
    assert!(why.contains("another line of changes"), "{why}");
    old.end().await;
    rig.line = Line(2);
    let new = rig.start(rig.log.last());
    new.shipper.finish(LONG).await.expect("shipped");
    new.end().await;
    assert_eq!(rig.restored().await.expect("restored").1, rig.log.last());
}

/// What a newer sluice has written stays as it is, and is told.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_of_a_newer_version_is_left_alone() {
    let mut rig = Rig::new(7);
    let process = rig.start(Seq(0));
    rig.write(&process, 2);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let heads = rig.store.list_blobs("meta/checkpoint").await.expect("listed");
    let head = heads.into_iter().map(|entry| entry.key).find(|key| key.ends_with("/head")).expect("a head");
    rig.store.put_blob(&head, b"{\"format_version\": 9}".as_slice().into(), PutMode::Overwrite).await.expect("put");
    let process = rig.start(rig.log.last());
    let why = process.shipper.finish(LONG).await.expect_err("not ours to replace");
    assert!(why.contains(&head) && why.contains("version 9") && why.contains("newer"), "{why}");
    assert!(process.shipper.stopped().is_some());
    process.end().await;
}
