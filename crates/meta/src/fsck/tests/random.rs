//! Random trees, broken at random: a repair leads to a clean check and leaves alone what was not broken.

use super::*;
use crate::records::Dirent;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Something that happens to a tree.
#[derive(Clone, Debug)]
enum Op {
    Make { dir: usize, name: u8, kind: u32 },
    Link { ino: usize, dir: usize, name: u8 },
    Unlink { dir: usize, name: u8, in_use: bool },
    Rename { from: (usize, u8), to: (usize, u8) },
    Write { ino: usize, at: u64, len: u64, object: u8 },
    Inline { ino: usize, len: usize },
    Truncate { ino: usize, size: u64 },
    Xattr { ino: usize, set: bool },
    Store { object: u8 },
}

fn op() -> impl Strategy<Value = Op> {
    let (pick, name) = (0usize..12, 0u8..6);
    let kinds =
        prop::sample::select(vec![mode::REGULAR, mode::REGULAR, mode::DIRECTORY, mode::DIRECTORY, mode::SYMLINK]);
    prop_oneof![
        6 => (pick.clone(), name.clone(), kinds).prop_map(|(dir, name, kind)| Op::Make { dir, name, kind }),
        1 => (pick.clone(), pick.clone(), name.clone()).prop_map(|(ino, dir, name)| Op::Link { ino, dir, name }),
        1 => (pick.clone(), name.clone(), any::<bool>()).prop_map(|(dir, name, in_use)| Op::Unlink { dir, name, in_use }),
        1 => ((pick.clone(), name.clone()), (pick.clone(), name)).prop_map(|(from, to)| Op::Rename { from, to }),
        4 => (pick.clone(), 0u64..200, 1u64..40, 1u8..5).prop_map(|(ino, at, len, object)| {
            Op::Write { ino, at: at * 1_000_000, len: len * 1000, object }
        }),
        2 => (pick.clone(), 0usize..40).prop_map(|(ino, len)| Op::Inline { ino, len }),
        1 => (pick.clone(), 0u64..200).prop_map(|(ino, size)| Op::Truncate { ino, size: size * 1_000_000 }),
        1 => (pick, any::<bool>()).prop_map(|(ino, set)| Op::Xattr { ino, set }),
        1 => (1u8..5).prop_map(|object| Op::Store { object }),
    ]
}

struct Tree {
    volume: Volume,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
}

impl Tree {
    /// A directory that is still in the tree: the kernel lets nobody make anything in one that was removed.
    fn dir(&self, pick: usize) -> Ino {
        let dir = self.dirs[pick % self.dirs.len()];
        let lives = self.volume.names.getattr(dir).is_ok_and(|attr| attr.nlink > 0);
        if lives { dir } else { Ino::ROOT }
    }

    fn file(&self, pick: usize) -> Option<Ino> {
        self.files.get(pick % self.files.len().max(1)).copied()
    }

    /// Does what is asked where it is possible; what the rules refuse is as good as not asked.
    fn apply(&mut self, op: &Op) {
        let names = &self.volume.names;
        match *op {
            Op::Make { dir, name, kind } => {
                let node = NewNode { mode: kind | 0o644, rdev: 0, target: b"target" };
                let Ok(made) = names.create(self.dir(dir), &[b'a' + name], node, ROOT_USER) else { return };
                match kind {
                    mode::DIRECTORY => self.dirs.push(made.value.ino),
                    mode::REGULAR => self.files.push(made.value.ino),
                    _ => {}
                }
            }
            Op::Link { ino, dir, name } => {
                self.file(ino).map(|ino| names.link(ino, self.dir(dir), &[b'a' + name]));
            }
            Op::Unlink { dir, name, in_use } => {
                let _ = names.unlink(self.dir(dir), &[b'a' + name], &|_| in_use);
                let _ = names.rmdir(self.dir(dir), &[b'a' + name], &|_| in_use);
            }
            Op::Rename { from, to } => {
                let (from_name, to_name) = ([b'a' + from.1], [b'a' + to.1]);
                let (from, to) = ((self.dir(from.0), &from_name[..]), (self.dir(to.0), &to_name[..]));
                let _ = names.rename(from, to, crate::RenameMode::Replace, &|_| false);
            }
            Op::Xattr { ino, set } => {
                let Some(ino) = self.file(ino) else { return };
                if set {
                    let _ = names.setxattr(ino, b"user.a", b"value", XattrMode::Set);
                } else {
                    let _ = names.removexattr(ino, b"user.a");
                }
            }
            Op::Store { object } => drop(names.object_stored(ObjectId([object; 16]), 128, 4_000_000)),
            Op::Write { .. } | Op::Inline { .. } | Op::Truncate { .. } => self.change(op),
        }
    }

    fn change(&self, op: &Op) {
        let (Op::Write { ino, .. } | Op::Inline { ino, .. } | Op::Truncate { ino, .. }) = op else { return };
        let Some(ino) = self.file(*ino) else { return };
        let Ok(inode) = self.volume.names.inode(ino) else { return };
        let inline = inode.has(crate::records::flags::INLINE);
        match *op {
            Op::Write { at, len, object, .. } if !inline => {
                self.volume.write(ino, at, len, object, (at / 1000 % 1000) as u32 * 1000);
            }
            Op::Inline { len, .. } if inode.size == 0 && inode.held_bytes == 0 => {
                self.volume.write_inline(ino, &vec![7; len])
            }
            Op::Truncate { size, .. } if !inline => {
                let mut extents = FileExtents::default();
                let end = inode.size.max(size);
                self.volume.names.load_extents(ino, &mut extents, 0..end).expect("loaded");
                let holes = (end > size).then_some(Extent { offset: size, len: end - size, place: None });
                let change = DataChange {
                    extents: holes.into_iter().collect(),
                    size: SizeChange::Exactly(size),
                    ..DataChange::default()
                };
                self.volume.names.change_data(ino, &mut extents, &change).expect("truncated");
            }
            _ => {}
        }
    }
}

fn tree(ops: &[Op]) -> Tree {
    let mut tree = Tree { volume: Volume::new(), dirs: vec![Ino::ROOT], files: Vec::new() };
    ops.iter().for_each(|op| tree.apply(op));
    tree
}

/// Something that happens to a record.
#[derive(Clone, Debug)]
enum Damage {
    Delete,
    Garbage(Vec<u8>),
    Flip(usize, u8),
    Swap(prop::sample::Index),
    Rekey(usize, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        Just(Damage::Delete),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Damage::Garbage),
        (any::<usize>(), 1u8..).prop_map(|(at, by)| Damage::Flip(at, by)),
        any::<prop::sample::Index>().prop_map(Damage::Swap),
        (any::<usize>(), 1u8..).prop_map(|(at, by)| Damage::Rekey(at, by)),
    ]
}

/// Inodes that a record speaks of.
fn inodes_of(records: &Records, key: &[u8], value: &[u8]) -> BTreeSet<Ino> {
    let mut all = BTreeSet::new();
    if key[0] == b'o' {
        // Whoever has bytes in this object.
        let id = &key[1..];
        let refers = |value: &[u8]| value.windows(16).any(|window| window == id);
        all.extend(
            records
                .iter()
                .filter(|(key, value)| key[0] == b'e' && refers(value))
                .map(|(key, _)| Ino(keys::number_at(key, 1))),
        );
    } else if key[0] != b'v' {
        all.insert(Ino(keys::number_at(key, 1)));
    }
    if matches!(key[0], b'c' | b'd') {
        all.extend(Dirent::decode(value).ok().map(|entry| entry.ino));
    }
    all
}

/// Breaks one record; tells which inodes cannot be expected to be as before.
fn inflict(volume: &Volume, at: &prop::sample::Index, damage: &Damage) -> BTreeSet<Ino> {
    let records = volume.records();
    let all: Vec<_> = records.iter().collect();
    let (key, value) = all[at.index(all.len())];
    let mut hurt = inodes_of(&records, key, value);
    let (new_key, new_value) = match damage {
        Damage::Delete => (None, Vec::new()),
        Damage::Garbage(bytes) => (Some(key.clone()), bytes.clone()),
        Damage::Flip(place, by) => {
            let mut value = value.clone();
            if !value.is_empty() {
                let place = place % value.len();
                value[place] ^= by;
            }
            (Some(key.clone()), value)
        }
        Damage::Swap(other) => (Some(key.clone()), all[other.index(all.len())].1.clone()),
        Damage::Rekey(place, by) => {
            let mut key = key.clone();
            let place = 1 + place % (key.len() - 1);
            key[place] ^= by;
            (Some(key), value.clone())
        }
    };
    volume.delete(key);
    if let Some(new_key) = new_key {
        if let Some(old) = records.get(&new_key) {
            hurt.extend(inodes_of(&records, &new_key, old));
        }
        volume.put(&new_key, &new_value);
        hurt.extend(inodes_of(&volume.records(), &new_key, &new_value));
    }
    hurt
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_rules_make_is_clean(ops in prop::collection::vec(op(), 0..60)) {
        let report = tree(&ops).volume.check();
        prop_assert!(report.is_clean(), "{}", text(&report.findings));
    }

    #[test]
    fn repair_leads_to_a_clean_check_and_leaves_the_rest_alone(
        ops in prop::collection::vec(op(), 1..60),
        damages in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..5),
    ) {
        let volume = tree(&ops).volume;
        let before = volume.records();
        let hurt: BTreeSet<Ino> = damages.iter().flat_map(|(at, damage)| inflict(&volume, at, damage)).collect();
        let was_clean = volume.check().is_clean();
        let mended = volume.repair().mended;
        prop_assert!(was_clean == mended.is_empty());
        let after = volume.records();
        for (key, value) in &before {
            let ours = match key[0] {
                b'i' | b'b' | b'e' | b'l' | b'x' => !hurt.contains(&Ino(keys::number_at(key, 1))),
                b'd' => {
                    let entry = Dirent::decode(value).expect("sound before");
                    !hurt.contains(&Ino(keys::number_at(key, 1))) && !hurt.contains(&entry.ino)
                }
                _ => false,
            };
            if ours {
                prop_assert_eq!(after.get(key), Some(value), "{} was touched:\n{}", key.escape_ascii(), text(&mended));
            }
        }
    }
}
