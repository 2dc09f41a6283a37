//! Starting the volume of a disk that lost its power, and comparing it with what may be there.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    ops::{Range, RangeInclusive},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use rand::{Rng, rngs::StdRng};
use rustix::io::Errno;
use sluice_tests::{Mount, Scratch, Volume, eventually};

use crate::{
    disk::{Image, Survivors},
    findings::Findings,
    host::{Host, Mounted},
    model::{History, Node, State},
    workload::volume,
};

/// What is read at once around bytes that cannot be read, and of what none can be.
const BLOCKS: [usize; 3] = [32 << 10, 4096, FINEST];
pub const FINEST: usize = 128;

/// A program that is being started has the files of this process for as long at most.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// States that a failure tells of.
const NEAREST: usize = 4;

/// A tree as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found(pub BTreeMap<String, Thing>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thing {
    pub ino: u64,
    mode: u32,
    links: u64,
    size: u64,
    mtime: (i64, i64),
    target: Option<String>,
    bytes: Vec<u8>,
    /// What could not be read, EIO: ranges that do not touch.
    pub lost: Vec<Range<usize>>,
}

/// What one cut showed.
#[derive(Debug, Default)]
pub struct Seen {
    /// Bytes that were EIO, as they may be.
    pub lost_bytes: usize,
}

/// A disk after the power came back, mounted; with its volume.
struct Recovered {
    volume: Volume,
    // After the volume's processes.
    mounted: Mounted,
    _scratch: Scratch,
}

impl Recovered {
    fn new(host: &Host, image: Image) -> Self {
        host.boot();
        let scratch = Scratch::new();
        let path = scratch.path().join("disk");
        let mounted = host.mount(image, &path);
        Self { volume: volume(&path), mounted, _scratch: scratch }
    }

    fn up(&self) -> Result<Mount, String> {
        self.volume.try_up().map_err(|ran| format!("up failed: {ran:#?}"))
    }

    fn fsck(&self) -> Result<Findings, String> {
        let dir = self.volume.dir();
        let args = ["fsck".as_ref(), dir.as_os_str(), "--data".as_ref(), "--json".as_ref()];
        let ran = self.volume.sluice(args);
        Findings::parse(&ran.stdout).ok_or_else(|| format!("fsck: {ran:#?}"))
    }

    /// Unmounts. What keeps a mount busy is a program that another test of this process has just begun to start: it has our files open
    /// until it is one of its own.
    fn umount(mount: Mount) -> Result<(), String> {
        let mut ran = None;
        let done = eventually(BUSY_MAX, || ran.insert(mount.try_umount()).code == Some(0));
        let ran = ran.expect("it was tried");
        if !done {
            return Err(format!("umount: {ran:#?}"));
        }
        match mount.wait_for_the_end() {
            (Some(0), _) => Ok(()),
            (code, log) => Err(format!("the mount process ended with {code:?}:\n{log}")),
        }
    }
}

/// Starts the volume on `image` and compares it with `history` at `cut`. With `again` also what comes next: a second start, a copy that
/// fsck looks at first, and a second loss of power that this decides.
pub fn check(
    host: &Host,
    image: &Image,
    history: &History,
    cut: usize,
    again: Option<&mut StdRng>,
) -> Result<Seen, String> {
    let first = Recovered::new(host, image.clone());
    let mount = first.up()?;
    let found = read(mount.root())?;
    let possible = history.possible(cut);
    compare(history, possible.clone(), &found)?;
    let lost_bytes = found.0.values().flat_map(|thing| &thing.lost).map(Range::len).sum();
    // Opened again without having been closed: replayed once more.
    mount.kill9();
    let Some(rng) = again else { return Ok(Seen { lost_bytes }) };
    let mount = first.up()?;
    same(&found, &read(mount.root())?, "after a second replay")?;
    Recovered::umount(mount)?;
    first.fsck()?.are_of(&found)?;
    let recording = first.mounted.disk.recording();
    drop(first);

    // The power goes again, at any point of that.
    let again = rng.random_range(0..=recording.len());
    let survivors = Survivors::EVERY[rng.random_range(0..Survivors::EVERY.len())];
    let twice = Recovered::new(host, recording.cut(again, survivors, rng));
    let when = format!("after a second loss of power at {again} of {}, {survivors:?}", recording.len());
    let mount = twice.up().map_err(|error| format!("{when}: {error}"))?;
    same(&found, &read(mount.root())?, &when)?;
    Recovered::umount(mount)?;
    twice.fsck()?.are_of(&found).map_err(|error| format!("{when}: {error}"))?;
    drop(twice);

    // A copy of the same disk, which fsck opens first.
    let second = Recovered::new(host, image.clone());
    if second.volume.dir().join("meta/volume.json").exists() {
        second.fsck()?.are_of_unstored(lost_bytes > 0, history.has_large(possible))?;
    }
    let mount = second.up()?;
    same(&found, &read(mount.root())?, "from a copy of the disk")?;
    Recovered::umount(mount)?;
    let mount = second.up()?;
    same(&found, &read(mount.root())?, "after umount")?;
    mount.kill9();
    Ok(Seen { lost_bytes })
}

/// Starts the volume on an image from the time while it was being made: it is empty, at the latest when fsck, which `up` then advises,
/// has mended it.
pub fn check_new(host: &Host, image: Image) -> Result<(), String> {
    let recovered = Recovered::new(host, image);
    let mount = match recovered.volume.try_up() {
        Ok(mount) => mount,
        Err(ran) if ran.stderr.contains("fsck --repair") => {
            let ran =
                recovered.volume.sluice(["fsck".as_ref(), recovered.volume.dir().as_os_str(), "--repair".as_ref()]);
            if ran.code != Some(0) {
                return Err(format!("fsck: {ran:#?}"));
            }
            recovered.up()?
        }
        Err(ran) => return Err(format!("up failed: {ran:#?}")),
    };
    same(&Found::default(), &read(mount.root())?, "in a volume that was being made")?;
    Recovered::umount(mount)?;
    recovered.fsck()?.are_of(&Found::default())
}

fn same(expected: &Found, found: &Found, when: &str) -> Result<(), String> {
    let (none, paths) = (String::from("nothing"), expected.0.keys().chain(found.0.keys()));
    let describe = |thing: Option<&Thing>| thing.map_or(none.clone(), Thing::describe);
    match paths.into_iter().find(|path| expected.0.get(*path) != found.0.get(*path)) {
        None => Ok(()),
        Some(path) => {
            let (before, now) = (describe(expected.0.get(path)), describe(found.0.get(path)));
            Err(format!("{when} {path} is another: before {before}, now {now}"))
        }
    }
}

impl Thing {
    fn describe(&self) -> String {
        let Self { ino, mode, links, size, mtime, target, bytes, lost } = self;
        let sum = bytes.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        format!(
            "inode {ino}, mode {mode:o}, links {links}, size {size}, mtime {mtime:?}, target {target:?}, sum {sum:x}, lost {lost:?}"
        )
    }
}

/// One of the possible states has to be what was found.
fn compare(history: &History, possible: RangeInclusive<usize>, found: &Found) -> Result<(), String> {
    let durable = *possible.start();
    let mut wrong = Vec::new();
    for number in possible.clone().rev() {
        let differences = differences(history.state(number), found, durable);
        if differences.is_empty() {
            return Ok(());
        }
        wrong.push((differences.len(), number, differences));
    }
    let is_part = |state: State| differences(&state, found, durable).is_empty();
    if possible.clone().skip(1).any(|number| history.parts_of_write(number).any(is_part)) {
        return Ok(());
    }
    wrong.sort();
    wrong.truncate(NEAREST);
    let wrong: Vec<_> = wrong.iter().map(|(_, number, list)| format!("  {number}: {}", list.join(", "))).collect();
    Err(format!(
        "none of the states {possible:?} was found; the nearest, and what is wrong:\n{}\nchanges after {durable}, which was synced:\n{}",
        wrong.join("\n"),
        history.describe(&possible),
    ))
}

fn differences(state: &State, found: &Found, durable: usize) -> Vec<String> {
    let mut list = Vec::new();
    for path in found.0.keys().filter(|path| !state.names.contains_key(*path)) {
        list.push(format!("{path}: should not be there"));
    }
    for (path, node) in &state.names {
        let Some(thing) = found.0.get(path) else {
            list.push(format!("{path}: missing"));
            continue;
        };
        list.extend(difference(state, node, thing, durable).map(|what| format!("{path}: {what}")));
    }
    list
}

fn difference(state: &State, node: &Node, thing: &Thing, durable: usize) -> Option<String> {
    let ino = match node {
        Node::Dir => return (thing.mode != 0o040_755).then(|| format!("mode {:o}", thing.mode)),
        Node::Symlink(target) => {
            return (thing.target.as_ref() != Some(target)).then(|| format!("points to {:?}", thing.target));
        }
        Node::File(ino) => *ino,
    };
    let file = &state.files[&ino];
    let (mode, links) = (0o100_000 | file.mode, state.links(ino) as u64);
    if (thing.mode, thing.links) != (mode, links) {
        return Some(format!("mode {:o} and {} links, not {mode:o} and {links}", thing.mode, thing.links));
    }
    if thing.size != file.bytes.len() as u64 || thing.bytes.len() != file.bytes.len() {
        return Some(format!("{} bytes, not {}", thing.size, file.bytes.len()));
    }
    let lossy: Vec<_> = file.large.iter().filter(|(number, _)| *number > durable).map(|(_, range)| range).collect();
    if let Some(range) = thing.lost.iter().find(|lost| !is_covered(lost, &lossy)) {
        return Some(format!("EIO at {range:?}; large writes {:?}", file.large));
    }
    // What lies between the lost ranges.
    let starts = std::iter::once(0).chain(thing.lost.iter().map(|lost| lost.end));
    let ends = thing.lost.iter().map(|lost| lost.start).chain([file.bytes.len()]);
    let wrong = starts.zip(ends).find(|(start, end)| thing.bytes[*start..*end] != file.bytes[*start..*end]);
    let (start, end) = wrong?;
    let at = (start..end).find(|at| thing.bytes[*at] != file.bytes[*at])?;
    let zeros = thing.bytes[at..].iter().take_while(|byte| **byte == 0).count();
    Some(format!("{} bytes, wrong from {at} on ({zeros} zeros there)", file.bytes.len()))
}

/// Whether the ranges, as far as reads can tell their ends, hold all of `lost`.
fn is_covered(lost: &Range<usize>, ranges: &[&Range<usize>]) -> bool {
    let mut at = lost.start;
    while at < lost.end {
        let holds = |range: &&&Range<usize>| range.start / FINEST * FINEST <= at && at < range.end;
        match ranges.iter().filter(holds).map(|range| range.end.next_multiple_of(FINEST)).max() {
            Some(end) => at = end,
            None => return false,
        }
    }
    true
}

fn read(root: &Path) -> Result<Found, String> {
    let mut found = Found::default();
    read_into(root, "", &mut found.0).map_err(|error| format!("reading the tree: {error}"))?;
    Ok(found)
}

fn read_into(dir: &Path, prefix: &str, found: &mut BTreeMap<String, Thing>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, name) = (entry.path(), format!("{prefix}{}", entry.file_name().to_string_lossy()));
        let meta = fs::symlink_metadata(&path)?;
        let mut thing = Thing {
            ino: meta.ino(),
            mode: meta.mode(),
            links: meta.nlink(),
            size: if meta.is_dir() { 0 } else { meta.size() },
            mtime: (meta.mtime(), meta.mtime_nsec()),
            target: None,
            bytes: Vec::new(),
            lost: Vec::new(),
        };
        if meta.is_symlink() {
            thing.target = Some(fs::read_link(&path)?.to_string_lossy().into_owned());
        } else if meta.is_dir() {
            read_into(&path, &format!("{name}/"), found)?;
        } else {
            (thing.bytes, thing.lost) = read_file(&path)?;
        }
        found.insert(name, thing);
    }
    Ok(())
}

/// The bytes of a file, and which blocks of it cannot be read.
fn read_file(path: &Path) -> io::Result<(Vec<u8>, Vec<Range<usize>>)> {
    match fs::read(path) {
        Err(error) if is_eio(&error) => {}
        other => return Ok((other?, Vec::new())),
    }
    // Past the page cache, which can only tell of whole pages.
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    let mut lost = Vec::new();
    read_blocks(&file, &mut bytes, 0, &BLOCKS, &mut lost)?;
    Ok((bytes, lost))
}

/// Reads in blocks of the first size, where that fails in blocks of the next, and notes where the last one fails.
fn read_blocks(
    file: &File,
    out: &mut [u8],
    start: usize,
    sizes: &[usize],
    lost: &mut Vec<Range<usize>>,
) -> io::Result<()> {
    let Some((size, finer)) = sizes.split_first() else {
        match lost.last_mut().filter(|last| last.end == start) {
            Some(last) => last.end += out.len(),
            None => lost.push(start..start + out.len()),
        }
        return Ok(());
    };
    for (index, block) in out.chunks_mut(*size).enumerate() {
        let at = start + index * size;
        match file.read_exact_at(block, at as u64) {
            Err(error) if is_eio(&error) => read_blocks(file, block, at, finer, lost)?,
            other => other?,
        }
    }
    Ok(())
}

fn is_eio(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::IO)
}
