//! Both tables of directory entries.

use super::{Problem, node::Node, scan::Scan};
use crate::{
    Result, keys,
    namespace::check_name,
    records::{Dirent, mode},
};
use sluice_base::Ino;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The hash by which both records of an entry must agree.
fn twin_hash(name: &[u8], cookie: u64, entry: &Dirent) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, cookie, entry.ino, entry.kind).hash(&mut hasher);
    hasher.finish()
}

impl Scan<'_> {
    pub fn cookies(&mut self) -> Result<()> {
        self.walk(b'c', "entries by cookie", &mut |scan, key, value| {
            let cookie = keys::number_at(key, 9);
            // A damaged cookie must not carry the counter away; its entry gets a new one.
            if cookie < super::ID_MAX {
                scan.highest_id = scan.highest_id.max(cookie);
            }
            let node = scan.node(key);
            node.cookies += 1;
            match Dirent::decode(value) {
                Ok(entry) if entry.cookie == cookie && cookie_fits(cookie) => {
                    node.twin_sum = node.twin_sum.wrapping_sub(twin_hash(&entry.name, cookie, &entry));
                }
                _ => node.bad_entries = true,
            }
            Ok(())
        })
    }

    /// Entries by name: what they lead to, and how many there are.
    pub fn names(&mut self) -> Result<()> {
        self.walk(b'd', "names", &mut |scan, key, value| {
            scan.checked().entries += 1;
            let (dir, name) = (Ino(keys::number_at(key, 1)), &key[9..]);
            let entry = Dirent::decode(value);
            let node = scan.node(key);
            node.entries += 1;
            let Ok(entry) = entry else {
                node.bad_entries = true;
                return Ok(());
            };
            node.twin_sum = node.twin_sum.wrapping_add(twin_hash(name, entry.cookie, &entry));
            scan.name(dir, name, &entry)
        })?;
        // Only now is it known what the names take for granted of records that do not parse.
        let undecided = self.nodes.iter_mut().filter(|(_, node)| node.kind == 0);
        undecided.for_each(|(ino, node)| node.kind = node.decide(*ino));
        let subdirs: Vec<Ino> = self.nodes.values().filter_map(|node| node.named_in).map(|(dir, _)| dir).collect();
        subdirs.iter().for_each(|dir| self.nodes.entry(*dir).or_default().subdirs += 1);
        Ok(())
    }

    fn name(&mut self, dir: Ino, name: &[u8], entry: &Dirent) -> Result<()> {
        let (ino, cookie) = (entry.ino, entry.cookie);
        if check_name(name).is_err() {
            self.report.add(Problem::BadName { dir, name: name.to_vec(), cookie, ino });
            return Ok(());
        }
        let Some(node) = self.nodes.get_mut(&ino).filter(|node| node.exists()) else {
            self.report.add(Problem::NoSuchInode { dir, name: name.to_vec(), cookie, ino });
            return Ok(());
        };
        if node.names == 0 {
            node.named_kind = entry.kind;
        }
        let kind = if node.kind == 0 { node.named_kind } else { node.kind };
        if kind != entry.kind {
            self.report.add(Problem::WrongKind { dir, name: name.to_vec(), cookie, ino, kind });
        }
        if kind != mode::DIRECTORY {
            node.names = node.names.saturating_add(1);
            return Ok(());
        }
        let Some((other_dir, other_cookie)) = node.named_in.filter(|_| ino != Ino::ROOT) else {
            if ino == Ino::ROOT {
                self.report.add(Problem::ExtraName { dir, name: name.to_vec(), cookie, ino });
            } else {
                (node.names, node.named_in) = (1, Some((dir, cookie)));
            }
            return Ok(());
        };
        // Of two names, the one where `..` leads stays.
        let goes_up = node.attrs.found().is_some_and(|attrs| attrs.parent == dir && attrs.parent != other_dir);
        let (dir, cookie, name) = if goes_up {
            node.named_in = Some((dir, cookie));
            // A name that is not found by its cookie is a problem of its own; the next pass sees this one again.
            let Some(name) = self.name_of(other_dir, other_cookie)? else { return Ok(()) };
            (other_dir, other_cookie, name)
        } else {
            (dir, cookie, name.to_vec())
        };
        self.report.add(Problem::ExtraName { dir, name, cookie, ino });
        Ok(())
    }

    /// The name that the table by cookie has.
    pub fn name_of(&self, dir: Ino, cookie: u64) -> Result<Option<Vec<u8>>> {
        let found = self.snapshot.get(&keys::cookie(dir, cookie))?;
        Ok(found.and_then(|value| Dirent::decode(&value).ok()).map(|entry| entry.name))
    }
}

impl Node {
    /// Whether a name may lead here.
    fn exists(&self) -> bool {
        self.kind != 0 || self.attrs != super::node::Stored::Missing
    }
}

/// Whether an entry may have this cookie: the first ones are those of `.` and `..`.
pub(super) fn cookie_fits(cookie: u64) -> bool {
    (16..super::ID_MAX).contains(&cookie)
}
