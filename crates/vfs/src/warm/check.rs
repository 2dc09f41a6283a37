//! How much of a path is cached where, and giving it up here.

use super::walk::{FoundFile, Need, Set, bytes_in};
use crate::Vfs;
use futures::StreamExt;
use sluice_base::{Errno, Ino};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::mpsc;

/// Objects that nodes are asked about at once.
const ASKED_MAX: usize = 1024;
/// Files that wait.
const QUEUE_MAX: usize = 1024;
const LOADS_MAX: usize = 4;

/// What is cached of the files below a path. Bytes are those of files, holes and small files in the metadata left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Held {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that this mount has and the store does not yet: they are not evicted.
    pub unstored_bytes: u64,
    /// Bytes in this mount's own cache, those not stored included.
    pub local_bytes: u64,
    /// Bytes that at least one node has.
    pub group_bytes: u64,
    /// Bytes that each node has.
    pub nodes: BTreeMap<String, u64>,
}

impl Vfs {
    /// What is cached of the files below `path`, from the root of the volume.
    pub async fn held(self: &Arc<Self>, path: &[u8]) -> Result<Held, Errno> {
        let (mut held, mut waiting) = (Held::default(), Vec::new());
        let mut files = self.needs_below(path);
        while let Some(found) = files.next().await {
            let (_, needs) = found?;
            held.files += 1;
            for need in needs {
                held.bytes += need.bytes;
                if self.dirty.get(need.object).is_some() {
                    held.unstored_bytes += need.bytes;
                    held.local_bytes += need.bytes;
                    continue;
                }
                let here = self.parts.cache.as_ref().map_or(0, |cache| cache.present(need.object));
                held.local_bytes += bytes_in(&need, here);
                waiting.push(need);
            }
            while waiting.len() >= ASKED_MAX {
                let rest = waiting.split_off(ASKED_MAX);
                self.ask_nodes(&std::mem::replace(&mut waiting, rest), &mut held).await;
            }
        }
        self.ask_nodes(&waiting, &mut held).await;
        Ok(held)
    }

    async fn ask_nodes(&self, needs: &[Need], held: &mut Held) {
        let Some(group) = self.parts.group.as_ref().filter(|_| !needs.is_empty()) else { return };
        let objects: Vec<_> = needs.iter().map(|need| need.object).collect();
        let mut anywhere: Vec<Set> = vec![0; needs.len()];
        for (name, sets) in group.held(&objects).await {
            let bytes = needs.iter().zip(&sets).map(|(need, set)| bytes_in(need, *set)).sum::<u64>();
            *held.nodes.entry(name).or_default() += bytes;
            anywhere.iter_mut().zip(sets).for_each(|(all, set)| *all |= set);
        }
        held.group_bytes += needs.iter().zip(anywhere).map(|(need, set)| bytes_in(need, set)).sum::<u64>();
    }

    /// Gives up what this mount's own cache has of the files below `path`, and tells of each file. What is not stored yet stays.
    /// Objects that small files share go as a whole. Returns the bytes given up.
    pub async fn evict(self: &Arc<Self>, path: &[u8], mut each: impl FnMut(Ino)) -> Result<u64, Errno> {
        let (mut bytes, mut files) = (0, self.needs_below(path));
        while let Some(found) = files.next().await {
            let (ino, needs) = found?;
            if let Some(cache) = &self.parts.cache {
                let stored = needs.iter().filter(|need| self.dirty.get(need.object).is_none());
                bytes += stored.map(|need| u64::from(cache.evict(need.object))).sum::<u64>();
            }
            each(ino);
        }
        Ok(bytes)
    }

    /// The files below a path and what they need.
    fn needs_below(
        self: &Arc<Self>,
        path: &[u8],
    ) -> futures::stream::BoxStream<'static, Result<(Ino, Vec<Need>), Errno>> {
        let (files, mut found) = mpsc::channel::<FoundFile>(QUEUE_MAX);
        let (vfs, walker, path) = (self.clone(), self.clone(), path.to_vec());
        let walk = async move { walker.files_below(&path, &files).await };
        let listed = futures::stream::poll_fn(move |context| found.poll_recv(context));
        let needed = listed.map(move |file| {
            let vfs = vfs.clone();
            async move { Ok((file.ino, vfs.needs(file.ino).await?)) }
        });
        // The walk yields only what went wrong with it.
        let walked = futures::stream::once(walk).filter_map(|outcome| std::future::ready(outcome.err().map(Err)));
        futures::stream::select(needed.buffered(LOADS_MAX), walked).boxed()
    }
}
