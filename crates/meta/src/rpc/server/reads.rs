//! Requests that change nothing: read first, note the interest second, and read again if something changed in between.

use super::{Outcome, Server, State, ready};
use crate::{
    Error, Namespace,
    rpc::{
        codec::Wire,
        fault::Fault,
        interest::{ATTR, DATA, ENTRIES, Grant, Noted},
        message::*,
        sessions::Peer,
        values::{Name, encode},
    },
};
use sluice_base::Ino;
use sluice_run::lock::MutexGuard;
use std::{ops::ControlFlow, time::Duration};

/// Reads that meet a change so often are answered, but not to be cached.
const TRIES: usize = 4;

/// An answer as bytes with what it lets the session cache. An error may be worth caching too: that there is no such name.
struct Found {
    answer: Result<Vec<u8>, Fault>,
    grants: Vec<Grant>,
}

impl Server {
    /// Answers a request of [`Effect::Read`].
    pub(super) fn read(&self, now: Duration, peer: Peer, request: &Request<'_>) -> Result<Outcome, Fault> {
        let (renewed, mut since) = {
            let mut state = self.state.lock();
            let renewed = state.admit(now, peer)?;
            state.check_resent(peer.session)?;
            (renewed, state.interest.now())
        };
        for _ in 0..TRIES {
            let found = look(&self.names, request);
            let mut state = self.settled(&found.grants);
            state.sessions.check(peer)?;
            let grants = used_if_orphaned(&state, &found.grants);
            match state.interest.note(peer.session, &grants, since) {
                Noted::Stale => since = state.interest.now(),
                Noted::Full => return Err(Fault::TooManyOpen),
                Noted::Yes(fallen) => {
                    for ino in fallen {
                        state.push(peer.session, Invalidation::Inode(ino), now);
                    }
                    let head = state.head(peer.session, !found.grants.is_empty(), renewed);
                    return Ok(answer(head, &found));
                }
            }
        }
        self.read_uncached(peer, request, renewed)
    }

    /// Notes uses first and looks second, so that what is answered as open stays.
    fn read_uncached(&self, peer: Peer, request: &Request<'_>, renewed: bool) -> Result<Outcome, Fault> {
        let uses: Vec<Grant> = look(&self.names, request).grants.into_iter().filter(|grant| grant.used).collect();
        let mut state = self.settled(&uses);
        state.sessions.check(peer)?;
        let uses: Vec<Grant> = uses.into_iter().map(|grant| Grant { cached: 0, ..grant }).collect();
        if state.interest.note(peer.session, &uses, u64::MAX) == Noted::Full {
            return Err(Fault::TooManyOpen);
        }
        let head = state.head(peer.session, false, renewed);
        drop(state);
        let found = look(&self.names, request);
        if found.answer.is_err() {
            let mut state = self.state.lock();
            uses.iter().for_each(|grant| state.interest.release(peer.session, grant.ino));
        }
        Ok(answer(head, &found))
    }

    /// The state, when none of these inodes is being removed.
    fn settled(&self, grants: &[Grant]) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while !state.removing.is_empty() && grants.iter().any(|grant| state.removing.contains_key(&grant.ino)) {
            self.removed.wait(&mut state);
        }
        state
    }
}

/// What has no name lives as long as it is used, so whoever looks at it uses it.
fn used_if_orphaned(state: &State, grants: &[Grant]) -> Vec<Grant> {
    grants.iter().map(|grant| Grant { used: grant.used || state.orphans.contains(&grant.ino), ..*grant }).collect()
}

fn answer(head: ReplyHead, found: &Found) -> Outcome {
    ready(match &found.answer {
        Ok(bytes) => head.encode(Ok(bytes)),
        Err(fault) => head.encode(Err(&encode(fault))),
    })
}

fn grant(ino: Ino, cached: u8) -> Grant {
    Grant { ino, cached, used: false }
}

/// An answer that lets the session cache bits of one inode.
fn of<'a, T: Wire<'a>>(ino: Ino, cached: u8, answer: Result<T, Error>) -> Found {
    let grants = if answer.is_ok() && cached != 0 { vec![grant(ino, cached)] } else { Vec::new() };
    Found { answer: answer.map(|value| encode(&value)).map_err(Fault::from), grants }
}

fn look(names: &Namespace, request: &Request<'_>) -> Found {
    let none = Ino(0);
    match request {
        Request::Lookup(Lookup { dir, name }) => lookup(names, *dir, *name),
        Request::Getattr(Getattr { ino }) => of(*ino, ATTR, names.getattr(*ino)),
        Request::GetInode(GetInode { ino }) => {
            of(*ino, ATTR | DATA, names.shape(*ino).map(|(attr, inode)| Shape { attr, inode }))
        }
        Request::Readlink(Readlink { ino }) => of(*ino, ATTR, names.readlink(*ino)),
        Request::ReadDir(read) => read_dir(names, read),
        Request::LastCookie(_) => of(none, 0, Ok(names.last_cookie())),
        Request::Parent(Parent { dir }) => of(*dir, ATTR, names.parent(*dir)),
        Request::Getxattr(Getxattr { ino, name }) => getxattr(names, *ino, name),
        Request::Listxattr(Listxattr { ino }) => of(*ino, ATTR, names.listxattr(*ino)),
        Request::NextSpan(NextSpan { ino, span }) => {
            let in_file = *span < Namespace::SPANS;
            of(*ino, DATA, if in_file { names.next_span(*ino, *span) } else { Ok(None) })
        }
        Request::GetExtents(GetExtents { ino, first, end }) => {
            of(*ino, DATA, names.extent_page(*ino, *first..(*end).min(Namespace::SPANS)))
        }
        Request::GetBody(GetBody { ino }) => of(*ino, DATA, names.body(*ino).map(|body| body.map(|b| b.to_vec()))),
        Request::Open(Open { ino }) => {
            let found = of(*ino, ATTR | DATA, names.opened(*ino));
            let grants = found.grants.into_iter().map(|grant| Grant { used: true, ..grant }).collect();
            Found { grants, ..found }
        }
        Request::GetObject(GetObject { id }) => of(none, 0, names.object(*id)),
        Request::GetUsage(_) => of(none, 0, names.usage()),
        // The others are not reads, and are not brought here.
        _ => Found { answer: Err(Fault::Malformed), grants: Vec::new() },
    }
}

fn lookup(names: &Namespace, dir: Ino, name: Name<'_>) -> Found {
    let answer = names.lookup(dir, name.bytes());
    let mut grants = Vec::new();
    match (&answer, name.bytes()) {
        (Ok(attr), b".") => grants.push(grant(attr.ino, ATTR)),
        // `..` is known with the directory's attributes.
        (Ok(attr), b"..") => grants.extend([grant(dir, ATTR), grant(attr.ino, ATTR)]),
        (Ok(attr), _) => grants.extend([grant(dir, ENTRIES), grant(attr.ino, ATTR)]),
        (Err(Error::NotFound), _) if names.getattr(dir).is_ok() => grants.push(grant(dir, ENTRIES)),
        _ => {}
    }
    Found { answer: answer.map(|attr| encode(&attr)).map_err(Fault::from), grants }
}

fn getxattr(names: &Namespace, ino: Ino, name: &[u8]) -> Found {
    let answer = names.getxattr(ino, name);
    let cacheable = matches!(answer, Ok(_) | Err(Error::NoAttribute));
    let grants = if cacheable { vec![grant(ino, ATTR)] } else { Vec::new() };
    Found { answer: answer.map(|value| encode(&value)).map_err(Fault::from), grants }
}

fn read_dir(names: &Namespace, read: &ReadDir) -> Found {
    let bytes_max = (read.bytes_max as usize).min(Page::BYTES_MAX);
    let mut page = Page { entries: Vec::new(), end: true };
    let (mut bytes, mut grants) = (0, vec![grant(read.dir, ENTRIES)]);
    let result = names.read_dir(read.dir, read.after, read.until, read.with_attributes, &mut |found| {
        let (entry, attr) = (found.entry, found.attr);
        let entry = PageEntry { ino: entry.ino, kind: entry.kind, cookie: entry.cookie, name: entry.name, attr };
        let len = encode(&entry).len();
        if bytes + len > bytes_max && !page.entries.is_empty() {
            page.end = false;
            return ControlFlow::Break(());
        }
        bytes += len;
        grants.extend(entry.attr.as_ref().map(|attr| grant(attr.ino, ATTR)));
        page.entries.push(entry);
        ControlFlow::Continue(())
    });
    match result {
        Ok(()) => Found { answer: Ok(encode(&page)), grants },
        Err(error) => Found { answer: Err(error.into()), grants: Vec::new() },
    }
}
