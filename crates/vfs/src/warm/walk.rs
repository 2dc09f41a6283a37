//! Paths of the volume: the files below them, and what these are made of.

use crate::{Vfs, away::on_thread, error::errno, files::Shape, read::segments};
use sluice_base::{
    Errno, Ino, ObjectId,
    limits::{SEGMENT_BYTES, SPAN_BYTES},
};
use sluice_meta::{Attr, extent::FileExtents};
use sluice_run::collections::HashMap;
use std::{ops::ControlFlow, sync::Arc};
use tokio::sync::mpsc;

/// Entries of a directory that are looked at in one go.
const PAGE_ENTRIES: usize = 1024;
/// Spans whose extents are loaded in one go: 1 GiB of a file.
const WINDOW_SPANS: u64 = 16;

/// Segments of an object, bit i for segment i.
pub(super) type Set = u128;

/// A file below a path that was named.
#[derive(Debug)]
pub(super) struct FoundFile {
    pub ino: Ino,
    pub size: u64,
    /// For people; from the root of the volume, without a slash in front.
    pub name: String,
}

/// What a file needs of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub object: ObjectId,
    pub segments: Set,
    /// Bytes of the file in them.
    pub bytes: u64,
}

impl Vfs {
    /// What a path from the root of the volume leads to. Symbolic links are not followed.
    pub(super) async fn resolve(self: &Arc<Self>, path: &[u8]) -> Result<Attr, Errno> {
        let (vfs, path) = (self.clone(), path.to_vec());
        let walk = move || {
            let mut attr = vfs.namespace().getattr(Ino::ROOT)?;
            for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
                attr = vfs.namespace().lookup(attr.ino, name)?;
            }
            Ok(attr)
        };
        on_thread(walk).await.ok_or(Errno::EIO)?.map_err(|error| errno(&error))
    }

    /// Hands all files below `path` to `files`, directories in the order in which their entries were made. Ends early when nobody
    /// takes them any more.
    pub(super) async fn files_below(
        self: &Arc<Self>,
        path: &[u8],
        files: &mpsc::Sender<FoundFile>,
    ) -> Result<(), Errno> {
        let attr = self.resolve(path).await?;
        let name = if path == b"." { String::new() } else { String::from_utf8_lossy(path).into_owned() };
        if attr.is_file() {
            let _ = files.send(FoundFile { ino: attr.ino, size: attr.size, name }).await;
            return Ok(());
        }
        let mut dirs = if attr.is_dir() { vec![(attr.ino, name)] } else { Vec::new() };
        while let Some((dir, name)) = dirs.pop() {
            let (mut after, mut below) = (0, Vec::new());
            loop {
                let page = self.page(dir, after).await?;
                let Some((_, last)) = page.last() else { break };
                after = *last;
                for ((attr, text), _) in page.into_iter() {
                    let name =
                        format!("{}{}{}", name, if name.is_empty() { "" } else { "/" }, String::from_utf8_lossy(&text));
                    if attr.is_dir() {
                        below.push((attr.ino, name));
                    } else if attr.is_file()
                        && files.send(FoundFile { ino: attr.ino, size: attr.size, name }).await.is_err()
                    {
                        return Ok(());
                    }
                }
            }
            dirs.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// The next entries of a directory with their attributes, and the cookie of each. What vanished meanwhile is left out.
    async fn page(self: &Arc<Self>, dir: Ino, after: u64) -> Result<Vec<((Attr, Vec<u8>), u64)>, Errno> {
        let vfs = self.clone();
        let read = move || {
            let (mut names, until) = (Vec::new(), vfs.namespace().last_cookie()?);
            vfs.namespace().read_dir(dir, after, until, false, &mut |found| {
                names.push((found.entry.name, found.entry.cookie));
                if names.len() < PAGE_ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            // By name, so that a mount of a served volume knows names and attributes from here on.
            let attr = |name: Vec<u8>| Some((vfs.namespace().lookup(dir, &name).ok()?, name));
            Ok(names.into_iter().filter_map(|(name, cookie)| Some((attr(name)?, cookie))).collect())
        };
        on_thread(read).await.ok_or(Errno::EIO)?.map_err(|error: sluice_meta::Error| errno(&error))
    }

    /// What a file needs, in the order of its bytes, each object once. A file whose body is in the metadata needs nothing.
    pub(super) async fn needs(self: &Arc<Self>, ino: Ino) -> Result<Vec<Need>, Errno> {
        let vfs = self.clone();
        let load = move || {
            let shape = Shape::of(&vfs.namespace().inode(ino)?);
            let (mut needs, mut places): (_, HashMap<_, _>) = (Vec::new(), HashMap::default());
            if shape.inline {
                vfs.namespace().body(ino)?;
                return Ok(needs);
            }
            let mut from = 0;
            while from < shape.size {
                let range = from..shape.size.min(from + WINDOW_SPANS * SPAN_BYTES);
                let mut extents = FileExtents::default();
                vfs.namespace().load_extents(ino, &mut extents, range.clone())?;
                for extent in extents.map(range.clone()) {
                    let Some(place) = extent.place else { continue };
                    let at = *places.entry(place.object).or_insert_with(|| {
                        needs.push(Need { object: place.object, segments: 0, bytes: 0 });
                        needs.len() - 1
                    });
                    let need: &mut Need = &mut needs[at];
                    need.segments |= set_of(segments(place.offset, extent.len as usize));
                    need.bytes += extent.len;
                }
                from = range.end;
            }
            Ok(needs)
        };
        on_thread(load).await.ok_or(Errno::EIO)?.map_err(|error: sluice_meta::Error| errno(&error))
    }
}

pub(super) fn set_of(range: std::ops::Range<u32>) -> Set {
    range.filter(|index| *index < Set::BITS).fold(0, |set, index| set | 1 << index)
}

/// The bytes of `need` that are in the segments `have`: its share of them, as extents in one segment are not told apart.
pub(super) fn bytes_in(need: &Need, have: Set) -> u64 {
    let all = u64::from(need.segments.count_ones()).max(1);
    need.bytes * u64::from((need.segments & have).count_ones()) / all
}

const _: () = assert!(Set::BITS as usize * SEGMENT_BYTES == sluice_base::limits::OBJECT_BYTES);
