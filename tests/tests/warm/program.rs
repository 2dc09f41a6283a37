//! Lists, programs, and being ahead of them.

use crate::{check, cold, number, volume};
use sluice_tests::{shell, skipped_in_local_mode, sluice_binary, wait_for};
use std::{fs, time::Duration};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_list_comes_from_standard_input() {
    if skipped_in_local_mode("a_list_comes_from_standard_input") {
        return;
    }
    let volume = volume();
    let (mount, files) = cold(&volume);
    let script = format!("find . -type f | sort | {} warmup --from - --wait --json", sluice_binary().display());
    let warmed = shell(mount.root(), &script).json();
    assert_eq!((&warmed["files_done"], &warmed["files_failed"]), (&3.into(), &0.into()), "{warmed}");
    assert_eq!(check(&volume, mount.root())["local_bytes"], files.iter().map(Vec::len).sum::<usize>());
}

#[test]
fn a_program_is_learnt_and_then_kept_ahead_of() {
    if skipped_in_local_mode("a_program_is_learnt_and_then_kept_ahead_of") {
        return;
    }
    let volume = volume();
    let (mount, files) = cold(&volume);
    let (list, sluice) = (volume.dir().join("order"), sluice_binary());
    let (list, sluice) = (list.display(), sluice.display());
    let program = "sh -c 'cat c dir/a >/dev/null; cat dir/a dir/sub/b >/dev/null; exit 3'";
    let script = format!("{sluice} warmup --learn {list} . -- {program} || test $? = 3");
    shell(mount.root(), &script);
    let order = fs::read_to_string(volume.dir().join("order")).unwrap();
    let expected: Vec<_> =
        ["c", "dir/a", "dir/sub/b"].iter().map(|name| mount.path(name).display().to_string()).collect();
    assert_eq!(order.lines().collect::<Vec<_>>(), expected);
    shell(mount.root(), &format!("{sluice} evict ."));
    assert_eq!(check(&volume, mount.root())["local_bytes"], 0);
    // The program itself reads nothing: what becomes warm is the list's.
    shell(mount.root(), &format!("test \"$({sluice} warmup --from {list} -- echo started)\" = started"));
    let all: usize = files.iter().map(Vec::len).sum();
    wait_for("the list to be warm", LIMIT, || check(&volume, mount.root())["local_bytes"] == all);
    wait_for("the warm-up to be over", LIMIT, || mount.status()["warmups"].as_array().is_some_and(Vec::is_empty));
    let before = number(&mount, "fetches");
    assert!(fs::read(mount.path("dir/a")).unwrap() == files[0]);
    assert_eq!(number(&mount, "fetches"), before);
}
