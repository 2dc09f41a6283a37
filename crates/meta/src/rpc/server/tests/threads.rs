//! Many threads in one server.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const SESSIONS: usize = 4;
const FILES: u64 = 150;

/// Makes, looks up, opens and unlinks files that the others do the same with; does not wait for what is held.
fn churn(server: &Server, peer: Peer) {
    for number in 1..=2 * FILES {
        let path = format!("file{}", number % 7);
        let (name, dir) = (Name::new(path.as_bytes()).expect("a name"), Ino::ROOT);
        let create = Create { dir, name, mode: mode::REGULAR | 0o644, rdev: 0, target: b"", caller: CALLER };
        let count = Number { number, seen_up_to: number - 1, again: None };
        let (method, body) = match number % 2 {
            0 => (Method::Unlink, client::change(&Unlink { dir, name }, count)),
            _ => (Method::Create, client::change(&create, count)),
        };
        server.handle(at(1), Some(peer), method.number(), &body);
        let body = client::request(&Lookup { dir, name });
        let Outcome::Reply(reply) = server.handle(at(1), Some(peer), Method::Lookup.number(), &body) else {
            panic!("a read waits for nobody")
        };
        if let Ok(found) = client::reply::<Lookup<'_>>(&reply.body).expect("an answer").answer {
            let open = client::request(&Open { ino: found.value.ino });
            server.handle(at(1), Some(peer), Method::Open.number(), &open);
        }
    }
}

fn serve(server: &Server, done: &AtomicBool) {
    loop {
        let last = done.load(Ordering::SeqCst);
        let events = server.poll(at(1));
        for event in &events {
            if let Event::Push { peer, body } = event {
                server.acked(at(1), *peer, client::push(body).expect("a push").1.up_to);
            }
        }
        if last && events.is_empty() {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn threads_neither_block_nor_break_each_other() {
    let rig = Rig::new();
    let peers: Vec<Peer> = (0..SESSIONS).map(|i| rig.begin(&i.to_string())).collect();
    let (server, done) = (&rig.server, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let pump = scope.spawn(move || serve(server, done));
        let churners: Vec<_> = peers.iter().map(|peer| scope.spawn(move || churn(server, *peer))).collect();
        churners.into_iter().for_each(|thread| thread.join().expect("no panic"));
        done.store(true, Ordering::SeqCst);
        pump.join().expect("no panic");
    });
    assert_eq!(server.state.lock().holds.len(), 0);
    for peer in peers {
        rig.ask(peer, &End {}).expect("ended");
    }
    rig.poll();
    rig.poll();
    let names = server.namespace();
    assert_eq!(names.orphans().expect("read"), []);
    assert!(crate::fsck::check(names.store(), &mut |_| {}).expect("checked").is_clean());
}
