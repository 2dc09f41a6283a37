//! What lost its last name lives as long as somebody uses it.

use super::*;

impl Rig {
    fn unlink(&self, peer: Peer, path: &str) -> Outcome {
        self.send(peer, &Unlink { dir: Ino::ROOT, name: name(path) })
    }

    fn exists(&self, ino: Ino) -> bool {
        self.poll();
        self.server.namespace().getattr(ino).is_ok()
    }

    fn release(&self, peer: Peer, ino: Ino) {
        self.ask(peer, &Release { inos: vec![ino], cached: false }).expect("released");
    }
}

#[test]
fn what_nobody_holds_goes_with_its_name() {
    let rig = Rig::new();
    let a = rig.begin("a");
    let ino = rig.create(a, "file").ino;
    rig.release(a, ino);
    let left = answer::<Unlink<'_>>(&rig.unlink(a, "file")).answer.expect("unlinked").value;
    assert!(!left.orphaned);
    assert!(!rig.exists(ino));
}

#[test]
fn an_open_file_lives_until_all_sessions_release_it() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.ask(b, &Open { ino }).expect("open");
    let held = token(&rig.unlink(a, "file"));
    assert_eq!(rig.pushed(b), [Invalidation::Unlinked(ino)]);
    assert_eq!(rig.released(), [held]);
    assert_eq!(rig.ask(b, &Getattr { ino }).expect("still there").nlink, 0);
    rig.release(a, ino);
    assert!(rig.exists(ino));
    rig.release(b, ino);
    assert!(!rig.exists(ino));
}

#[test]
fn sessions_that_end_give_their_uses_back() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let ino = rig.create(a, "file").ino;
    rig.ask(b, &Open { ino }).expect("open");
    rig.unlink(a, "file");
    rig.release(a, ino);
    rig.advance(15);
    assert!(rig.exists(ino), "b expired, but may come back");
    rig.advance(149);
    assert!(rig.exists(ino));
    rig.advance(1);
    assert!(!rig.exists(ino));
}

#[test]
fn an_unnamed_file_goes_with_its_session() {
    let rig = Rig::new();
    let a = rig.begin("a");
    let call = CreateUnnamed { dir: Ino::ROOT, mode: mode::REGULAR | 0o600, caller: CALLER };
    let (first, second) = (rig.ask(a, &call).expect("made").ino, rig.ask(a, &call).expect("made").ino);
    rig.ask(a, &Link { ino: first, dir: Ino::ROOT, name: name("named") }).expect("linked");
    assert!(rig.exists(first) && rig.exists(second));
    rig.ask(a, &End {}).expect("ended");
    assert!(rig.exists(first) && !rig.exists(second));
}

#[test]
fn after_a_restart_what_is_resumed_as_open_stays() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let [kept, lost, later] = ["kept", "lost", "later"].map(|path| {
        let ino = rig.create(a, path).ino;
        rig.ask(b, &Open { ino }).expect("open");
        rig.release(a, ino);
        ino
    });
    rig.unlink(a, "kept");
    rig.unlink(a, "lost");
    let rig = rig.restart();
    rig.resume(a, false, &[]).expect("resumed");
    // Nobody knows what is open while one is missing.
    let unlinked = token(&rig.unlink(a, "later"));
    rig.resume(b, false, &[kept, later]).expect("resumed");
    assert_eq!(rig.pushed(b), [Invalidation::Unlinked(later)]);
    assert_eq!(rig.released(), [unlinked]);
    assert!(rig.exists(lost), "b might still say so");
    for _ in 0..3 {
        rig.advance(10);
        rig.ask(a, &Renew {}).expect("alive");
        rig.ask(b, &Renew {}).expect("alive");
    }
    assert!(rig.exists(kept) && rig.exists(later));
    assert!(!rig.exists(lost));
    rig.release(b, later);
    assert!(!rig.exists(later));
}

#[test]
fn a_removed_directory_that_is_held_stays_too() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let dir = rig.ask(a, &rig.creation("dir", mode::DIRECTORY)).expect("made").ino;
    rig.lookup(b, "dir").expect("found");
    token(&rig.send(a, &Rmdir { dir: Ino::ROOT, name: name("dir") }));
    let pushed = rig.pushed(b);
    assert!(pushed.contains(&Invalidation::Unlinked(dir)), "{pushed:?}");
    rig.release(a, dir);
    assert!(rig.exists(dir));
    rig.release(b, dir);
    assert!(!rig.exists(dir));
}
