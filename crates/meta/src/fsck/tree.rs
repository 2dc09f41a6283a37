//! Directories that no way from the root leads to although they have names: loops.

use super::{Problem, scan::Scan};
use crate::{Result, records::mode};
use sluice_base::Ino;
use sluice_run::collections::HashMap;

/// Where the way up from a directory ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// On the walk that is under way.
    Walked,
    /// Known: at the root, at an inode that is a finding itself, or in a loop that is found.
    Known,
}

impl Scan<'_> {
    pub fn tree(&mut self) -> Result<()> {
        let mut ways: HashMap<Ino, Way> = HashMap::from_iter([(Ino::ROOT, Way::Known)]);
        let dirs = self.nodes.iter().filter(|(_, node)| node.kind == mode::DIRECTORY && node.named_in.is_some());
        let mut dirs: Vec<Ino> = dirs.map(|(ino, _)| *ino).collect();
        dirs.sort_unstable();
        let mut path = Vec::new();
        for start in dirs {
            let mut at = start;
            let loops = loop {
                match ways.get(&at) {
                    Some(Way::Known) => break false,
                    Some(Way::Walked) => break true,
                    None => {}
                }
                ways.insert(at, Way::Walked);
                path.push(at);
                match self.nodes.get(&at).and_then(|node| node.named_in) {
                    Some((dir, _)) => at = dir,
                    None => break false,
                }
            };
            if loops {
                self.add_loop(at)?;
            }
            ways.extend(path.drain(..).map(|ino| (ino, Way::Known)));
        }
        Ok(())
    }

    fn add_loop(&mut self, ino: Ino) -> Result<()> {
        let Some((dir, cookie)) = self.nodes.get(&ino).and_then(|node| node.named_in) else { return Ok(()) };
        // Without a name by cookie, the pair of records is mended first and the loop is met again.
        if let Some(name) = self.name_of(dir, cookie)? {
            self.report.add(Problem::Loop { ino, dir, name, cookie });
        }
        Ok(())
    }
}
