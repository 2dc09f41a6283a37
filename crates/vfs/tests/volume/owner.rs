//! Somebody else may have gone on with the volume from the store: what is there is replaced by its owner only.

use crate::harness::{Shape, World};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use sluice_base::ObjectId;
use sluice_meta::fsck;
use sluice_vfs::{Owner, Ship};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::watch;

/// What is known: nothing yet, that the store is ours, or that it is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Ours,
    Others,
}

#[derive(Debug)]
struct Told {
    known: watch::Sender<Known>,
    confirmed: AtomicUsize,
}

impl Told {
    fn new(known: Known) -> Arc<Self> {
        Arc::new(Self { known: watch::Sender::new(known), confirmed: AtomicUsize::new(0) })
    }
}

impl Owner for Told {
    fn is_ours(&self) -> BoxFuture<'static, Result<(), String>> {
        let mut known = self.known.subscribe();
        async move {
            let known = *known.wait_for(|known| *known != Known::Nothing).await.expect("it lives");
            if known == Known::Ours { Ok(()) } else { Err("another's".into()) }
        }
        .boxed()
    }

    fn confirmed(&self) -> BoxFuture<'static, Result<(), String>> {
        self.confirmed.fetch_add(1, SeqCst);
        self.is_ours()
    }

    fn lost(&self) -> Option<String> {
        (*self.known.borrow() == Known::Others).then(|| "another's".into())
    }
}

/// A volume with one dirty object, in whose place the store has something else.
fn taken(world: &mut World) -> (crate::harness::Volume, ObjectId) {
    let volume = world.start();
    let (_, handle) = volume.create("file");
    volume.write(handle, 0, &[7; 200_000]).unwrap();
    let mut found = None;
    fsck::objects(volume.namespace.store(), &mut |id, _| found = Some(id)).unwrap();
    let id = found.expect("an object");
    volume.wait(volume.vfs.store().put_object(id, &[Some(Bytes::from_static(b"another's"))])).unwrap();
    (volume, id)
}

#[test]
fn an_object_in_the_way_is_replaced_by_the_stores_owner() {
    let mut world = World::new(1, Shape::default());
    let told = Told::new(Known::Ours);
    world.owner = Some(told.clone());
    let (volume, id) = taken(&mut world);
    volume.wait(volume.vfs.drain());
    let found = volume.wait(volume.vfs.store().find_object(id)).unwrap().expect("stored");
    assert!(found.stored_bytes() > 200_000 && volume.vfs.given_up() == 0);
    assert_eq!(told.confirmed.load(SeqCst), 2, "before and behind");
    world.kill(volume);
}

#[test]
fn an_object_that_was_given_up_by_a_recovery_is_stored_again_by_the_owner() {
    let mut world = World::new(2, Shape::default());
    world.owner = Some(Told::new(Known::Ours));
    let (volume, id) = taken(&mut world);
    let store = volume.vfs.store();
    assert!(!volume.wait(store.give_up_object(id)).unwrap(), "it is there");
    volume.wait(store.delete_object(id)).unwrap();
    assert!(volume.wait(store.give_up_object(id)).unwrap());
    assert!(volume.wait(store.give_up_object(id)).unwrap(), "again");
    assert!(volume.wait(store.find_object(id)).unwrap().is_none());
    volume.wait(volume.vfs.drain());
    assert!(volume.wait(store.find_object(id)).unwrap().is_some());
    world.kill(volume);
}

/// Nothing is uploaded before it is known whose the store is; what is another's stays, and an unmount does not wait for it.
#[test]
fn what_is_anothers_is_left_alone() {
    let mut world = World::new(3, Shape::default());
    let told = Told::new(Known::Nothing);
    world.owner = Some(told.clone());
    let (volume, id) = taken(&mut world);
    let before = volume.wait(volume.vfs.store().find_object(id)).unwrap();
    let puts = world.backend.count(sluice_object::backend::RequestKind::Put);
    let (vfs, seq) = (volume.vfs.clone(), volume.journal.written());
    let shipped: Arc<Ship> = Arc::new(|_| async { Ok(()) }.boxed());
    let flushed = async {
        let flushed = vfs.clone().flush(shipped, seq);
        tokio::pin!(flushed);
        // As long as it is not known.
        assert!(tokio::time::timeout(Duration::from_millis(1500), &mut flushed).await.is_err());
        assert_eq!(world.backend.count(sluice_object::backend::RequestKind::Put), puts);
        told.known.send_replace(Known::Others);
        flushed.await
    };
    assert_eq!(volume.wait(flushed), Err("another's".into()));
    volume.wait(volume.vfs.drain());
    assert_eq!(volume.vfs.given_up(), 1);
    assert_eq!(volume.wait(volume.vfs.store().find_object(id)).unwrap(), before);
    world.kill(volume);
}
