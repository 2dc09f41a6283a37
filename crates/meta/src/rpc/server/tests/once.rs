//! A change is done once, however often it is asked for.

use super::*;
use crate::{
    Moved, SizeChange,
    extent::{Extent, FileExtents, Place},
    rpc::values::Extents,
};
use sluice_base::{ObjectId, Timestamp};

fn numbered(number: u64, seen_up_to: u64) -> Number {
    Number { number, seen_up_to, again: None }
}

impl Rig {
    fn create_as(&self, peer: Peer, path: &str, number: Number) -> Outcome {
        let body = client::change(&self.creation(path, mode::REGULAR), number);
        self.server.handle(self.now.get(), Some(peer), Method::Create.number(), &body)
    }
}

#[test]
fn a_retry_gets_the_first_answer() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    let first = answer::<Create<'_>>(&rig.create_as(peer, "file", numbered(1, 0))).answer.expect("created");
    let last = rig.log.last();
    let again = answer::<Create<'_>>(&rig.create_as(peer, "file", numbered(1, 0)));
    assert!(!again.head.cacheable, "it may be old by now");
    assert_eq!(again.answer.expect("the same"), Changed { dirs: Vec::new(), ..first });
    assert_eq!(rig.log.last(), last, "nothing was done");
    assert!(matches!(
        answer::<Create<'_>>(&rig.create_as(peer, "file", numbered(2, 0))).answer,
        Err(Fault::Meta(crate::Error::Exists))
    ));
}

#[test]
fn a_retry_after_a_restart_gets_the_first_answer() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    let first = answer::<Create<'_>>(&rig.create_as(peer, "file", numbered(1, 0))).answer.expect("created");
    let rig = rig.restart();
    assert!(matches!(
        answer::<Create<'_>>(&rig.create_as(peer, "file", numbered(1, 0))).answer,
        Err(Fault::NotResumed)
    ));
    let resumed = rig.resume(peer, false, &[]).expect("resumed");
    assert_eq!((resumed.kept, resumed.numbers), (false, 1));
    let again = answer::<Create<'_>>(&rig.create_as(peer, "file", numbered(1, 0)));
    assert_eq!(again.answer.expect("the same"), Changed { dirs: Vec::new(), ..first });
}

#[test]
fn a_refused_change_is_not_done_by_a_late_copy() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.create(b, "file");
    let refused = rig.create_as(a, "file", numbered(1, 0));
    assert!(matches!(answer::<Create<'_>>(&refused).answer, Err(Fault::Meta(crate::Error::Exists))));
    rig.ask(b, &Unlink { dir: Ino::ROOT, name: name("file") }).expect("unlinked");
    let late = rig.create_as(a, "file", numbered(1, 0));
    assert!(matches!(answer::<Create<'_>>(&late).answer, Err(Fault::Meta(crate::Error::Exists))));
}

#[test]
fn results_are_kept_within_a_window() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    for number in 1..=300u64 {
        let path = format!("file{number}");
        answer::<Create<'_>>(&rig.create_as(peer, &path, numbered(number, number - 1))).answer.expect("created");
    }
    let (low, high) = rig.server.namespace().kept_numbers(peer.session).expect("read").expect("some");
    assert!(low > 200 && high == 300, "{low}..{high}");
    let forgotten = answer::<Create<'_>>(&rig.create_as(peer, "file1", numbered(1, 0)));
    assert!(matches!(forgotten.answer, Err(Fault::Forgotten)));
    let beyond = answer::<Create<'_>>(&rig.create_as(peer, "far", numbered(299 + 1025, 299)));
    assert!(matches!(beyond.answer, Err(Fault::Window)));
    // Whatever a client claims to have seen, one change forgets a bounded number of results.
    answer::<Create<'_>>(&rig.create_as(peer, "wild", numbered(1 << 60, u64::MAX))).answer.expect("created");
}

#[test]
fn a_retry_of_a_held_change_waits_like_the_first() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.lookup(b, "file").expect_err("not there yet");
    let first = token(&rig.create_as(a, "file", numbered(1, 0)));
    assert_eq!(token(&rig.create_as(a, "file", numbered(1, 0))), first);
    assert_eq!(rig.pushed(b), [Invalidation::Entry(Ino::ROOT, b"file".to_vec())]);
    assert_eq!(rig.released(), [first]);
    answer::<Create<'_>>(&rig.create_as(a, "file", numbered(1, 0))).answer.expect("the same again");
}

#[test]
fn a_number_stands_for_one_change_only() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    rig.create_as(peer, "file", numbered(1, 0));
    let body = client::change(&Unlink { dir: Ino::ROOT, name: name("file") }, numbered(1, 0));
    let outcome = rig.server.handle(at(0), Some(peer), Method::Unlink.number(), &body);
    answer::<Unlink<'_>>(&outcome).answer.expect_err("a number of something else");
    rig.lookup(peer, "file").expect("still there");
}

const OBJECT: ObjectId = ObjectId([7; 16]);

/// A page of a file, which is in OBJECT.
fn page(ino: Ino, offset: u64, place: u32, is_new: bool) -> Publish<'static> {
    let place = Some(Place { object: OBJECT, offset: place });
    Publish {
        ino,
        extents: Extents::new(vec![Extent { offset, len: 4096, place }]).unwrap(),
        body: None,
        size: SizeChange::AtLeast(offset + 4096),
        mtime: Some(Timestamp { secs: 77, nanos: 0 }),
        kill_suidgid: false,
        new_objects: if is_new { vec![OBJECT] } else { vec![] },
        locked: false,
    }
}

/// A mount that slept for long publishes a clone of what nobody has any more.
#[test]
fn a_publish_of_bytes_that_are_gone_is_refused() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    let ino = rig.create(peer, "file").ino;
    rig.ask(peer, &page(ino, 0, 0, true)).expect("published");
    rig.ask(peer, &ObjectStored { id: OBJECT, segments: 1, bytes: 8192 }).expect("stored");
    rig.ask(peer, &Unlink { dir: Ino::ROOT, name: name("file") }).expect("unlinked");
    rig.ask(peer, &Release { inos: vec![ino], cached: false }).expect("released");
    rig.poll();
    let names = rig.server.namespace();
    let clone = rig.create(peer, "clone").ino;
    assert!(names.bury_object(OBJECT).expect("buried"));
    rig.ask(peer, &page(clone, 0, 4096, false)).expect("a tombstone comes back to life");
    assert!(!names.drop_tombstone(OBJECT).expect("asked"), "it is none any more");
    rig.ask(peer, &Unlink { dir: Ino::ROOT, name: name("clone") }).expect("unlinked");
    rig.ask(peer, &Release { inos: vec![clone], cached: false }).expect("released");
    rig.poll();
    assert!(names.bury_object(OBJECT).expect("buried"));
    assert!(names.drop_tombstone(OBJECT).expect("dropped"));
    let late = rig.create(peer, "late").ino;
    assert!(matches!(rig.ask(peer, &page(late, 0, 0, false)), Err(Fault::Meta(crate::Error::Gone))));
    assert!(crate::fsck::check(names.store(), &mut |_| {}).expect("checked").is_clean());
}

/// Where bytes are may change without anybody's doing; who cached that is told so, and nothing else.
#[test]
fn who_caches_extents_is_told_where_they_went() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    let before = rig.ask(a, &page(ino, 0, 0, true)).expect("published").attr;
    rig.ask(b, &Open { ino }).expect("opened");
    let other = ObjectId([8; 16]);
    rig.server.namespace().begin_object(other, SessionId(1)).expect("begun");
    let moved = |offset| Moved {
        offset,
        len: 4096,
        from: Place { object: OBJECT, offset: 0 },
        to: Place { object: other, offset: 100 },
    };
    let relocate = |offset| rig.server.relocate(rig.now.get(), ino, &[moved(offset)]).expect("relocated");
    rig.poll();
    assert_eq!(relocate(4096), 0, "it is not there");
    assert!(rig.poll().is_empty());
    assert_eq!(relocate(0), 4096);
    let told: Vec<_> = rig.poll().into_iter().filter_map(pushed).collect();
    assert_eq!(told, [(a.session, vec![Invalidation::Extents(ino)]), (b.session, vec![Invalidation::Extents(ino)])]);
    assert_eq!(relocate(0), 0, "it has gone already");
    assert_eq!(rig.ask(b, &Open { ino }).expect("opened").attr, before);
    assert!(crate::fsck::check(rig.server.namespace().store(), &mut |_| {}).expect("checked").is_clean());
}

fn pushed(event: Event) -> Option<(SessionId, Vec<Invalidation>)> {
    let Event::Push { peer, body } = event else { return None };
    Some((peer.session, Push::decode(&body).expect("a push").items))
}

#[test]
fn a_publish_is_done_once_and_plans_against_what_is_stored() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    let ino = rig.create(peer, "file").ino;
    let object = OBJECT;
    let publish = |offset, place, is_new| page(ino, offset, place, is_new);
    let attr = rig.ask(peer, &publish(0, 0, true)).expect("published").attr;
    assert_eq!((attr.size, attr.held_bytes, attr.mtime.secs), (4096, 4096, 77));
    rig.ask(peer, &publish(4096, 4096, false)).expect("published");
    let last = rig.ask(peer, &publish(0, 8192, false)).expect("published");
    let record = rig.ask(peer, &GetObject { id: object }).expect("read").expect("there");
    assert_eq!((record.session, record.live_bytes), (peer.session, 8192));
    let page = rig.ask(peer, &GetExtents { ino, first: 0, end: u64::MAX }).expect("read");
    let opened = rig.ask(peer, &Open { ino }).expect("opened");
    assert_eq!(page.spans, opened.first_span.iter().cloned().collect::<Vec<_>>());
    assert_eq!((last.attr, last.inode, last.first_span), (opened.attr, opened.inode, opened.first_span));
    let mut extents = FileExtents::default();
    let (span, records) = page.spans[0].clone().into_records();
    extents.load(span, &records).expect("loaded");
    let places: Vec<_> = extents.map(0..8192).iter().map(|e| e.place.map(|p| p.offset)).collect();
    assert_eq!(places, [Some(8192), Some(4096)]);
    assert!(crate::fsck::check(rig.server.namespace().store(), &mut |_| {}).expect("checked").is_clean());
}
