//! One pass over the tables, and the part of it that gathers what belongs to inodes.

use super::{Checked, ID_MAX, Problem, Progress, Report, extents::Object, node::*};
use crate::{
    Result, keys,
    records::{DirStat, Inode},
    store::Snapshot,
};
use sluice_base::{
    Ino, ObjectId,
    limits::{FILE_BYTES_MAX, SPAN_BYTES},
};
use sluice_run::collections::HashMap;
use std::ops::ControlFlow;

/// Records between two calls of the progress callback.
const PROGRESS_RECORDS: u64 = 8192;

/// Takes a record, by key and value.
type Visit<'v, 's> = dyn FnMut(&mut Scan<'s>, &[u8], &[u8]) -> Result<()> + 'v;

/// A check under way.
pub(super) struct Scan<'s> {
    pub snapshot: &'s Snapshot<'s>,
    pub nodes: HashMap<Ino, Node>,
    pub objects: HashMap<ObjectId, Stored<Object>>,
    pub report: Report,
    /// The highest inode number or cookie in use.
    pub highest_id: u64,
    pub highest_session: u64,
    progress: &'s mut dyn FnMut(Progress),
}

impl<'s> Scan<'s> {
    pub fn new(snapshot: &'s Snapshot<'s>, progress: &'s mut dyn FnMut(Progress)) -> Self {
        let (nodes, objects, report) = (HashMap::default(), HashMap::default(), Report::default());
        let mut scan = Self { snapshot, nodes, objects, report, highest_id: 0, highest_session: 0, progress };
        scan.nodes.insert(Ino::ROOT, Node::default());
        scan
    }

    pub fn into_report(self) -> Report {
        self.report
    }

    pub fn checked(&mut self) -> &mut Checked {
        &mut self.report.checked
    }

    /// Hands every record of a table to `visit`; a key that cannot be one becomes a finding.
    pub fn walk(&mut self, table: u8, name: &'static str, visit: &mut Visit<'_, 's>) -> Result<()> {
        let (from, to) = keys::whole_table(table);
        let mut failed = None;
        self.snapshot.scan(&from, &to, &mut |key, value| {
            let records = self.report.checked.records;
            if records.is_multiple_of(PROGRESS_RECORDS) {
                (self.progress)(Progress { table: name, records });
            }
            self.report.checked.records += 1;
            if !is_key(key) {
                self.report.add(Problem::BadKey { key: key.to_vec() });
                return ControlFlow::Continue(());
            }
            match visit(self, key, value) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// What was seen of the inode that a key begins with.
    pub fn node(&mut self, key: &[u8]) -> &mut Node {
        let ino = keys::number_at(key, 1);
        self.highest_id = self.highest_id.max(ino);
        self.nodes.entry(Ino(ino)).or_default()
    }

    /// Tables that have one or a few records for an inode.
    pub fn contents(&mut self) -> Result<()> {
        self.walk(b'i', "inodes", &mut |scan, key, value| {
            scan.checked().inodes += 1;
            scan.node(key).attrs = match Inode::decode(value) {
                Ok(inode) => Stored::Found(Attrs::of(&inode)),
                Err(_) => Stored::Damaged,
            };
            Ok(())
        })?;
        self.walk(b's', "directories", &mut |scan, key, value| {
            scan.node(key).stat = match DirStat::decode(value) {
                Ok(stat) => Stored::Found((stat.nlink, stat.entries)),
                Err(_) => Stored::Damaged,
            };
            Ok(())
        })?;
        self.walk(b'u', "unlinked inodes", &mut |scan, key, _| {
            scan.node(key).mark = true;
            Ok(())
        })?;
        self.walk(b'b', "small files", &mut |scan, key, value| {
            scan.node(key).body = Some(value.len() as u32);
            Ok(())
        })?;
        self.walk(b'l', "symbolic links", &mut |scan, key, value| {
            scan.node(key).target = Some(value.len() as u32);
            Ok(())
        })?;
        self.walk(b'x', "extended attributes", &mut |scan, key, _| {
            scan.node(key).has_xattrs = true;
            Ok(())
        })
    }

    /// Decides what each inode is, before the names tell what they take it for.
    pub fn decide_kinds(&mut self) {
        self.nodes.iter_mut().for_each(|(ino, node)| node.kind = node.decide(*ino));
    }
}

/// Whether a key is one that this version may have written.
fn is_key(key: &[u8]) -> bool {
    let len_fits = match key[0] {
        b'i' | b'b' | b'l' | b's' | b'u' => key.len() == 9,
        b'c' => key.len() == 17,
        b'o' => return key.len() == 17 && key[1..] != [0; 16],
        b'e' => key.len() == 25 && keys::number_at(key, 9) <= FILE_BYTES_MAX / SPAN_BYTES,
        _ => (10..=264).contains(&key.len()),
    };
    len_fits && (1..ID_MAX).contains(&keys::number_at(key, 1))
}
