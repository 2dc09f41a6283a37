//! A file system that remembers names and bytes, for tests and for measuring the session.
//!
//! Four files are there from the start: `f` has 512 MiB of whatever the reply buffer holds, a read of `slow` is answered
//! later with its offset, a read of `stuck` never, one of `away` by a thread that waits for [`Toy::open_gate`].

#![allow(dead_code, reason = "shared by the example and the tests, which use parts of it")]

use sluice_base::Errno;
use sluice_fuse::abi::{ROOT_ID, flags::fopen};
use sluice_fuse::{Answer, Attr, Body, Entry, Handler, Operation, Reply, ReplyBuffer, Request};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

const VALID: Duration = Duration::from_secs(1000);
/// nodeids of the special files.
const BIG: u64 = 2;
const SLOW: u64 = 3;
const STUCK: u64 = 4;
const AWAY: u64 = 5;
pub const BIG_SIZE: u64 = 512 << 20;
/// Reading a file of this name panics.
pub const PANIC: &str = "panic";

#[derive(Default)]
pub struct Toy {
    state: Mutex<State>,
    /// Reads of `stuck` that are waiting.
    pub stuck: Arc<AtomicUsize>,
    /// Reads of `away` that are waiting.
    pub away: AtomicUsize,
    gate: Mutex<bool>,
    opened: Condvar,
    pub forgotten: AtomicU64,
    pub destroyed: AtomicUsize,
}

struct State {
    names: BTreeMap<(u64, Vec<u8>), u64>,
    nodes: HashMap<u64, Node>,
    next: u64,
}

struct Node {
    mode: u32,
    data: Vec<u8>,
    panics: bool,
}

impl Default for State {
    fn default() -> Self {
        let files = [(BIG, "f"), (SLOW, "slow"), (STUCK, "stuck"), (AWAY, "away")];
        let names = files.iter().map(|&(ino, name)| ((ROOT_ID, name.into()), ino)).collect();
        let node = |mode| Node { mode, data: Vec::new(), panics: false };
        let mut nodes: HashMap<_, _> = files.iter().map(|&(ino, _)| (ino, node(0o100644))).collect();
        nodes.insert(ROOT_ID, node(0o040755));
        Self { names, nodes, next: 10 }
    }
}

impl State {
    fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let node = self.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        let size = if (BIG..=AWAY).contains(&ino) { BIG_SIZE } else { node.data.len() as u64 };
        Ok(Attr {
            ino,
            size,
            blocks: size.div_ceil(512),
            mode: node.mode,
            nlink: 1,
            blksize: 1 << 20,
            ..Attr::default()
        })
    }

    fn entry(&self, ino: u64) -> Result<Entry, Errno> {
        let attr = self.attr(ino)?;
        Ok(Entry { nodeid: ino, generation: 0, attr, entry_valid: VALID, attr_valid: VALID })
    }

    fn add(&mut self, parent: u64, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        let ino = self.next;
        if self.names.contains_key(&(parent, name.to_vec())) {
            return Err(Errno::EEXIST);
        }
        self.next += 1;
        self.names.insert((parent, name.to_vec()), ino);
        self.nodes.insert(ino, Node { mode, data: Vec::new(), panics: name == PANIC.as_bytes() });
        self.entry(ino)
    }

    fn list(&self, parent: u64, offset: u64, mut push: impl FnMut(&Entry, u64, &[u8]) -> bool) -> Result<(), Errno> {
        let names = self.names.range((parent, Vec::new())..(parent + 1, Vec::new()));
        for (cookie, ((_, name), &ino)) in (1..).zip(names).skip(offset as usize) {
            if !push(&self.entry(ino)?, cookie, name) {
                break;
            }
        }
        Ok(())
    }
}

/// Counts a read of `stuck` for as long as its future lives.
struct Stuck(Arc<AtomicUsize>);

impl Drop for Stuck {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Toy {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read(&self, ino: u64, offset: u64, size: u32, reply: &mut ReplyBuffer) -> Result<Answer, Errno> {
        match ino {
            BIG => reply.set_len(u64::from(size).min(BIG_SIZE.saturating_sub(offset)) as usize),
            SLOW => {
                return Ok(Answer::later(async move {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let block = offset.to_le_bytes().repeat(512);
                    Ok(Body::from(block.repeat((size as usize).div_ceil(4096))[..size as usize].to_vec()))
                }));
            }
            AWAY => return Ok(Answer::Away),
            STUCK => {
                self.stuck.fetch_add(1, SeqCst);
                let stuck = Stuck(Arc::clone(&self.stuck));
                return Ok(Answer::later(async move {
                    let _stuck = stuck;
                    std::future::pending().await
                }));
            }
            _ => {
                let state = self.state();
                let node = state.nodes.get(&ino).ok_or(Errno::ESTALE)?;
                assert!(!node.panics, "asked for");
                let start = (offset as usize).min(node.data.len());
                let len = (node.data.len() - start).min(size as usize);
                reply.data_mut(len).copy_from_slice(&node.data[start..start + len]);
                reply.set_len(len);
            }
        }
        Ok(Answer::Done)
    }

    /// Reads of `away` end from now on.
    pub fn open_gate(&self) {
        *self.gate.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let file = &mut state.nodes.get_mut(&ino).ok_or(Errno::ESTALE)?.data;
        let (start, end) = (offset as usize, offset as usize + data.len());
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(data);
        Ok(())
    }

    fn answer(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Result<Answer, Errno> {
        let ino = request.nodeid;
        match request.operation {
            Operation::Lookup { name } => {
                let state = self.state();
                let found = *state.names.get(&(ino, name.to_vec())).ok_or(Errno::ENOENT)?;
                reply.entry(&state.entry(found)?);
            }
            Operation::GetAttr { .. } => reply.attr(&self.state().attr(ino)?, VALID),
            Operation::SetAttr(set) => {
                let mut state = self.state();
                let node = state.nodes.get_mut(&ino).ok_or(Errno::ESTALE)?;
                node.mode = set.mode.unwrap_or(node.mode);
                if let Some(size) = set.size {
                    node.data.resize(size as usize, 0);
                }
                reply.attr(&state.attr(ino)?, VALID);
            }
            Operation::Create { name, mode, .. } => reply.created(&self.state().add(ino, name, mode)?, 0, 0),
            Operation::MkDir { name, mode, .. } => reply.entry(&self.state().add(ino, name, mode | 0o040000)?),
            Operation::Unlink { name } | Operation::RmDir { name } => {
                self.state().names.remove(&(ino, name.to_vec())).ok_or(Errno::ENOENT)?;
            }
            // The kernel sends INTERRUPT for what it waits for synchronously: not for readahead, and not for O_DIRECT
            // under FUSE_ASYNC_DIO.
            Operation::Open { .. } if ino == STUCK || ino == AWAY => reply.opened(0, fopen::DIRECT_IO),
            Operation::Open { .. } | Operation::OpenDir { .. } => reply.opened(0, 0),
            Operation::Read { offset, size, .. } => return self.read(ino, offset, size, reply),
            Operation::Write { offset, data, .. } => {
                self.write(ino, offset, data)?;
                reply.written(data.len() as u32);
            }
            Operation::ReadDir { offset, size, .. } => {
                let mut out = reply.directory(size);
                self.state().list(ino, offset, |e, next, name| out.push(e.attr.ino, next, e.attr.mode, name))?;
            }
            Operation::ReadDirPlus { offset, size, .. } => {
                let mut out = reply.directory_plus(size);
                self.state().list(ino, offset, |entry, next, name| out.push(entry, next, name))?;
            }
            Operation::Flush { .. } | Operation::Release { .. } | Operation::ReleaseDir { .. } => {}
            Operation::Fsync { .. } => return Ok(Answer::Soon(Box::pin(async { Ok(Body::empty()) }))),
            Operation::StatFs => reply.statfs(&sluice_fuse::StatFs { namelen: 255, bsize: 4096, ..Default::default() }),
            _ => return Err(Errno::ENOSYS),
        }
        Ok(Answer::Done)
    }
}

impl Handler for Toy {
    fn handle(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        self.answer(request, reply).unwrap_or_else(Answer::Error)
    }

    fn handle_waiting(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        let Operation::Read { offset, size, .. } = request.operation else { return Answer::Error(Errno::EINVAL) };
        self.away.fetch_add(1, SeqCst);
        drop(self.opened.wait_while(self.gate.lock().unwrap(), |open| !*open).unwrap());
        self.away.fetch_sub(1, SeqCst);
        reply.put(&offset.to_le_bytes().repeat(size as usize / 8));
        Answer::Done
    }

    fn forget(&self, _nodeid: u64, lookups: u64) {
        self.forgotten.fetch_add(lookups, SeqCst);
    }

    fn destroyed(&self) {
        self.destroyed.fetch_add(1, SeqCst);
    }
}
