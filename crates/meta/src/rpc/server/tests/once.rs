//! A change is done once, however often it is asked for.

use super::*;

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

#[test]
fn a_publish_is_done_once_and_plans_against_what_is_stored() {
    use crate::{
        SizeChange,
        extent::{Extent, FileExtents, Place},
        rpc::values::Extents,
    };
    let rig = Rig::new();
    let peer = rig.begin("a");
    let ino = rig.create(peer, "file").ino;
    let object = sluice_base::ObjectId([7; 16]);
    let publish = |offset: u64, place: u32, new| Publish {
        ino,
        extents: Extents::new(vec![Extent { offset, len: 4096, place: Some(Place { object, offset: place }) }])
            .unwrap(),
        body: None,
        size: SizeChange::AtLeast(offset + 4096),
        mtime: Some(sluice_base::Timestamp { secs: 77, nanos: 0 }),
        kill_suidgid: false,
        new_objects: if new { vec![object] } else { vec![] },
        locked: false,
    };
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
