//! What is wrong with each inode by itself, and with the totals.

use super::{
    ID_MAX, Problem,
    node::{Attrs, Node, Stored},
    scan::Scan,
};
use crate::{
    Result, keys,
    records::{ObjectState, Usage, flags, mode},
};
use sluice_base::{Ino, limits::FILE_BYTES_MAX};

impl Scan<'_> {
    pub fn judge(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        for (ino, node) in &nodes {
            self.judge_node(*ino, node);
        }
        self.nodes = nodes;
    }

    fn judge_node(&mut self, ino: Ino, node: &Node) {
        if let Some(problem) = node.record_problem(ino) {
            self.report.add(problem);
        }
        self.leftovers(ino, node);
        let Some(attrs) = node.attrs.found().filter(|attrs| attrs.kind == node.kind) else { return };
        if node.kind == mode::SYMLINK && node.target.is_none() {
            self.report.add(Problem::NoTarget { ino });
            return;
        }
        self.links(ino, node, attrs);
        match node.kind {
            mode::DIRECTORY => self.directory(ino, node, attrs),
            mode::REGULAR => self.file(ino, node, attrs),
            mode::SYMLINK if u64::from(node.target.unwrap_or(0)) != attrs.size => {
                self.report.add(Problem::Size { ino, found: attrs.size, end: node.target.unwrap_or(0).into() });
            }
            _ => {}
        }
        self.flags(ino, node, attrs);
        let (found, counted) = (attrs.held_bytes, expected_held(node, attrs));
        if found != counted {
            self.report.add(Problem::Held { ino, found, counted });
        }
    }

    /// Records that no inode of this kind has.
    fn leftovers(&mut self, ino: Ino, node: &Node) {
        let is = |kind| node.kind == kind;
        let is_there = node.kind != 0;
        let stat_wanted = is(mode::DIRECTORY) && !node.is_orphan();
        let tables = [
            (b'b', node.body.is_some() && !is(mode::REGULAR)),
            (b'd', (node.entries > 0 || node.cookies > 0) && !is(mode::DIRECTORY)),
            (b'e', node.extent_records > 0 && !is(mode::REGULAR)),
            (b'l', node.target.is_some() && !is(mode::SYMLINK)),
            (b's', node.stat != Stored::Missing && !stat_wanted),
            (b'u', node.mark && !is_there),
            (b'x', node.has_xattrs && !is_there),
        ];
        for (table, _) in tables.into_iter().filter(|(_, left)| *left) {
            self.report.add(Problem::Leftover { ino, table });
        }
    }

    fn links(&mut self, ino: Ino, node: &Node, attrs: Attrs) {
        if node.is_orphan() {
            self.checked().orphans += 1;
            return;
        }
        if node.mark {
            self.report.add(Problem::Mark { ino });
        }
        let is_root = ino == Ino::ROOT;
        if node.names == 0 && !is_root {
            self.report.add(Problem::Nameless { ino });
            return;
        }
        let names = if is_root { 1 } else { node.names };
        if attrs.nlink != names {
            self.report.add(Problem::LinkCount { ino, found: attrs.nlink, names });
        }
    }

    fn directory(&mut self, ino: Ino, node: &Node, attrs: Attrs) {
        self.checked().directories += 1;
        if node.is_orphan() {
            return;
        }
        let parent = if ino == Ino::ROOT { Some(Ino::ROOT) } else { node.named_in.map(|(dir, _)| dir) };
        if let Some(parent) = parent.filter(|parent| *parent != attrs.parent) {
            self.report.add(Problem::Parent { ino, found: attrs.parent, parent });
        }
        let (nlink, entries) = (2 + node.subdirs, node.entries);
        let found = node.stat.found();
        if found != Some((nlink, entries)) {
            self.report.add(Problem::DirCounts { ino, found, nlink, entries });
        }
    }

    fn file(&mut self, ino: Ino, node: &Node, attrs: Attrs) {
        if node.body.is_some() && node.extent_records > 0 {
            self.report.add(Problem::TwoContents { ino, keep_body: node.believes_body() });
        }
        let has_content = node.body.is_some() || node.extent_records > 0;
        if attrs.flags & flags::INLINE != 0 && !has_content {
            self.report.add(Problem::LostBody { ino, size: attrs.size });
        }
        // Bytes past the size were never cut off: truncate removes them in its own transaction. So it is the size that is wrong.
        let end = node.content_end().min(FILE_BYTES_MAX);
        if attrs.size < end || attrs.size > FILE_BYTES_MAX {
            self.report.add(Problem::Size { ino, found: attrs.size, end });
        }
    }

    /// Flags may be set where nothing is left, as removing the last extent or attribute does not look for it; a body is exact.
    fn flags(&mut self, ino: Ino, node: &Node, attrs: Attrs) {
        let content = if node.kind == mode::REGULAR { node.content_flags() } else { 0 };
        let mut right = attrs.flags | content;
        if node.has_xattrs {
            right |= flags::XATTRS;
        }
        if content & flags::INLINE == 0 {
            right &= !flags::INLINE;
        }
        if right != attrs.flags {
            self.report.add(Problem::Flags { ino, found: attrs.flags, right });
        }
    }

    /// What the whole volume keeps.
    pub fn totals(&mut self) -> Result<()> {
        self.live_bytes();
        let mut counted = Usage::default();
        for node in self.nodes.values() {
            let Some(attrs) = node.attrs.found() else { continue };
            counted.inodes += 1;
            counted.bytes += expected_held(node, attrs) as i64;
        }
        self.checked().bytes = counted.bytes as u64;
        let stored = self.snapshot.get(&keys::volume("usage"))?;
        let found = stored.and_then(|bytes| Usage::decode(&bytes).ok());
        if found != Some(counted) {
            self.report.add(Problem::Usage { found, counted });
        }
        self.counter("ids", self.highest_id, true)?;
        self.counter("session", self.highest_session, false)
    }

    fn live_bytes(&mut self) {
        for (id, object) in &self.objects {
            let Some(object) = object.found() else { continue };
            self.report.checked.unreferenced_objects += u64::from(object.counted == 0);
            if object.state == ObjectState::Tombstone && object.counted > 0 {
                self.report.add(Problem::Buried { object: *id });
            }
            if object.live_bytes != object.counted {
                self.report.add(Problem::LiveBytes { object: *id, found: object.live_bytes, counted: object.counted });
            }
        }
    }

    /// A counter below what is in use would give a number out twice.
    fn counter(&mut self, name: &'static str, highest: u64, is_next: bool) -> Result<()> {
        let stored = self.snapshot.get(&keys::volume(name))?;
        let found = stored.and_then(|bytes| Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?)));
        let sound = match found {
            Some(found) if is_next => found > highest && found < ID_MAX,
            Some(found) => found >= highest,
            // Before the first session there is none.
            None => !is_next && highest == 0,
        };
        if !sound {
            self.report.add(Problem::Counter { name, found, needed: highest });
        }
        Ok(())
    }
}

/// What an inode should say that it holds. An orphan that is being reclaimed in steps says more until the last one.
fn expected_held(node: &Node, attrs: Attrs) -> u64 {
    if node.is_orphan() { attrs.held_bytes.max(node.held()) } else { node.held() }
}
