//! Directories whose two tables of entries disagree, compared entry by entry.

use super::{Problem, TwinFault, entries::cookie_fits, node::Stored, scan::Scan};
use crate::{Result, keys, namespace::check_name, records::Dirent};
use sluice_base::Ino;
use std::{collections::BTreeMap, ops::ControlFlow};

/// Records of one directory that have no equal in the other table.
#[derive(Default)]
struct Odd {
    /// By name; `None` does not parse.
    names: BTreeMap<Vec<u8>, Option<Dirent>>,
    /// By cookie.
    cookies: BTreeMap<u64, Option<Dirent>>,
}

impl Scan<'_> {
    pub fn twins(&mut self) -> Result<()> {
        let differs = self.nodes.iter().filter(|(_, node)| node.twin_sum != 0 || node.bad_entries);
        let mut dirs: Vec<Ino> = differs.map(|(ino, _)| *ino).collect();
        dirs.sort_unstable();
        dirs.into_iter().try_for_each(|dir| self.compare(dir))
    }

    fn compare(&mut self, dir: Ino) -> Result<()> {
        let mut odd = self.odd(dir)?;
        let all_names: Vec<Vec<u8>> = odd.names.keys().cloned().collect();
        for name in all_names {
            let by_name = odd.names.remove(&name).flatten();
            self.settle(dir, name, by_name, &mut odd)?;
        }
        for (cookie, entry) in std::mem::take(&mut odd.cookies) {
            let delete = vec![keys::cookie(dir, cookie).to_vec()];
            // Half an entry comes back only if its inode misses a name.
            let named = entry.filter(|entry| check_name(&entry.name).is_ok());
            let free = match &named {
                Some(entry) => self.snapshot.get(&keys::entry(dir, &entry.name))?.is_none(),
                None => false,
            };
            let keep = named.clone().filter(|entry| free && self.misses_name(entry.ino, false));
            let keep = keep.map(|entry| self.kept(entry, cookie));
            let name = named.map_or_else(Vec::new, |entry| entry.name);
            self.report.add(Problem::Twin { dir, name, fault: TwinFault::ByName, delete, keep });
        }
        Ok(())
    }

    /// Loads a directory and takes out what is sound.
    fn odd(&mut self, dir: Ino) -> Result<Odd> {
        let mut odd = Odd::default();
        let (from, to) = keys::all_of(b'c', dir);
        self.snapshot.scan(&from, &to, &mut |key, value| {
            if key.len() == 17 {
                odd.cookies.insert(keys::number_at(key, 9), Dirent::decode(value).ok());
            }
            ControlFlow::Continue(())
        })?;
        let (from, to) = keys::all_of(b'd', dir);
        self.snapshot.scan(&from, &to, &mut |key, value| {
            let (name, entry) = (&key[9..], Dirent::decode(value).ok());
            let twin = entry.as_ref().and_then(|entry| odd.cookies.get(&entry.cookie)?.as_ref());
            let sound = match (&entry, twin) {
                (Some(a), Some(b)) => (a.ino, a.kind, a.cookie) == (b.ino, b.kind, b.cookie) && b.name == name,
                _ => false,
            };
            match entry {
                Some(entry) if sound && cookie_fits(entry.cookie) => {
                    odd.cookies.remove(&entry.cookie);
                }
                entry if !name.is_empty() => drop(odd.names.insert(name.to_vec(), entry)),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        Ok(odd)
    }

    /// Decides about a name whose records are not equal.
    fn settle(&mut self, dir: Ino, name: Vec<u8>, by_name: Option<Dirent>, odd: &mut Odd) -> Result<()> {
        let same_name = odd.cookies.iter().find(|(_, entry)| entry.as_ref().is_some_and(|entry| entry.name == name));
        let same_cookie = by_name.as_ref().map(|entry| entry.cookie).filter(|cookie| odd.is_nobodys(*cookie));
        let cookie = same_name.map(|(cookie, _)| *cookie).or(same_cookie);
        let by_cookie = cookie.and_then(|cookie| odd.cookies.remove(&cookie)).flatten();
        let fault = match (&by_name, &by_cookie) {
            (None, _) => TwinFault::ByName,
            (Some(_), None) => TwinFault::ByCookie,
            (Some(_), Some(_)) => TwinFault::Differ,
        };
        let (counted, own_cookie) =
            (by_name.as_ref().map(|entry| entry.ino), by_name.as_ref().map(|entry| entry.cookie));
        let chosen = match (by_name, by_cookie) {
            (Some(a), Some(b)) if a.ino != b.ino => {
                let a_fits = self.misses_name(a.ino, true);
                let b_fits = self.misses_name(b.ino, false);
                // The one that its inode's link count speaks for; else the one that lookups have found so far.
                Some(if a_fits || !b_fits { a } else { b })
            }
            (a, b) => a.or(b),
        };
        let chosen = chosen.filter(|entry| self.nodes.get(&entry.ino).is_some_and(|node| node.kind != 0));
        let mut delete = vec![keys::entry(dir, &name).to_vec()];
        delete.extend(cookie.map(|cookie| keys::cookie(dir, cookie).to_vec()));
        // The place in readdir order stays, unless it is another entry's.
        let own_cookie = match own_cookie {
            Some(own) if self.snapshot.get(&keys::cookie(dir, own))?.is_none() => own,
            _ => 0,
        };
        let keep = chosen.map(|entry| {
            if Some(entry.ino) != counted {
                self.nodes.entry(entry.ino).or_default().names += 1;
            }
            self.kept(Dirent { name: name.clone(), ..entry }, cookie.unwrap_or(own_cookie))
        });
        self.report.add(Problem::Twin { dir, name, fault, delete, keep });
        Ok(())
    }

    /// The entry as it is written again; cookie 0 asks for a new one.
    fn kept(&mut self, entry: Dirent, cookie: u64) -> Dirent {
        let kind = self.nodes.get(&entry.ino).map_or(entry.kind, |node| node.kind);
        Dirent { kind, cookie: if cookie_fits(cookie) { cookie } else { 0 }, ..entry }
    }

    /// Whether the inode has fewer names than its link count says, apart from the one at hand when that is `counted`.
    fn misses_name(&self, ino: Ino, counted: bool) -> bool {
        let Some(node) = self.nodes.get(&ino).filter(|node| node.kind != 0 && ino != Ino::ROOT) else { return false };
        let names = node.names.saturating_sub(u32::from(counted));
        match node.attrs {
            Stored::Found(attrs) => names < attrs.nlink,
            _ => names == 0,
        }
    }
}

impl Odd {
    /// Whether the record under this cookie cannot belong to a name that is there: then it is the damaged twin.
    fn is_nobodys(&self, cookie: u64) -> bool {
        match self.cookies.get(&cookie) {
            Some(Some(entry)) => !self.names.contains_key(&entry.name),
            Some(None) => true,
            None => false,
        }
    }
}
