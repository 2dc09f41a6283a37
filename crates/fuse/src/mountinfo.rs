//! /proc/self/mountinfo (proc_pid_mountinfo(5)).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The uppermost mount at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// `MAJOR:MINOR` of the device.
    pub(crate) device: String,
    /// File system type, with the subtype after a dot.
    pub(crate) kind: String,
}

/// What is mounted exactly at `path`, without touching it.
pub(crate) fn find(path: &Path) -> io::Result<Option<Mount>> {
    Ok(find_in(&std::fs::read("/proc/self/mountinfo")?, path))
}

fn find_in(table: &[u8], path: &Path) -> Option<Mount> {
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(|line| parse(line, path)).next_back()
}

/// `36 35 98:0 /root /mnt/point rw,noatime shared:1 - ext3 /dev/root rw`, where the fields before the dash vary.
fn parse(line: &[u8], path: &Path) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = fields.nth(2)?;
    let place = fields.nth(1)?;
    if OsStr::from_bytes(&unescape(place)) != path.as_os_str() {
        return None;
    }
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Mount { device: text(device), kind: text(kind) })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if byte == b'\\' => {
                plain.push(value);
                rest = &tail[3..];
            }
            _ => {
                plain.push(byte);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_uppermost_mount() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 0:50 / /mnt/a\\040b rw,nosuid shared:7 - fuse.sluice local:/x rw\n\
            41 40 0:51 / /mnt/a\\040b rw - tmpfs none rw\n";
        let found = find_in(table, Path::new("/mnt/a b")).unwrap();
        assert_eq!((found.device.as_str(), found.kind.as_str()), ("0:51", "tmpfs"));
        assert_eq!(find_in(table, Path::new("/mnt")), None);
        assert_eq!(find_in(b"\n1 2\n- - - - -\n", Path::new("-")), None);
    }
}
