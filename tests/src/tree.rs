//! A whole tree read into memory, and the difference of two.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use rustix::{
    fs::{self as sys, FileType},
    io::Errno,
};

/// What of a tree takes part in a comparison.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Modification times, to the nanosecond.
    pub times: bool,
    /// The attributes in the namespaces `user`, `trusted` and `security`.
    pub xattrs: bool,
}

/// One file, directory, link or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count; a directory counts its subdirectories, as on ext4.
    pub nlink: u64,
    /// Size in bytes; 0 for directories, whose size is every file system's own affair.
    pub size: u64,
    /// Device number of devices.
    pub rdev: u64,
    /// Seconds and nanoseconds, when asked for.
    pub mtime: Option<(i64, u64)>,
    /// The first path (in byte order) that names the same inode.
    pub same_as: Option<Vec<u8>>,
    /// A hash of a file's bytes, or a link's target.
    pub content: Content,
    /// Attributes, when asked for.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What is in a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A regular file: a hash of its bytes.
    Hash(u64),
    /// A symbolic link: its target.
    Target(Vec<u8>),
    /// Anything else.
    None,
}

/// Paths relative to the root, with what they name. The root itself is the empty path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// Reads everything under `root`.
///
/// # Errors
/// The first error met, with its path.
pub fn read_tree(root: &Path, options: TreeOptions) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut first_names = HashMap::new();
    let mut todo = vec![Vec::new()];
    while let Some(relative) = todo.pop() {
        let path = root.join(std::ffi::OsStr::from_bytes(&relative));
        let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what} {}: {e}", path.display());
        let stat = sys::lstat(&path).map_err(|e| fail("lstat", &e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let content = match kind {
            FileType::RegularFile => Content::Hash(hash_file(&path).map_err(|e| fail("read", &e))?),
            FileType::Symlink => Content::Target(
                std::fs::read_link(&path).map_err(|e| fail("readlink", &e))?.into_os_string().into_vec(),
            ),
            _ => Content::None,
        };
        if kind == FileType::Directory {
            for entry in std::fs::read_dir(&path).map_err(|e| fail("readdir", &e))? {
                let name = entry.map_err(|e| fail("readdir", &e))?.file_name();
                let mut child = relative.clone();
                if !child.is_empty() {
                    child.push(b'/');
                }
                child.extend(name.as_bytes());
                todo.push(child);
            }
        }
        let first = first_names.entry(stat.st_ino).or_insert_with(|| relative.clone());
        if *first > relative {
            first.clone_from(&relative);
        }
        let is_dir = kind == FileType::Directory;
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        let node = Node {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: stat.st_nlink as u64,
            size: if is_dir { 0 } else { stat.st_size as u64 },
            rdev: if is_device { stat.st_rdev } else { 0 },
            mtime: options.times.then_some((stat.st_mtime, stat.st_mtime_nsec as u64)),
            // The inode, until every name of it has been seen.
            same_as: (!is_dir && stat.st_nlink > 1).then(|| stat.st_ino.to_le_bytes().to_vec()),
            content,
            xattrs: if options.xattrs {
                read_xattrs(&path).map_err(|e| fail("xattrs of", &e))?
            } else {
                BTreeMap::new()
            },
        };
        tree.insert(relative, node);
    }
    for node in tree.values_mut() {
        if let Some(inode) = &mut node.same_as {
            let number = u64::from_le_bytes(inode.as_slice().try_into().expect("eight bytes"));
            inode.clone_from(&first_names[&number]);
        }
    }
    Ok(tree)
}

fn hash_file(path: &Path) -> std::io::Result<u64> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        // Fill the buffer before hashing it: the hash depends on how the bytes are cut.
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        buffer[..filled].hash(&mut hasher);
        if filled < buffer.len() {
            return Ok(hasher.finish());
        }
    }
}

fn read_xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
    let mut names = vec![0; 65536];
    let len = sys::llistxattr(path, &mut names)?;
    let mut found = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0) {
        if [&b"user."[..], b"trusted.", b"security."].iter().any(|n| name.starts_with(n)) {
            let mut value = vec![0; 65536];
            let len = sys::lgetxattr(path, name, &mut value)?;
            value.truncate(len);
            found.insert(name.to_vec(), value);
        }
    }
    Ok(found)
}

/// Compares two trees on disk; an empty string means that they are equal.
///
/// # Panics
/// When one of them cannot be read.
#[track_caller]
pub fn compare_trees(left: &Path, right: &Path, options: TreeOptions) -> String {
    let read = |root: &Path| read_tree(root, options).unwrap_or_else(|e| panic!("{e}"));
    diff(&read(left), &read(right))
}

fn diff(left: &Tree, right: &Tree) -> String {
    /// Enough to see the pattern, few enough to read.
    const SHOWN_MAX: usize = 20;
    let paths: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let mut out = String::new();
    let different = paths.into_iter().filter(|p| left.get(*p) != right.get(*p));
    for path in different.take(SHOWN_MAX) {
        let show = |side: Option<&Node>| side.map_or("missing".to_owned(), |n| format!("{n:?}"));
        let name = String::from_utf8_lossy(path);
        writeln!(out, "{name}:\n  left  {}\n  right {}", show(left.get(path)), show(right.get(path)))
            .expect("to a string");
    }
    out
}
