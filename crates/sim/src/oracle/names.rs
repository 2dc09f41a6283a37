//! Names of a directory: each is a register that every mount reads and changes on the server.

use super::{NEVER, Oracle, Tick};
use sluice_base::Ino;

/// One change of a name.
pub struct Change {
    /// `None`: it is not there any more. `Some(None)`: it is an inode that nobody was told.
    pub to: Option<Option<Ino>>,
    pub began: Tick,
    pub ended: Tick,
}

#[derive(Default)]
pub struct Name {
    changes: Vec<Change>,
}

impl Oracle {
    /// A change of a name begins; the index is for [`Self::name_changed`].
    pub fn change_name(&mut self, name: &str, to: Option<Option<Ino>>) -> usize {
        let began = self.tick();
        let changes = &mut self.names.entry(name.into()).or_default().changes;
        changes.push(Change { to, began, ended: NEVER });
        changes.len() - 1
    }

    /// The change was answered.
    pub fn name_changed(&mut self, name: &str, at: usize, to: Option<Option<Ino>>) {
        let ended = self.tick();
        let change = &mut self.names.get_mut(name).expect("it began").changes[at];
        (change.to, change.ended) = (to, ended);
    }

    /// The change was refused: nothing happened.
    pub fn name_refused(&mut self, name: &str, at: usize) {
        let change = &mut self.names.get_mut(name).expect("it began").changes[at];
        // It never was: a change that is over before the first and gives nothing.
        (change.to, change.began, change.ended) = (Some(Some(Ino(0))), 0, 0);
    }

    /// Whether one who began to look at `since` may have found `found`; the error says why not.
    pub fn judge_name(&self, name: &str, found: Option<Ino>, since: Tick) -> Result<(), String> {
        let none = Name::default();
        let changes = &self.names.get(name).unwrap_or(&none).changes;
        let gives = |to: Option<Option<Ino>>| match (to, found) {
            (None, None) => true,
            (Some(Some(given)), Some(found)) => given == found,
            (Some(None), Some(_)) => true,
            _ => false,
        };
        // In the beginning there is nothing.
        let first = found.is_none().then_some(0);
        let settled = changes.iter().filter(|change| gives(change.to)).map(|change| change.ended).chain(first).max();
        let Some(settled) = settled else {
            return Err(format!("`{name}` is {found:?}, which nobody ever made it"));
        };
        let later = changes.iter().find(|change| change.ended < since && change.began > settled && !gives(change.to));
        match later {
            Some(later) => Err(format!(
                "`{name}` is {found:?}, as settled at {settled}, for one who looked at {since}, though it became {:?} from {} to {}",
                later.to, later.began, later.ended
            )),
            None => Ok(()),
        }
    }

    /// Whether one who began to list at `since` may have found these names and no others.
    pub fn judge_list(&self, found: &[(String, Ino)], since: Tick) -> Result<(), String> {
        for (at, (name, _)) in found.iter().enumerate() {
            if !self.names.contains_key(name) {
                return Err(format!("`{name}` is listed, which nobody ever made"));
            }
            if found[..at].iter().any(|(other, _)| other == name) {
                return Err(format!("`{name}` is listed twice"));
            }
        }
        for name in self.names.keys() {
            // What is replaced during a listing may be in it or not, as in POSIX.
            if self.names[name].changes.iter().any(|change| change.ended > since) {
                continue;
            }
            let listed = found.iter().find(|(other, _)| other == name).map(|(_, ino)| *ino);
            self.judge_name(name, listed, since).map_err(|why| format!("in a listing: {why}"))?;
        }
        Ok(())
    }
}
