//! Mistakes of people: refused with exit status 1 and an explanation, without touching anything.

use std::{fs, path::Path, process::Command};

use sluice_tests::{Gateway, SECRET, Scratch, TreeOptions, Volume, read_tree, run, sluice, sluice_binary, wait_for};

use crate::needs_binary;

const EVERYTHING: TreeOptions = TreeOptions { times: true, xattrs: true };

fn shown(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

#[test]
fn format_over_an_existing_volume_needs_force() {
    needs_binary!();
    let scratch = Scratch::new();
    let (meta, objects) = (shown(&scratch.path().join("volume")), scratch.path().join("objects"));
    let store = format!("file:{}", objects.display());
    sluice(["format", &meta, "--store", &store]).ok();
    let before = read_tree(scratch.path(), EVERYTHING).unwrap();
    sluice(["format", &meta, "--store", &store]).refused_with(&["--force"]);
    assert!(read_tree(scratch.path(), EVERYTHING).unwrap() == before, "the refusal changed something");
    sluice(["format", &format!("local:{meta}"), "--store", &store, "--force"]).ok();
}

#[test]
fn a_bucket_that_is_not_there_is_named() {
    needs_binary!();
    let gateway = Gateway::new();
    let volume = gateway.credentials(Volume::new());
    let url = gateway.url("no-such-bucket", "volume");
    let ran = volume.sluice(["format", volume.dir().to_str().unwrap(), "--store", &url]);
    ran.refused_with(&["no-such-bucket", "bucket"]);
    let volume = volume.option("--store", url);
    volume.try_up().expect_err("mounted without a bucket").refused_with(&["no-such-bucket"]);
}

#[test]
fn wrong_keys_are_called_wrong_keys() {
    needs_binary!();
    let gateway = Gateway::new();
    gateway.bucket("bucket");
    let url = gateway.url("bucket", "volume");
    let right = gateway.credentials(Volume::new()).option("--store", url);
    for (variable, value) in [("AWS_SECRET_ACCESS_KEY", "wrong-secret"), ("AWS_ACCESS_KEY_ID", "nobody")] {
        let wrong = right.clone().env(variable, value);
        let ran = wrong.try_up().expect_err("mounted with wrong keys").refused_with(&["bucket", "key|credential"]);
        assert!(!ran.stderr.contains(SECRET) && !ran.stderr.contains("wrong-secret"), "a secret in a message");
    }
    right.up().umount();
}

#[test]
fn a_store_that_does_not_answer_is_named() {
    needs_binary!();
    let mut gateway = Gateway::new();
    gateway.stop();
    let volume = gateway.credentials(Volume::new()).option("--store", gateway.url("bucket", "volume"));
    volume.try_up().expect_err("mounted without a store").refused_with(&["127.0.0.1|bucket"]);
}

#[test]
fn a_mount_point_must_be_an_empty_directory() {
    needs_binary!();
    let volume = Volume::new();
    let missing = volume.mountpoint().join("missing");
    let ran = volume.try_up_at(&missing).expect_err("mounted on nothing");
    ran.refused_with(&[missing.to_str().unwrap(), "exist|no such"]);
    fs::write(volume.mountpoint().join("file"), b"in the way").unwrap();
    let ran = volume.try_up().expect_err("mounted over a file");
    ran.refused_with(&[volume.mountpoint().to_str().unwrap(), "empty"]);
    let ran = volume.try_up_at(&volume.mountpoint().join("file")).expect_err("mounted on a file");
    ran.refused_with(&["directory"]);
    assert_eq!(fs::read(volume.mountpoint().join("file")).unwrap(), b"in the way");
}

#[test]
fn a_mount_point_is_used_once() {
    needs_binary!();
    let (first, second) = (Volume::new(), Volume::new());
    let mount = first.up();
    fs::write(mount.path("f"), b"here").unwrap();
    let ran = second.try_up_at(mount.root()).expect_err("mounted over a mount");
    ran.refused_with(&["mounted"]);
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"here");
    mount.umount();
    let ran = first.sluice(["umount".as_ref(), first.mountpoint().as_os_str()]);
    ran.refused_with(&["not mounted|no mount|not a mount"]);
}

#[test]
fn the_second_process_is_told_who_holds_the_volume() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    let elsewhere = Scratch::new();
    let ran = volume.try_up_at(elsewhere.path()).expect_err("mounted twice");
    ran.refused_with(&[&mount.pid().to_string()]);
    fs::write(mount.path("f"), b"unharmed").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"unharmed");
}

#[test]
fn a_newer_format_is_left_alone() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    fs::write(mount.path("f"), b"from the future").unwrap();
    mount.umount();
    let path = volume.dir().join("meta/volume.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let version = json["format_version"].as_u64().expect("a number in format_version");
    json["format_version"] = (version + 1).into();
    fs::write(&path, json.to_string()).unwrap();
    let before = read_tree(&volume.dir(), EVERYTHING).unwrap();
    let newer = (version + 1).to_string();
    volume.try_up().expect_err("mounted a newer format").refused_with(&["newer", &newer]);
    for command in [&["fsck", "--repair"][..], &["gc", "--delete"]] {
        let mut args: Vec<_> = command.iter().map(Into::into).collect::<Vec<std::ffi::OsString>>();
        args.insert(1, volume.dir().into());
        volume.sluice(args).refused_with(&["newer"]);
    }
    assert!(read_tree(&volume.dir(), EVERYTHING).unwrap() == before, "a volume of a newer format was changed");
}

#[test]
fn a_detached_start_reports_how_it_went() {
    needs_binary!();
    let volume = Volume::new();
    let (dir, mnt) = (volume.dir(), volume.mountpoint());
    let bad = mnt.join("missing");
    volume.sluice(["up".as_ref(), dir.as_os_str(), bad.as_os_str(), "-d".as_ref()]).refused_with(&["exist|no such"]);
    volume.sluice(["up".as_ref(), dir.as_os_str(), mnt.as_os_str(), "-d".as_ref()]).ok();
    // Mounted when the command returns, not some time later.
    fs::write(mnt.join("f"), b"at once").unwrap();
    for argument in [&dir, &mnt] {
        let status = volume.sluice(["status".as_ref(), argument.as_os_str(), "--json".as_ref()]).ok().json();
        assert!(status.is_object(), "{status}");
    }
    volume.sluice(["umount".as_ref(), mnt.as_os_str()]).ok();
    // A shell that has a file open, perhaps of another mount, which would stay busy.
    let open = dir.with_file_name("open");
    let script = r#"exec 7>"$0"; exec "$@""#;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(&open).arg(sluice_binary()).args([
        "up".as_ref(),
        dir.as_os_str(),
        mnt.as_os_str(),
        "-d".as_ref(),
    ]);
    run(&mut shell, std::time::Duration::from_secs(30)).ok();
    let pid = sluice(["status".as_ref(), dir.as_os_str(), "--json".as_ref()]).ok().json()["pid"].clone();
    let open_there = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open_there: Vec<_> = open_there.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    assert!(open_there.len() > 3 && !open_there.contains(&open), "{open_there:?}");
    volume.sluice(["umount".as_ref(), mnt.as_os_str()]).ok();
    wait_for("the mount point to be empty", std::time::Duration::from_secs(5), || !mnt.join("f").exists());
    volume.fsck_is_clean();
}

#[test]
fn every_command_explains_itself() {
    needs_binary!();
    for command in ["up", "umount", "status", "format", "fsck", "gc"] {
        let help = sluice([command, "--help"]).ok();
        assert!(help.stdout.lines().count() >= 5, "{command} --help teaches little: {}", help.stdout);
        let unknown = sluice([command, "--no-such-option"]);
        assert!(unknown.code.is_some_and(|c| c != 0) && !unknown.stderr.is_empty(), "{unknown:#?}");
    }
    let nothing = Command::new(sluice_tests::sluice_binary()).output().unwrap();
    assert!(!nothing.status.success());
}
