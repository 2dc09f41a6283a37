//! The server loses its power: what it answered and had not synced is sent again, before anything new.

use super::*;
use crate::{SetAttributes, store::Log};

/// A change as a session keeps it.
struct Kept {
    method: u16,
    fields: Vec<u8>,
    number: u64,
    made: Ino,
}

impl Rig {
    fn kept<'a, C: Call<'a>>(&self, peer: Peer, call: &C, made: Ino) -> Kept {
        let number = self.numbers.borrow()[&peer.session];
        Kept { method: C::METHOD.number(), fields: client::fields(call), number, made }
    }

    fn again(&self, peer: Peer, kept: &Kept) -> std::result::Result<(), Fault> {
        let number = Number { number: kept.number, seen_up_to: 0, again: Some(kept.made) };
        let body = client::again(&kept.fields, number);
        match self.server.handle(self.now.get(), Some(peer), kept.method, &body) {
            Outcome::Reply(reply) => ReplyHead::outcome(&reply.body).expect("an answer").1,
            Outcome::Wait(_) => panic!("what was so before waits for nobody"),
        }
    }

    /// Everything up to now survives.
    fn sync(&self) {
        self.log.ensure_synced(self.log.last()).expect("synced");
    }

    fn make(&self, peer: Peer, path: &str) -> (Attr, Kept) {
        let attr = self.create(peer, path);
        let kept = self.kept(peer, &self.creation(path, mode::REGULAR), attr.ino);
        (attr, kept)
    }
}

#[test]
fn answers_say_what_is_durable() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    rig.sync();
    let outcome = rig.send(peer, &rig.creation("file", mode::REGULAR));
    let head = answer::<Create<'_>>(&outcome).head;
    assert_eq!((head.life, head.record), (1, rig.log.last().0));
    assert!(head.synced < head.record);
    assert!(matches!(outcome, Outcome::Reply(Reply { durable: Seq(0), .. })), "it does not wait for the disk");
    let sync = |life| rig.send(peer, &SyncLog { life, record: head.record });
    let durable =
        |outcome: &Outcome| matches!(outcome, Outcome::Reply(Reply { durable, .. }) if durable.0 == head.record);
    assert!(durable(&sync(1)) && answer::<SyncLog>(&sync(1)).answer.expect("answered").value);
    assert!(!durable(&sync(2)) && !answer::<SyncLog>(&sync(2)).answer.expect("answered").value, "another run");
    let shipped = rig.send(peer, &Ship { line: 0 });
    assert!(matches!(shipped, Outcome::Reply(Reply { durable, stored: true, .. }) if durable.0 >= head.record));
    let other = rig.ask(peer, &Ship { line: 7 });
    assert!(matches!(other, Err(Fault::OtherLine(0))), "what it asks about was written elsewhere: {other:?}");
    rig.sync();
    assert!(answer::<Renew>(&rig.send(peer, &Renew {})).head.synced >= head.record);
    let rig = rig.restart();
    rig.resume(peer, false, &[]).expect("resumed");
    assert_eq!(answer::<Renew>(&rig.send(peer, &Renew {})).head.life, 2);
}

#[test]
fn what_was_lost_is_made_again_as_it_was() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    rig.sync();
    let (kept, file) = (rig.make(peer, "kept"), rig.make(peer, "file"));
    rig.ask(peer, &Unlink { dir: Ino::ROOT, name: name("kept") }).expect("unlinked");
    let unlinked = rig.kept(peer, &Unlink { dir: Ino::ROOT, name: name("kept") }, Ino(0));
    let rig = rig.lose_power();
    rig.resume_only(peer, false, &[]).expect("resumed");
    assert!(matches!(rig.lookup(peer, "file"), Err(Fault::NotResumed)), "first what was answered");
    assert!(matches!(rig.ask(peer, &Renew {}), Err(Fault::NotResumed)), "an idle session must hear of it");
    for change in [&kept.1, &file.1, &unlinked] {
        rig.again(peer, change).expect("made again");
        rig.again(peer, change).expect("its answer was lost");
    }
    rig.ask(peer, &Resent { barred: 0 }).expect("told");
    assert_eq!(rig.lookup(peer, "file").expect("found").ino, file.0.ino, "open files go on");
    assert!(matches!(rig.lookup(peer, "kept"), Err(Fault::Meta(crate::Error::NotFound))));
    let new = rig.create(peer, "new").ino;
    assert!(new != file.0.ino && new != kept.0.ino, "numbers that were told are not given again");
    assert!(crate::fsck::check(rig.server.namespace().store(), &mut |_| {}).expect("checked").is_clean());
}

#[test]
fn without_a_loss_nothing_is_done_again() {
    let rig = Rig::new();
    let peer = rig.begin("a");
    let (file, made) = rig.make(peer, "file");
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let changed = rig.ask(peer, &Setattr { ino: file.ino, set }).expect("changed");
    let rig = rig.restart();
    rig.clock.advance(at(7));
    rig.resume_only(peer, false, &[]).expect("resumed");
    rig.again(peer, &made).expect("the first answer");
    rig.again(peer, &rig.kept(peer, &Setattr { ino: file.ino, set }, Ino(0))).expect("the first answer");
    rig.ask(peer, &Resent { barred: 0 }).expect("told");
    assert_eq!(rig.lookup(peer, "file").expect("found"), changed);
}

#[test]
fn new_changes_wait_for_those_that_are_sent_again() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.sync();
    let (file, made) = rig.make(a, "file");
    let rig = rig.lose_power();
    rig.resume(b, false, &[]).expect("resumed");
    let waits = token(&rig.send(b, &rig.creation("file", mode::REGULAR)));
    assert_eq!(rig.poll(), []);
    rig.resume_only(a, false, &[]).expect("resumed");
    assert_eq!(rig.poll(), [], "it has not sent anything yet");
    rig.again(a, &made).expect("made again");
    rig.ask(a, &Resent { barred: 0 }).expect("told");
    let events = rig.poll();
    let [Event::Reply { token: released, reply, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*released, waits);
    let answered = client::reply::<Create<'_>>(&reply.body).expect("an answer").answer;
    assert!(matches!(answered, Err(Fault::Meta(crate::Error::Exists))), "the earlier change won");
    assert_eq!(rig.lookup(b, "file").expect("found").ino, file.ino);
}

#[test]
fn a_change_waits_for_what_it_stands_on() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.sync();
    let dir = rig.ask(a, &rig.creation("dir", mode::DIRECTORY)).expect("made").ino;
    let dir_made = rig.kept(a, &rig.creation("dir", mode::DIRECTORY), dir);
    rig.ask(a, &Release { inos: vec![dir], cached: false }).expect("released");
    let in_dir = Create { dir, ..rig.creation("file", mode::REGULAR) };
    let ino = rig.ask(b, &in_dir).expect("made").ino;
    let made = rig.kept(b, &in_dir, ino);
    let rig = rig.lose_power();
    rig.resume_only(b, false, &[]).expect("resumed");
    let number = Number { number: made.number, seen_up_to: 0, again: Some(ino) };
    let body = client::again(&made.fields, number);
    let first = token(&rig.server.handle(rig.now.get(), Some(b), made.method, &body));
    assert_eq!(rig.poll(), [], "not yet");
    rig.resume_only(a, false, &[]).expect("resumed");
    rig.again(a, &dir_made).expect("made again");
    assert_eq!(rig.released(), [first]);
    rig.again(b, &made).expect("there");
    rig.ask(a, &Resent { barred: 0 }).expect("told");
    rig.ask(b, &Resent { barred: 0 }).expect("told");
    assert_eq!(rig.ask(b, &Getattr { ino }).expect("there").ino, ino);
}

#[test]
fn two_that_wait_for_each_other_do_not_wait_for_ever() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.sync();
    let (_, of_a) = rig.make(a, "one");
    rig.ask(a, &Release { inos: vec![Ino::ROOT], cached: false }).expect("released");
    let (_, of_b) = rig.make(b, "two");
    let rig = rig.lose_power();
    // Somebody who had nothing to send again made both names before.
    let names = rig.server.namespace();
    for path in ["one", "two"] {
        let node = crate::NewNode { mode: mode::REGULAR, rdev: 0, target: b"" };
        names.create(Ino::ROOT, path.as_bytes(), node, CALLER).expect("made");
    }
    rig.resume_only(a, false, &[]).expect("resumed");
    rig.resume_only(b, false, &[]).expect("resumed");
    let body = client::again(&of_a.fields, Number { number: of_a.number, seen_up_to: 0, again: Some(of_a.made) });
    let waits = token(&rig.server.handle(rig.now.get(), Some(a), of_a.method, &body));
    assert!(matches!(rig.again(b, &of_b), Err(Fault::Meta(crate::Error::Exists))), "nobody else is to come");
    assert_eq!(rig.released(), [], "b may send more");
    rig.ask(b, &Resent { barred: 0 }).expect("told");
    assert_eq!(rig.released(), [waits]);
}

#[test]
fn nobody_waits_longer_than_a_lease_and_who_comes_then_may_find_its_change_in_conflict() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.sync();
    let ((_, lost), (_, other)) = (rig.make(a, "file"), rig.make(a, "other"));
    let rig = rig.lose_power();
    rig.resume(b, false, &[]).expect("resumed");
    let waits = token(&rig.send(b, &rig.creation("file", mode::REGULAR)));
    rig.advance(14);
    rig.ask(b, &Renew {}).expect("alive");
    assert_eq!(rig.released(), []);
    rig.advance(1);
    assert_eq!(rig.released(), [waits]);
    rig.resume_only(a, false, &[]).expect("resumed");
    assert!(matches!(rig.again(a, &lost), Err(Fault::Meta(crate::Error::Exists))));
    rig.again(a, &other).expect("nobody else made it");
    rig.ask(a, &Resent { barred: 0 }).expect("told");
    rig.lookup(a, "other").expect("found");
}

#[test]
fn a_session_that_comes_and_goes_again_holds_nobody_up() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.sync();
    let rig = rig.lose_power();
    rig.resume_only(a, false, &[]).expect("resumed");
    rig.resume(b, false, &[]).expect("resumed");
    let waits = token(&rig.send(b, &rig.creation("file", mode::REGULAR)));
    assert_eq!(token(&rig.send_same(b, &rig.creation("file", mode::REGULAR))), waits, "a copy takes its place");
    rig.advance(10);
    rig.ask(b, &Renew {}).expect("alive");
    rig.advance(10);
    assert_eq!(rig.released(), [waits]);
}
