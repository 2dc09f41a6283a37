//! What a volume holds after each change of the workload, and which of these states a power cut may leave.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// From this length on a write's bytes go into a slab, not into the journal (docs/semantics.md, "When a call returns").
pub const LARGE: usize = 128 << 10;

/// Where the kernel may cut a write.
const PAGE: usize = 4096;

/// One change, done by one call (or one open and one call).
#[derive(Clone, Debug)]
pub enum Change {
    Create(String),
    Write {
        path: String,
        offset: usize,
        bytes: Arc<Vec<u8>>,
    },
    Append {
        path: String,
        bytes: Arc<Vec<u8>>,
    },
    /// A write with O_DSYNC.
    WriteSync {
        path: String,
        offset: usize,
        bytes: Arc<Vec<u8>>,
    },
    Truncate {
        path: String,
        len: usize,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        path: String,
        target: String,
    },
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Fsync(String),
    Fdatasync(String),
    /// fsync of a directory.
    FsyncDir(String),
    /// `sluice umount`, and up again.
    Remount,
    /// kill -9, and up again.
    Kill,
}

impl Change {
    /// Whether everything up to here is durable when it has returned.
    fn is_sync(&self) -> bool {
        use Change::{Fdatasync, Fsync, FsyncDir, Remount, WriteSync};
        matches!(self, WriteSync { .. } | Fsync(_) | Fdatasync(_) | FsyncDir(_) | Remount)
    }

    pub fn describe(&self) -> String {
        match self {
            Change::Write { path, offset, bytes } => format!("write {path} {offset}+{}", bytes.len()),
            Change::WriteSync { path, offset, bytes } => format!("write O_DSYNC {path} {offset}+{}", bytes.len()),
            Change::Append { path, bytes } => format!("append {path} {}", bytes.len()),
            other => format!("{other:?}"),
        }
    }
}

/// A regular file.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub bytes: Vec<u8>,
    pub mode: u32,
    /// Large writes: which change, and where.
    pub large: Vec<(usize, Range<usize>)>,
}

#[derive(Clone, Debug)]
pub enum Node {
    Dir,
    /// Inode.
    File(u64),
    Symlink(String),
}

/// A tree. Cloning shares the files.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub names: BTreeMap<String, Node>,
    pub files: BTreeMap<u64, Arc<File>>,
    next: u64,
}

impl State {
    pub fn file(&self, path: &str) -> Option<&Arc<File>> {
        if let Node::File(ino) = self.names.get(path)? { self.files.get(ino) } else { None }
    }

    /// Names of the inode.
    pub fn links(&self, ino: u64) -> usize {
        self.names.values().filter(|node| matches!(node, Node::File(other) if *other == ino)).count()
    }

    fn edit(&mut self, path: &str) -> &mut File {
        let Some(Node::File(ino)) = self.names.get(path) else { panic!("{path} is no file") };
        Arc::make_mut(self.files.get_mut(ino).expect("an inode"))
    }

    fn patch(&mut self, index: usize, path: &str, offset: usize, bytes: &[u8]) {
        let file = self.edit(path);
        let end = offset + bytes.len();
        file.bytes.resize(file.bytes.len().max(end), 0);
        file.bytes[offset..end].copy_from_slice(bytes);
        if bytes.len() >= LARGE {
            file.large.push((index, offset..end));
        }
    }

    /// `index` is the number of the change.
    fn apply(&mut self, index: usize, change: &Change) {
        match change {
            Change::Create(path) => {
                self.next += 1;
                self.names.insert(path.clone(), Node::File(self.next));
                self.files.insert(self.next, Arc::new(File { mode: 0o644, ..File::default() }));
            }
            Change::Write { path, offset, bytes } | Change::WriteSync { path, offset, bytes } => {
                self.patch(index, path, *offset, bytes);
            }
            Change::Append { path, bytes } => {
                let end = self.edit(path).bytes.len();
                self.patch(index, path, end, bytes);
            }
            Change::Truncate { path, len } => self.edit(path).bytes.resize(*len, 0),
            Change::Chmod { path, mode } => self.edit(path).mode = *mode,
            Change::Rename { from, to } => self.rename(from, to),
            Change::Link { from, to } => {
                let node = self.names[from].clone();
                self.names.insert(to.clone(), node);
            }
            Change::Symlink { path, target } => drop(self.names.insert(path.clone(), Node::Symlink(target.clone()))),
            Change::Mkdir(path) => drop(self.names.insert(path.clone(), Node::Dir)),
            Change::Unlink(path) | Change::Rmdir(path) => drop(self.names.remove(path)),
            Change::Fsync(_) | Change::Fdatasync(_) | Change::FsyncDir(_) | Change::Remount | Change::Kill => {}
        }
        let used = |ino: u64| self.names.values().any(|node| matches!(node, Node::File(other) if *other == ino));
        let unused: Vec<_> = self.files.keys().copied().filter(|ino| !used(*ino)).collect();
        unused.iter().for_each(|ino| drop(self.files.remove(ino)));
    }

    fn rename(&mut self, from: &str, to: &str) {
        let same = |node: Option<&Node>| if let Some(Node::File(ino)) = node { Some(*ino) } else { None };
        // Two names of one file: rename(2) does nothing.
        if from == to || same(self.names.get(from)).is_some_and(|ino| same(self.names.get(to)) == Some(ino)) {
            return;
        }
        let below = format!("{from}/");
        let moved: Vec<_> =
            self.names.keys().filter(|path| *path == from || path.starts_with(&below)).cloned().collect();
        for path in moved {
            let node = self.names.remove(&path).expect("a name");
            self.names.insert(format!("{to}{}", &path[from.len()..]), node);
        }
    }
}

/// A change with where the recording stood around it.
struct Done {
    change: Change,
    begun: usize,
    returned: usize,
}

/// Every change, and every state between two of them.
pub struct History {
    /// One more than `done`: the first is the empty volume.
    states: Vec<State>,
    done: Vec<Done>,
    /// Where the recording stood when the volume had been made.
    pub made: usize,
}

impl Default for History {
    fn default() -> Self {
        Self { states: vec![State::default()], done: Vec::new(), made: 0 }
    }
}

impl History {
    pub fn now(&self) -> &State {
        self.states.last().expect("a state")
    }

    pub fn push(&mut self, change: Change, begun: usize, returned: usize) {
        let mut state = self.now().clone();
        state.apply(self.done.len() + 1, &change);
        self.states.push(state);
        self.done.push(Done { change, begun, returned });
    }

    /// States by number that a cut before event `cut` may leave: from the last sync that had returned to the last change that had begun.
    pub fn possible(&self, cut: usize) -> std::ops::RangeInclusive<usize> {
        let is_durable = |done: &Done| done.returned <= cut && done.change.is_sync();
        let first = self.done.iter().rposition(is_durable).map_or(0, |index| index + 1);
        let last = self.done.iter().rposition(|done| done.begun < cut).map_or(0, |index| index + 1);
        first..=last.max(first)
    }

    /// Whether a large write is among the changes between these states.
    pub fn has_large(&self, states: std::ops::RangeInclusive<usize>) -> bool {
        self.done[*states.start()..*states.end()].iter().any(|done| match &done.change {
            Change::Write { bytes, .. } | Change::Append { bytes, .. } | Change::WriteSync { bytes, .. } => {
                bytes.len() >= LARGE
            }
            _ => false,
        })
    }

    pub fn state(&self, number: usize) -> &State {
        &self.states[number]
    }

    /// States between the one before this and this one, if a write lies between them: the kernel may hand it over in several requests,
    /// in order, which end where pages do.
    pub fn parts_of_write(&self, number: usize) -> impl Iterator<Item = State> {
        let before = &self.states[number - 1];
        let write = match &self.done[number - 1].change {
            Change::Write { path, offset, bytes } | Change::WriteSync { path, offset, bytes } => {
                Some((path, *offset, bytes))
            }
            Change::Append { path, bytes } => Some((path, before.file(path).map_or(0, |file| file.bytes.len()), bytes)),
            _ => None,
        };
        write.into_iter().flat_map(move |(path, offset, bytes)| {
            let ends = (offset + 1..offset + bytes.len()).filter(|end| end % PAGE == 0);
            ends.map(move |end| {
                let mut state = before.clone();
                state.patch(number, path, offset, &bytes[..end - offset]);
                state
            })
        })
    }

    /// The changes between the states of a range.
    pub fn describe(&self, states: &std::ops::RangeInclusive<usize>) -> String {
        let done = &self.done[*states.start()..*states.end()];
        let lines = (states.start() + 1..).zip(done).map(|(number, done)| {
            format!("  {number} ({}..{}): {}", done.begun, done.returned, done.change.describe())
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
