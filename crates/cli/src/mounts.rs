//! Which volume is mounted where, from /proc/self/mountinfo.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The volume's directory that is mounted at `mountpoint` itself (the topmost mount there).
pub fn volume_at(mountpoint: &Path) -> Option<PathBuf> {
    let wanted = std::path::absolute(mountpoint).ok()?;
    // A dead mount cannot be resolved, a live one should be: compare both forms.
    let resolved = wanted.parent().and_then(|parent| Some(parent.canonicalize().ok()?.join(wanted.file_name()?)));
    let table = fs::read("/proc/self/mountinfo").ok()?;
    table
        .split(|byte| *byte == b'\n')
        .filter_map(parse)
        .rfind(|(at, _)| *at == wanted || Some(at) == resolved.as_ref())
        .map(|(_, dir)| dir)
}

/// Mount point and volume directory of a line, when it is one of ours (proc_pid_mountinfo(5)).
fn parse(line: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    if *fields.get(dash + 1)? != b"fuse.sluice" {
        return None;
    }
    let source = unescape(fields.get(dash + 2)?);
    let dir = source.strip_prefix(b"local:")?.to_vec();
    Some((PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))), PathBuf::from(OsString::from_vec(dir))))
}

/// Octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = b"99 30 0:77 / /mnt/a\\040b rw,relatime - fuse.sluice local:/srv/v rw,user_id=0";
        assert_eq!(parse(line), Some((PathBuf::from("/mnt/a b"), PathBuf::from("/srv/v"))));
        assert_eq!(parse(b"99 30 0:77 / /mnt rw - ext4 /dev/vda rw"), None);
    }
}
