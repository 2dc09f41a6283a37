//! The group as a reader uses it: the object's owner is asked, then the next in its order, then the caller goes to the store.
//!
//! Who owns a **hot** object and the next in its order are asked in turns (`hot`); the second one fills from the first.
//!
//! A slow owner costs little: the next one is asked beside it (`HEDGE_AFTER`), at first for what it has only, so that an owner
//! which waits for the store does not make two ask the store; the first good answer wins, and the other request is cancelled.

mod hedge;
mod hot;
mod link;
mod warm;

use crate::{
    Elsewhere, Member, Members, NodeName, View,
    message::{ReadSegments, Segment},
};
use futures::future::{BoxFuture, FutureExt};
use hot::Hot;
use link::{Link, LinkError};
use sluice_base::{Clock, Entropy, ObjectId, Pages};
use sluice_object::StoredObject;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_wire::{Hello, Options};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};

/// Owners asked before the store is.
const OWNERS_MAX: usize = 2;
/// Segments that are asked for at once, over all nodes: 64 MiB of answers. Others wait their turn.
const SEGMENTS_MAX: usize = 2048;

/// Settings of a [`Group`].
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// How this peer says hello to nodes.
    pub hello: Hello,
    /// This peer's own name, if it is a node: it does not ask itself.
    pub own: Option<NodeName>,
    /// Time for all nodes together, connecting included; then the store is asked. 4 MiB take 0.4 s at 100 Mbit/s, and a store that
    /// answers at all does so within a second.
    pub try_time: Duration,
    /// Where the buffers of answers come from.
    pub pages: Arc<Pages>,
    /// A slow owner is overtaken by the next one; without it it is waited for as long as `try_time`.
    pub hedge: bool,
    /// Who owns a hot object and the next in its order are asked in turns.
    pub second_owner: bool,
    /// Settings of each connection.
    pub connection: Options,
    /// Time for a node that had the object before the list changed: it answers from its cache or not at all.
    pub previous_time: Duration,
}

impl GroupOptions {
    /// The usual settings.
    pub fn new(hello: Hello) -> Self {
        Self {
            hello,
            own: None,
            try_time: Duration::from_secs(2),
            hedge: true,
            second_owner: true,
            connection: Options::default(),
            previous_time: Duration::from_millis(500),
            // What a few readers of 1 MiB have under way.
            pages: Pages::new(16 << 20),
        }
    }
}

/// No member gave the segments: the store has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// Nothing is placed with anyone.
    #[error("the group has no members")]
    Empty,
    /// Those that were asked failed, and why is in the log, or they are avoided since they failed before.
    #[error("no owner answers")]
    NoOwner,
    /// The store does not have the object, says a node.
    #[error("the object is not in the store")]
    Gone,
}

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Epoch of the list.
    pub epoch: u32,
    /// Reads that a node answered.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Owners that did not answer, where somebody else was asked then.
    pub fallbacks: u64,
    /// Reads that no node answered.
    pub misses: u64,
    /// Reads of hot objects that were asked of their second owner.
    pub seconds: u64,
    /// By member: reads that it answered, and their bytes.
    pub by_member: Vec<(NodeName, u64, u64)>,
}

/// What is known of the group, and the ways to its members.
pub struct Group {
    options: GroupOptions,
    view: Mutex<View>,
    links: Mutex<HashMap<NodeName, Arc<Link>>>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    room: Semaphore,
    stale: Notify,
    hot: Mutex<Hot>,
    seconds: AtomicU64,
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    fallbacks: AtomicU64,
    misses: AtomicU64,
}

impl Group {
    /// A group without members yet. Connections are made when they are first used, on the runtime of who uses them.
    pub fn new(options: GroupOptions, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            room: Semaphore::new(SEGMENTS_MAX),
            options,
            view: Mutex::default(),
            links: Mutex::default(),
            clock,
            entropy,
            stale: Notify::new(),
            hot: Mutex::default(),
            seconds: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// The list of now.
    pub fn members(&self) -> Arc<Members> {
        self.view.lock().current().clone()
    }

    /// A list has come from the server.
    pub fn update(&self, members: Members) {
        let epoch = members.epoch();
        let mut view = self.view.lock();
        if !view.update(members, self.clock.monotonic()) {
            return;
        }
        let current = view.current().clone();
        drop(view);
        tracing::debug!(epoch, members = current.list().len(), "the group has changed");
        // Who is out of the list, or elsewhere, is not spoken to again.
        self.links.lock().retain(|name, link| {
            link.client.set_epoch(epoch);
            current.get(name).is_some_and(|member| member.address == link.address)
        });
    }

    /// A peer knows another list: the server is asked soon.
    pub fn saw_epoch(&self, epoch: u32) {
        if epoch != 0 && epoch != self.members().epoch() {
            self.stale.notify_one();
        }
    }

    /// Resolves when the list is known to be stale.
    pub(crate) async fn stale(&self) {
        self.stale.notified().await;
    }

    /// Segments of a stored object, in their order, each one checked.
    pub async fn read(&self, object: StoredObject, range: Range<u32>) -> Result<Vec<Segment>, GroupError> {
        let outcome = self.read_uncounted(object, range).await;
        match &outcome {
            Ok(segments) => {
                self.hits.fetch_add(1, Relaxed);
                self.hit_bytes.fetch_add(bytes_of(segments), Relaxed);
            }
            Err(GroupError::Empty) => {}
            Err(_) => drop(self.misses.fetch_add(1, Relaxed)),
        }
        outcome
    }

    async fn read_uncounted(&self, object: StoredObject, range: Range<u32>) -> Result<Vec<Segment>, GroupError> {
        let members = self.members();
        let mut owners = members.owners(object.id(), OWNERS_MAX);
        if owners.is_empty() {
            return Err(GroupError::Empty);
        }
        let now = self.clock.monotonic();
        let may = self.options.second_owner && owners.len() > 1;
        if may && self.hot.lock().is_seconds_turn(object.id(), range.len() as u32, now) {
            self.seconds.fetch_add(1, Relaxed);
            owners.swap(0, 1);
        }
        let _room = self.room.acquire_many(range.len() as u32).await;
        let ask = ReadSegments { object, range, cached_only: false };
        match self.ask_owners(&owners, &ask).await {
            Ok(segments) => Ok(segments),
            Err(LinkError::Gone) => Err(GroupError::Gone),
            Err(_) => Err(GroupError::NoOwner),
        }
    }

    async fn ask(
        &self,
        member: &Member,
        ask: &ReadSegments,
        within: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Result<Vec<Segment>, LinkError> {
        let link = self.link(member);
        let (segments, epoch) = link.read(ask, within, begun).await?;
        self.saw_epoch(epoch);
        Ok(segments)
    }

    fn link(&self, member: &Member) -> Arc<Link> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(&member.name).filter(|link| link.address == member.address) {
            return link.clone();
        }
        let link = Link::new(member.address, &self.options, self.clock.clone(), self.entropy.clone());
        link.client.set_epoch(self.view.lock().current().epoch());
        let link = Arc::new(link);
        links.insert(member.name.clone(), link.clone());
        link
    }

    /// Counts since the start.
    pub fn stats(&self) -> GroupStats {
        let links = self.links.lock();
        let of = |(name, link): (&NodeName, &Arc<Link>)| {
            (name.clone(), link.hits.load(Relaxed), link.hit_bytes.load(Relaxed))
        };
        let mut by_member: Vec<_> = links.iter().map(of).collect();
        drop(links);
        by_member.sort();
        GroupStats {
            epoch: self.members().epoch(),
            hits: self.hits.load(Relaxed),
            hit_bytes: self.hit_bytes.load(Relaxed),
            fallbacks: self.fallbacks.load(Relaxed),
            misses: self.misses.load(Relaxed),
            seconds: self.seconds.load(Relaxed),
            by_member,
        }
    }
}

/// A node asks others for what it misses, before the store: see `Group::holders`.
impl Elsewhere for Group {
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Segment>>> {
        let holders = self.holders(object.id());
        async move {
            let ask = ReadSegments { object, range, cached_only: true };
            for holder in holders {
                if let Ok(segments) = self.ask(&holder, &ask, self.options.previous_time, None).await {
                    return Some(segments);
                }
            }
            None
        }
        .boxed()
    }
}

impl Group {
    /// Who may have an object that this node misses: who is about to leave and had it; its owner of now, as this node is asked in
    /// his place for what is hot, or when he is slow; its owner of before the list changed.
    fn holders(&self, object: ObjectId) -> Vec<Member> {
        let view = self.view.lock();
        let current = view.current();
        let candidates = [
            current.draining_owner(object),
            current.owner(object),
            view.previous_owner(object, self.clock.monotonic()),
        ];
        let mut holders: Vec<Member> = Vec::new();
        for member in candidates.into_iter().flatten() {
            let is_self = Some(&member.name) == self.options.own.as_ref();
            if !is_self && holders.iter().all(|known| known.name != member.name) {
                holders.push(member.clone());
            }
        }
        holders
    }
}

fn bytes_of(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.bytes.len() as u64).sum()
}
