//! Every message comes back as it went, and any bytes are parsed or refused.

use super::*;
use crate::{
    Attr, Caller, Error, RenameMode, SetAttributes, SetTime, SizeChange, Unlinked, XattrMode,
    extent::{Extent, Place},
    records::{Inode, ObjectRecord, Usage},
    rpc::{
        client,
        locks::{AssertedLock, LockKind, LockMode, LockRange},
        values::{Body, Extents, Name, encode},
    },
    store::{LogError, MetaError},
};
use proptest::prelude::*;
use sluice_base::{Ino, ObjectId, SessionId, Timestamp};

/// What the fields of a message are made from.
#[derive(Clone, Debug)]
struct Stuff {
    a: u64,
    b: u64,
    c: u32,
    yes: bool,
    name: Vec<u8>,
    other: Vec<u8>,
    blob: Vec<u8>,
    time: Timestamp,
    choice: u8,
}

fn stuff() -> impl Strategy<Value = Stuff> {
    let name = prop::collection::vec(any::<u8>().prop_filter("no NUL, no /", |b| *b != 0 && *b != b'/'), 1..=255);
    let time = (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Timestamp { secs, nanos });
    let blob = prop::collection::vec(any::<u8>(), 0..5000);
    ((any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>()), name.clone(), name, blob, time, 0..3u8).prop_map(
        |((a, b, c, yes), name, other, blob, time, choice)| Stuff { a, b, c, yes, name, other, blob, time, choice },
    )
}

impl Stuff {
    fn name(&self) -> Name<'_> {
        Name::new(&self.name).expect("a name")
    }
    fn object(&self) -> ObjectId {
        ObjectId([self.c as u8 | 1; 16])
    }
    fn caller(&self) -> Caller {
        Caller { uid: self.c, gid: self.a as u32 }
    }
    fn attr(&self) -> Attr {
        let (ino, mode, nlink, uid, gid, rdev) = (Ino(self.a), self.c, 7, self.c, 9, self.b as u32);
        let (size, held_bytes, change) = (self.b, self.a, self.b);
        let (atime, mtime, ctime, btime) = (self.time, Timestamp::default(), self.time, self.time);
        Attr { ino, mode, nlink, uid, gid, rdev, size, held_bytes, change, atime, mtime, ctime, btime }
    }
    fn inode(&self) -> Inode {
        let root = crate::namespace::new_inode(self.c, 1, 2, self.time);
        Inode { size: self.b, flags: self.choice, ..root }
    }
    fn size(&self) -> SizeChange {
        [SizeChange::Keep, SizeChange::AtLeast(self.a), SizeChange::Exactly(self.b)][usize::from(self.choice)]
    }
    fn publish(&self) -> Publish<'_> {
        let body = Body::new(&self.blob[..self.blob.len().min(4096)]);
        let place = self.yes.then_some(Place { object: self.object(), offset: self.c % 1000 });
        let extent = Extent { offset: self.a >> 2, len: u64::from(self.c % 100_000) + 1, place };
        Publish {
            ino: Ino(self.a),
            extents: Extents::new(vec![extent; usize::from(self.choice)]).expect("sound ones"),
            body: [None, Some(None), Some(body)][usize::from(self.choice)],
            size: self.size(),
            mtime: self.yes.then_some(self.time),
            kill_suidgid: self.yes,
            new_objects: vec![self.object(); usize::from(self.choice)],
            locked: self.yes,
        }
    }

    fn reads(&self) -> Vec<Request<'_>> {
        let (ino, dir) = (Ino(self.a), Ino(self.b));
        let (after, until, with_attributes, bytes_max) = (self.a, self.b, self.yes, self.c);
        vec![
            Request::Lookup(Lookup { dir, name: self.name() }),
            Request::Getattr(Getattr { ino }),
            Request::GetInode(GetInode { ino }),
            Request::Readlink(Readlink { ino }),
            Request::ReadDir(ReadDir { dir, after, until, with_attributes, bytes_max }),
            Request::LastCookie(LastCookie {}),
            Request::Parent(Parent { dir }),
            Request::Getxattr(Getxattr { ino, name: &self.name }),
            Request::Listxattr(Listxattr { ino }),
            Request::NextSpan(NextSpan { ino, span: self.b }),
            Request::GetExtents(GetExtents { ino, first: self.a, end: self.b }),
            Request::GetBody(GetBody { ino }),
            Request::Open(Open { ino }),
            Request::GetObject(GetObject { id: self.object() }),
            Request::GetUsage(GetUsage {}),
        ]
    }

    fn changes(&self) -> Vec<Request<'_>> {
        let (ino, dir, mode, caller, name) = (Ino(self.a), Ino(self.b), self.c, self.caller(), self.name());
        let other = Name::new(&self.other).expect("a name");
        let how = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][usize::from(self.choice)];
        let xattr = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][usize::from(self.choice)];
        let set = SetAttributes {
            mode: self.yes.then_some(self.c),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::To(self.time)),
            ..SetAttributes::default()
        };
        vec![
            Request::Create(Create { dir, name, mode, rdev: self.c, target: &self.blob, caller }),
            Request::CreateUnnamed(CreateUnnamed { dir, mode, caller }),
            Request::Link(Link { ino, dir, name }),
            Request::Unlink(Unlink { dir, name }),
            Request::Rmdir(Rmdir { dir, name }),
            Request::Rename(Rename { from_dir: ino, from: name, to_dir: dir, to: other, how }),
            Request::Setattr(Setattr { ino, set }),
            Request::UpdateAtime(UpdateAtime { ino, at: self.time }),
            Request::Setxattr(Setxattr { ino, name: &self.name, value: &self.blob, how: xattr }),
            Request::Removexattr(Removexattr { ino, name: &self.name }),
            Request::Publish(self.publish()),
            Request::ObjectStored(ObjectStored { id: self.object(), segments: self.c, bytes: self.b }),
            Request::ForgetObject(ForgetObject { id: self.object() }),
        ]
    }

    fn of_session(&self) -> Vec<Request<'_>> {
        let inos = vec![Ino(self.a), Ino(self.b)];
        let (session, epoch) = (SessionId(self.a), self.c);
        let take_over = self.yes.then_some(Claim { epoch: self.c, secret: self.b });
        vec![
            Request::Begin(Begin { name: &self.name }),
            Request::Resume(Resume { session, epoch, take_over, uses: inos.clone() }),
            Request::Renew(Renew {}),
            Request::End(End {}),
            Request::Release(Release { inos: inos.clone(), cached: self.yes }),
            Request::Hold(Hold { inos }),
            Request::ListSessions(ListSessions {}),
            Request::SyncLog(SyncLog { life: self.c, record: self.b }),
            Request::Resent(Resent { barred: 0 }),
            Request::Ship(Ship { line: self.a }),
        ]
    }

    fn of_locks(&self) -> Vec<Request<'_>> {
        let (ino, owner, pid, attempt, call, wait) = (Ino(self.a), self.b, self.c, self.a, self.b, self.yes);
        let range = LockRange::new(self.c.into(), u64::from(self.c) + (self.a >> 2)).expect("a range");
        let mode = if self.yes { LockMode::Shared } else { LockMode::Exclusive };
        let kind = if self.choice == 0 { LockKind::Record } else { LockKind::Flock };
        let locks = vec![AssertedLock { ino, kind, owner, range, mode, pid }; usize::from(self.choice)];
        let some = (self.choice > 0).then_some(mode);
        vec![
            Request::Lock(Lock { ino, kind, owner, range, mode: some, pid, attempt, call, wait }),
            Request::TestLock(TestLock { ino, kind, owner, range, mode }),
            Request::AssertLocks(AssertLocks { locks, attempt, last: self.yes }),
        ]
    }

    fn invalidations(&self) -> Vec<Invalidation> {
        use Invalidation::*;
        let ino = Ino(self.a);
        vec![Attr(ino), Data(ino), Extents(ino), Entry(ino, self.name.clone()), Inode(ino), Unlinked(ino), Everything]
    }

    fn faults(&self) -> Vec<Fault> {
        let text = String::from_utf8_lossy(&self.name).into_owned();
        let log = |error| Error::Store(MetaError::Log(error));
        let mut all = vec![
            Fault::Fenced,
            Fault::Expired,
            Fault::Ended,
            Fault::LocksLost,
            Fault::OtherLine(self.a),
            Fault::NotResumed,
            Fault::Malformed,
            Fault::Version(self.choice),
            Fault::Method(self.c as u16),
            Fault::Window,
            Fault::Forgotten,
            Fault::TooManyOpen,
            Fault::Server(text.clone()),
        ];
        let meta = [
            Error::NotFound,
            Error::Gone,
            Error::Stale,
            Error::Exists,
            Error::NotDirectory,
            Error::IsDirectory,
            Error::NotEmpty,
            Error::NameTooLong,
            Error::TooManyLinks,
            Error::NoAttribute,
            Error::AttributeTooLarge,
            Error::AttributeName,
            Error::FileTooLarge,
            Error::NotPermitted,
            Error::Corrupt(text.clone()),
            log(LogError::Full),
            log(LogError::DiskFull),
            log(LogError::Failed(text.clone())),
            Error::Store(MetaError::Checkpoint(text)),
        ];
        all.extend(meta.into_iter().map(Fault::Meta));
        all
    }
}

/// A reply comes back, as a value or as bytes again.
fn returns<'a, C: Call<'a>>(stuff: &Stuff, value: C::Reply)
where
    C::Reply: PartialEq + std::fmt::Debug,
{
    let (life, synced, record) = (stuff.c, stuff.a, stuff.b);
    let head = ReplyHead { cacheable: stuff.yes, renewed: !stuff.yes, stamp: stuff.a, life, synced, record };
    let is_change = matches!(C::METHOD.effect(), Effect::Change | Effect::Touch);
    let touched = if is_change { stuff.invalidations() } else { Vec::new() };
    let mut bytes = if is_change { encode(&touched) } else { Vec::new() };
    value.put(&mut bytes);
    let dirs = if is_change { vec![stuff.attr(); usize::from(stuff.choice)] } else { Vec::new() };
    if is_change {
        dirs.put(&mut bytes);
    }
    let body = head.encode(Ok(&bytes));
    assert!(is_reply(C::METHOD, &body));
    let found = client::reply::<C>(&body).expect("a reply");
    assert_eq!(found.head, head);
    assert!(matches!(ReplyHead::outcome(&body), Ok((found, Ok(()))) if found == head));
    assert_eq!(found.answer.expect("no fault"), Changed { value, touched, dirs });
}

fn replies(stuff: &Stuff) {
    let span = SpanRecords {
        span: stuff.a,
        records: vec![SpanRecord { sequence: stuff.b, bytes: stuff.blob.clone() }; usize::from(stuff.choice)],
    };
    let (name, attr) = (stuff.name.clone(), stuff.yes.then(|| stuff.attr()));
    let entry = PageEntry { ino: Ino(stuff.a), kind: stuff.c, cookie: stuff.b, name: name.clone(), attr };
    let unlinked = Unlinked { ino: Ino(stuff.a), orphaned: stuff.yes, nlink: stuff.c };
    let body = stuff.yes.then(|| stuff.blob.clone());
    let first_span = stuff.yes.then(|| span.clone());
    let (session, epoch, lease_ms) = (SessionId(stuff.a), stuff.c, 15_000);
    let (inodes, open, pushes, left_ms) = (stuff.a, stuff.b, 3, 4);
    let state = [Liveness::Live, Liveness::Grace, Liveness::Expired][usize::from(stuff.choice)];
    returns::<Lookup<'_>>(stuff, stuff.attr());
    returns::<GetInode>(stuff, Shape { attr: stuff.attr(), inode: stuff.inode() });
    returns::<ReadDir>(stuff, Page { entries: vec![entry; usize::from(stuff.choice)], end: stuff.yes });
    returns::<LastCookie>(stuff, stuff.a);
    returns::<Parent>(stuff, Ino(stuff.a));
    returns::<Readlink>(stuff, stuff.blob.clone());
    returns::<NextSpan>(stuff, stuff.yes.then_some(stuff.a));
    returns::<GetExtents>(stuff, ExtentPage { spans: vec![span.clone()], next: stuff.yes.then_some(stuff.b) });
    returns::<GetBody>(stuff, body.clone());
    returns::<Open>(stuff, Opened { attr: stuff.attr(), inode: stuff.inode(), body, first_span });
    returns::<GetObject>(stuff, Some(ObjectRecord::open(SessionId(stuff.b))));
    returns::<GetUsage>(stuff, Usage { bytes: stuff.a as i64, inodes: stuff.b as i64 });
    returns::<Create<'_>>(stuff, stuff.attr());
    let (attr, inode, first_span) = (stuff.attr(), stuff.inode(), stuff.yes.then(|| span.clone()));
    returns::<Publish<'_>>(stuff, Published { attr, inode, first_span });
    returns::<Unlink<'_>>(stuff, unlinked.clone());
    returns::<Rename<'_>>(stuff, stuff.yes.then_some(unlinked));
    returns::<Setxattr<'_>>(stuff, ());
    returns::<ForgetObject>(stuff, stuff.yes);
    returns::<Begin<'_>>(stuff, Begun { session, epoch, lease_ms, line: stuff.a });
    let kept = stuff.yes;
    returns::<Resume>(stuff, Resumed { epoch, lease_ms, kept, pushes, numbers: stuff.b, line: stuff.a });
    let status = SessionStatus { session, epoch, name, state, left_ms, inodes, open, pushes };
    returns::<SyncLog>(stuff, stuff.yes);
    returns::<ListSessions>(stuff, vec![status]);
    let held = LockInTheWay { range: LockRange::WHOLE, mode: LockMode::Shared, pid: stuff.c };
    returns::<TestLock>(
        stuff,
        [LockTest::Free, LockTest::Held(held), LockTest::Grace][usize::from(stuff.choice)].clone(),
    );
    returns::<Lock>(stuff, [LockAnswer::Granted, LockAnswer::Busy, LockAnswer::Grace][usize::from(stuff.choice)]);
    returns::<AssertLocks>(stuff, stuff.yes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn requests_come_back(stuff in stuff()) {
        let mut methods = Vec::new();
        for request in [stuff.reads(), stuff.changes(), stuff.of_session(), stuff.of_locks()].concat() {
            let method = request.method();
            let numbered = method.effect() == Effect::Change;
            let number = if numbered { Number { number: stuff.a | 1, seen_up_to: stuff.b, again: stuff.yes.then_some(Ino(stuff.a)) } } else { Number::default() };
            let body = request.encode(number);
            prop_assert_eq!(parse(method.number(), &body).expect("a request"), Parsed { request, number });
            prop_assert!(parse(method.number(), &[&body[..], &[0]].concat()).is_err());
            for cut in [0, 1, body.len() / 2, body.len() - 1] {
                let cut = cut.min(body.len() - 1);
                prop_assert!(parse(method.number(), &body[..cut]).is_err());
            }
            methods.push(method);
        }
        prop_assert_eq!(methods, Method::ALL);
    }

    #[test]
    fn replies_and_faults_come_back(stuff in stuff()) {
        replies(&stuff);
        for fault in stuff.faults() {
            let body = ReplyHead::default().encode(Err(&encode(&fault)));
            let found = client::reply::<Getattr>(&body).expect("a reply").answer.expect_err("a fault");
            prop_assert_eq!(format!("{found:?}"), format!("{fault:?}"));
        }
    }

    #[test]
    fn pushes_come_back(stuff in stuff()) {
        let push = Push { number: stuff.a | 1, items: stuff.invalidations() };
        let (found, ack) = client::push(&push.encode()).expect("a push");
        prop_assert_eq!(&found, &push);
        prop_assert_eq!(Ack::decode(&ack.encode()).expect("an ack").up_to, push.number);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), versioned: bool) {
        if let (true, Some(first)) = (versioned, bytes.first_mut()) {
            *first = VERSION;
        }
        for method in Method::ALL {
            let _ = parse(method.number(), &bytes);
            is_reply(*method, &bytes);
        }
        let _ = (Push::decode(&bytes), Ack::decode(&bytes));
    }
}

#[test]
fn a_list_that_claims_more_than_there_is_costs_nothing() {
    let mut body = vec![VERSION];
    body.extend(u32::MAX.to_le_bytes());
    assert!(matches!(parse(Method::Hold.number(), &body), Err(Fault::Malformed)));
}

#[test]
fn extents_are_bounded() {
    let at = |offset, len, place| Extent { offset, len, place };
    let place = Some(Place { object: ObjectId([1; 16]), offset: 1 });
    assert!(Extents::new(vec![at(0, 4 << 20, place)]).is_none(), "goes on behind its object");
    assert!(Extents::new(vec![at(0, 0, None)]).is_none());
    assert!(Extents::new(vec![at(u64::MAX - 1, 2, None)]).is_none());
    assert!(Extents::new(vec![at(0, i64::MAX as u64, None)]).is_none(), "too many spans");
    assert!(Extents::new(vec![at(0, 64 << 30, None)]).is_some());
    assert!(Extents::new(vec![at(0, 64 << 30, None), at(64 << 30, 1, None)]).is_none());
}

#[test]
fn other_versions_and_methods_are_named() {
    assert!(matches!(parse(1, &[9]), Err(Fault::Version(9))));
    assert!(matches!(parse(999, &[VERSION]), Err(Fault::Method(999))));
}
