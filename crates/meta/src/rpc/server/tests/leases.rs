//! Leases, fencing, grace, and who waits for whom.

use super::*;
use crate::SetAttributes;

fn chmod(ino: Ino) -> Setattr {
    Setattr { ino, set: SetAttributes { mode: Some(0o600), ..SetAttributes::default() } }
}

#[test]
fn a_change_waits_for_the_ack_of_whoever_cached_what_it_touches() {
    let rig = Rig::new();
    let (a, b, c) = (rig.begin("a"), rig.begin("b"), rig.begin("c"));
    let ino = rig.create(a, "file").ino;
    rig.lookup(b, "file").expect("found");
    let held = token(&rig.send(a, &chmod(ino)));
    assert_eq!(rig.released(), [], "pushed, not acked");
    rig.server.acked(rig.now.get(), b, 1);
    assert_eq!(rig.released(), [held]);
    // The answer to its own change is cached by `a` in turn.
    token(&rig.send(c, &chmod(ino)));
    assert_eq!(rig.pushed(a), [Invalidation::Attr(ino)]);
}

#[test]
fn nobody_waits_for_itself_or_for_what_nobody_cached() {
    let rig = Rig::new();
    let (a, _b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.ask(a, &chmod(ino)).expect("at once");
    rig.ask(a, &Unlink { dir: Ino::ROOT, name: name("file") }).expect("at once");
    assert_eq!(rig.poll(), []);
}

#[test]
fn a_change_waits_no_longer_than_a_lease() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.lookup(b, "file").expect("found");
    rig.server.disconnected(b);
    let held = token(&rig.send(a, &chmod(ino)));
    rig.advance(14);
    rig.ask(a, &Renew {}).expect("alive");
    assert_eq!(rig.released(), []);
    rig.advance(1);
    let events = rig.poll();
    assert!(events.contains(&Event::Expired(b.session)) && events.len() == 2, "{events:?}");
    assert!(matches!(&events[..], [Event::Reply { token, .. }, _] | [_, Event::Reply { token, .. }] if *token == held));
    assert!(matches!(rig.lookup(b, "file"), Err(Fault::Expired)));
    assert!(!rig.resume(b, false, &[]).expect("resumed").kept);
    rig.lookup(b, "file").expect("live again");
}

#[test]
fn a_session_that_does_not_ack_is_not_renewed() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.lookup(b, "file").expect("found");
    let held = token(&rig.send(a, &chmod(ino)));
    for second in 0..19 {
        rig.advance(1);
        rig.ask(a, &Renew {}).expect("alive");
        let head = answer::<Renew>(&rig.send(b, &Renew {})).head;
        assert_eq!(head.renewed, second < 4, "after {} s", second + 1);
        assert_eq!(rig.released(), [], "after {} s", second + 1);
        if second == 17 {
            break;
        }
    }
    rig.advance(1);
    assert_eq!(rig.released(), [held], "5 s to ack, then its lease");
}

#[test]
fn a_reconnected_session_keeps_its_cache_and_gets_its_pushes_again() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.lookup(b, "file").expect("found");
    let held = token(&rig.send(a, &chmod(ino)));
    rig.poll();
    rig.server.disconnected(b);
    assert_eq!(rig.poll(), []);
    assert!(rig.resume(b, false, &[]).expect("resumed").kept);
    assert_eq!(rig.pushed(b), [Invalidation::Attr(ino)]);
    assert_eq!(rig.released(), [held]);
}

/// One that went nowhere meanwhile would count as taken by the ack of the next.
#[test]
fn pushes_wait_until_the_new_connection_is_known() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.lookup(b, "file").expect("found");
    let held = token(&rig.send(a, &chmod(ino)));
    rig.poll();
    rig.server.disconnected(b);
    let call = Resume { session: b.session, epoch: b.epoch, take_over: None, uses: Vec::new() };
    let outcome = rig.server.handle(rig.now.get(), None, Method::Resume.number(), &client::request(&call));
    assert!(answer::<Resume>(&outcome).answer.expect("resumed").value.kept);
    assert_eq!(rig.poll(), [], "it is not known by which connection");
    rig.server.connected(b);
    assert_eq!(rig.pushed(b), [Invalidation::Attr(ino)]);
    assert_eq!(rig.released(), [held]);
}

#[test]
fn a_fenced_incarnation_can_do_nothing() {
    let rig = Rig::new();
    let old = rig.begin("a");
    rig.create(old, "file");
    let resumed = rig.resume(old, true, &[]).expect("taken over");
    assert_eq!((resumed.epoch, resumed.kept, resumed.numbers), (2, false, 1));
    assert_eq!(rig.poll(), [Event::Fenced(old)]);
    assert!(matches!(rig.lookup(old, "file"), Err(Fault::Fenced)));
    assert!(matches!(rig.resume(old, false, &[]), Err(Fault::Fenced)));
    assert!(matches!(rig.resume(old, true, &[]), Err(Fault::Fenced)));
    let new = Peer { epoch: 2, ..old };
    rig.create(new, "other");
    // Even what had passed the check before the take-over does not commit after it.
    let (session, forget) = (old.session, 0..0);
    let once = crate::namespace::Once { session, epoch: 1, number: None, forget, again: None, barred: false };
    let view = rig.server.namespace().in_session(once);
    assert!(view.update_atime(Ino::ROOT, rig.server.namespace().now()).is_err() && view.effects().fenced);
    let rig = rig.restart();
    assert!(matches!(rig.resume(old, false, &[]), Err(Fault::Fenced)));
    assert_eq!(rig.resume(new, false, &[]).expect("resumed").numbers, 2);
}

#[test]
fn a_take_over_whose_answer_was_lost_may_be_made_again() {
    let rig = Rig::new();
    let old = rig.begin("a");
    rig.create(old, "file");
    let peer = |epoch| Peer { epoch, ..old };
    let claim = |epoch, secret| Some(Claim { epoch, secret });
    rig.resume_as(old, claim(2, 1), &[]).expect("taken over");
    // Nobody has that answer: whoever asks knows the epoch before.
    let again = rig.resume_as(old, claim(3, 1), &[]).expect("the same claim");
    assert_eq!((again.epoch, again.kept, again.numbers), (3, false, 1));
    assert_eq!(rig.poll(), [Event::Fenced(old), Event::Fenced(peer(2))]);
    for epoch in [1, 2] {
        assert!(matches!(rig.lookup(peer(epoch), "file"), Err(Fault::Fenced)));
        assert!(matches!(rig.resume_as(peer(epoch), None, &[]), Err(Fault::Fenced)));
    }
    rig.create(peer(3), "other");
    // Copies that an old connection delivers late; another claim from the same epoch; the right secret from another epoch.
    for (from, claim) in [(1, claim(2, 1)), (1, claim(3, 1)), (1, claim(9, 2)), (2, claim(9, 1))] {
        assert!(matches!(rig.resume_as(peer(from), claim, &[]), Err(Fault::Fenced)), "{from} {claim:?}");
    }
    assert_eq!(rig.poll(), []);
    rig.lookup(peer(3), "file").expect("undisturbed");
    // Also when the server has been restarted in between.
    let rig = rig.restart();
    assert!(matches!(rig.resume_as(old, claim(3, 1), &[]), Err(Fault::Fenced)));
    assert_eq!(rig.resume_as(old, claim(4, 1), &[]).expect("the same claim").numbers, 2);
    // Once the epoch is known a claim is another one, and those from before are over.
    rig.resume_as(peer(4), claim(5, 3), &[]).expect("taken over");
    assert!(matches!(rig.resume_as(old, claim(6, 1), &[]), Err(Fault::Fenced)));
}

#[test]
fn after_a_restart_changes_wait_for_those_who_may_have_cached_anything() {
    let rig = Rig::new();
    let (a, b, c) = (rig.begin("a"), rig.begin("b"), rig.begin("c"));
    let ino = rig.create(a, "file").ino;
    let rig = rig.restart();
    rig.resume(a, false, &[]).expect("resumed");
    let held = token(&rig.send(a, &chmod(ino)));
    assert_eq!(rig.released(), []);
    assert!(!rig.resume(b, false, &[]).expect("resumed").kept);
    assert_eq!(rig.released(), [], "one is missing");
    rig.advance(14);
    rig.ask(a, &Renew {}).expect("alive");
    rig.ask(b, &Renew {}).expect("alive");
    rig.advance(1);
    let events = rig.poll();
    assert!(events.contains(&Event::Expired(c.session)), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Reply { token, .. } if *token == held)));
    rig.ask(a, &chmod(ino)).expect("nobody is missing any more");
}

#[test]
fn sessions_end_for_good() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    rig.create(a, "file");
    rig.ask(b, &End {}).expect("ended");
    assert_eq!(rig.poll(), [Event::Ended(b.session)]);
    assert!(matches!(rig.lookup(b, "file"), Err(Fault::Ended)));
    let Outcome::Reply(reply) = rig.server.handle(at(0), None, Method::ListSessions.number(), &[VERSION]) else {
        panic!("nothing to wait for")
    };
    let list = client::reply::<ListSessions>(&reply.body).expect("a list").answer.expect("a list").value;
    assert_eq!(list.iter().map(|s| (s.session, &s.name[..], s.open)).collect::<Vec<_>>(), [(a.session, &b"a"[..], 1)]);
    rig.advance(15 + 150);
    assert_eq!(rig.poll(), [Event::Expired(a.session), Event::Ended(a.session)]);
    assert!(matches!(rig.resume(a, false, &[]), Err(Fault::Ended)), "its handles are gone");
    assert!(matches!(rig.resume(b, true, &[]), Err(Fault::Ended)), "it said itself that nothing is left");
    assert_eq!(rig.server.poll_at(), None);
}

/// To be survived: a mount is killed with a change under way, and comes back when its session has ended, and the server was
/// restarted too.
#[test]
fn a_session_that_was_left_is_taken_over_with_its_results() {
    let mut rig = Rig::new();
    let (a, reader) = (rig.begin("a"), rig.begin("reader"));
    let made = rig.create(a, "file");
    for restart in [false, true] {
        rig.advance(15 + 150);
        rig.poll();
        if restart {
            rig = rig.restart();
            rig.poll();
            assert!(rig.server.poll_at().is_none(), "nobody waits for it");
        }
        let epoch = if restart { 2 } else { 1 };
        let resumed = rig.resume(Peer { epoch, ..a }, true, &[]).expect("taken over");
        assert_eq!((resumed.epoch, resumed.numbers, resumed.kept), (epoch + 1, 1, false));
        let back = Peer { epoch: resumed.epoch, ..a };
        let again = answer::<Create>(&rig.send_same(back, &rig.creation("file", mode::REGULAR)));
        assert_eq!(again.answer.expect("as the first time").value.ino, made.ino);
        assert!(matches!(rig.lookup(Peer { epoch, ..a }, "file"), Err(Fault::Fenced)));
    }
    assert!(matches!(rig.resume(reader, true, &[]), Err(Fault::Ended)), "of one that changed nothing nothing is kept");
}

#[test]
fn of_many_sessions_that_were_left_those_that_began_last_are_kept() {
    let rig = Rig::new();
    let peers: Vec<Peer> = (0..=super::super::poll::LEFT_MAX).map(|_| rig.begin("one of many")).collect();
    for (index, peer) in peers.iter().enumerate() {
        // Some wait for those who came before; they are done.
        drop(rig.send(*peer, &rig.creation(&index.to_string(), mode::REGULAR)));
    }
    rig.advance(15 + 150);
    rig.poll();
    assert!(matches!(rig.resume(peers[0], true, &[]), Err(Fault::Ended)));
    rig.resume(peers[1], true, &[]).expect("kept");
    rig.resume(peers[peers.len() - 1], true, &[]).expect("kept");
}

#[test]
fn a_session_that_is_far_behind_is_told_to_drop_everything() {
    let rig = Rig::with(Settings { pushes_max: 8, ..Settings::default() });
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let inos: Vec<Ino> = (0..20).map(|i| rig.create(a, &format!("file{i}")).ino).collect();
    for ino in &inos {
        rig.ask(b, &Getattr { ino: *ino }).expect("there");
    }
    let held: Vec<Outcome> = inos.iter().map(|ino| rig.send(a, &chmod(*ino))).collect();
    assert_eq!(rig.pushed(b), [Invalidation::Everything]);
    assert_eq!(rig.released().len(), held.iter().filter(|o| matches!(o, Outcome::Wait(_))).count());
}

#[test]
fn what_falls_out_of_the_bound_is_pushed() {
    let rig = Rig::with(Settings { inodes_max: 4, ..Settings::default() });
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let inos: Vec<Ino> = (0..4)
        .map(|i| {
            let ino = rig.create(a, &format!("file{i}")).ino;
            rig.ask(a, &Release { inos: vec![ino], cached: false }).expect("released");
            ino
        })
        .collect();
    rig.poll();
    for ino in &inos {
        rig.ask(b, &Getattr { ino: *ino }).expect("there");
    }
    assert_eq!(rig.poll(), []);
    rig.ask(b, &Getattr { ino: Ino::ROOT }).expect("there");
    assert_eq!(rig.pushed(b), [Invalidation::Inode(inos[0])]);
}
