//! `sluice bench fs`: what it reports is there and sound on a plain directory and on a mount, what is corrected is so, nothing is left behind.

use rustix::{
    fs::{SeekFrom, seek},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;
use sluice_tests::{
    NOBODY, Scratch, Server, SmallDisk, Volume, as_user, needs_binary, run, shell, sluice, sluice_binary, wait_for,
};
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

const SMALL: [&str; 10] =
    ["--size", "2M", "--seconds", "0.2", "--files", "20", "--small-files", "120", "--threads", "2"];
const LIMIT: Duration = Duration::from_secs(60);

/// The lines of a small run.
fn lines(dirs: &[&Path], args: &[&str]) -> Vec<Value> {
    let dirs = dirs.iter().map(|dir| dir.to_str().expect("text"));
    let ran = sluice(["bench", "fs", "--json"].into_iter().chain(SMALL).chain(args.iter().copied()).chain(dirs)).ok();
    ran.stdout.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("a directory").next().is_none()
}

/// Everything, and what must be so.
fn check_everything(dir: &Path, is_tier: impl Fn(&str) -> bool) {
    let lines = lines(&[dir], &[]);
    let name = |line: &Value| {
        let text = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
        format!("{} {} {}", text("workload"), text("variant"), text("offsets"))
    };
    let names: Vec<_> = lines.iter().map(name).collect();
    let expected = [
        "seq-write seed -",
        "seq-read seed -",
        "rand-write seed unaligned",
        "rand-read seed unaligned",
        "metadata seed -",
        "small-files seed -",
        "seq-write corrected -",
        "seq-read corrected -",
        "rand-read corrected aligned",
        "rand-read corrected unaligned",
        "rand-write corrected aligned",
        "rand-write corrected unaligned",
        "metadata corrected -",
        "small-files corrected -",
    ];
    assert_eq!(names, expected);
    for line in &lines {
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"));
        for key in ["mb_per_s", "ops_per_s", "p50_us", "seconds", "ops"] {
            assert!(number(key) > 0.0, "{key} in {line}");
        }
        let times = ["p50_us", "p95_us", "p99_us", "max_us"].map(number);
        assert!(times.is_sorted(), "{line}");
        assert!((number("ops") / number("seconds") / number("ops_per_s") - 1.0).abs() < 0.01, "{line}");
        assert_eq!((line["errors"].as_u64(), &line["first_error"]), (Some(0), &Value::Null), "{line}");
        assert_eq!(line["dir"].as_str(), dir.to_str());
        assert!(is_tier(line["tier"].as_str().expect("a tier")), "{line}");
        assert_eq!(line["unstored_bytes"].is_u64(), line["fs"] == "fuse.sluice", "{line}");
        // Of the published program only the small files have threads.
        let is_alone = line["variant"] == "seed" && line["workload"] != "small-files";
        assert_eq!(line["threads"], if is_alone { 1 } else { 2 }, "{line}");
        if line["workload"].as_str().is_some_and(|workload| workload.ends_with("-read")) {
            let is_whole = line["variant"] == "corrected" || line["workload"] == "seq-read";
            let part = number("written_part");
            assert!(part == 1.0 || (!is_whole && part > 0.0), "{line}");
        }
    }
    let ops = |at: usize| lines[at]["ops"].as_u64();
    assert_eq!([0, 1, 4, 5].map(ops), [Some(4), Some(4), Some(3 * 20), Some(4 * 120)]);
    assert_eq!([6, 7, 12, 13].map(ops), [Some(4), Some(4), Some(3 * 20), Some(4 * 120)]);
    assert!(is_empty(dir), "something is left");
}

#[test]
fn everything_on_a_plain_directory() {
    let scratch = Scratch::new();
    check_everything(scratch.path(), |tier| !tier.is_empty() && tier != "journal" && tier != "unknown");
}

#[test]
fn everything_on_a_mount() {
    needs_binary!();
    let mount = Volume::new().up();
    fs::create_dir(mount.path("sub")).expect("mkdir");
    check_everything(&mount.path("sub"), |tier| tier == "journal");
    mount.umount();
}

#[test]
fn a_mount_of_a_served_volume_has_its_tier() {
    needs_binary!();
    let server = Server::new();
    for (tier, has_unstored) in [("journal", true), ("object", false)] {
        let mount = server.try_mount(tier, &["--durability", tier, "--upload-delay", "1h"]).expect("mounted");
        let lines = lines(&[mount.root()], &["--workload", "metadata,seq-write"]);
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line["tier"] == tier && line["errors"] == 0), "{lines:?}");
        // What was synced is in the store, or only here.
        let writes = lines.iter().filter(|line| line["workload"] == "seq-write");
        let mut unstored = writes.map(|line| line["unstored_bytes"].as_u64().expect("a number"));
        assert!(unstored.all(|bytes| (bytes > 0) == has_unstored), "{lines:?}");
        mount.umount();
    }
}

/// Interrupts a run of random reads once `is_ready` says so of both of its files; nothing may be left.
fn interrupt(dir: &Path, variant: &str, kind: &str, is_ready: impl Fn(&File) -> bool) {
    let args = ["bench", "fs", "--workload", "rand-read", "--size", "4M", "--threads", "2", "--seconds", "3600"];
    let mut command = Command::new(sluice_binary());
    let mut child = command
        .args(args)
        .args(["--variant", variant])
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start sluice");
    let is_ready = |at: usize| {
        let root = fs::read_dir(dir).expect("a directory").next()?.ok()?.path();
        let file = File::open(root.join(format!("{kind}-{at}"))).ok()?;
        (file.metadata().ok()?.len() == 4 << 20 && is_ready(&file)).then_some(())
    };
    wait_for("the files", LIMIT, || {
        assert!(child.try_wait().expect("wait").is_none(), "it ended");
        is_ready(0).and(is_ready(1)).is_some()
    });
    kill_process(Pid::from_child(&child), Signal::INT).expect("SIGINT");
    let mut status = None;
    wait_for("the end", LIMIT, || {
        status = child.try_wait().expect("wait");
        status.is_some()
    });
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(status.expect("ended").code() == Some(1) && said.contains("interrupted"), "{status:?} {said}");
    assert!(is_empty(dir), "something is left");
}

/// The tool's own word for it is not enough: this looks at the files while it reads.
#[test]
fn random_reads_are_of_written_bytes_where_corrected_and_ctrl_c_removes_them() {
    let has_no_hole = |file: &File| seek(file, SeekFrom::Hole(0)).is_ok_and(|hole| hole == 4 << 20);
    let has_no_data = |file: &File| seek(file, SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO);
    let scratch = Scratch::new();
    interrupt(scratch.path(), "corrected", "data", has_no_hole);
    interrupt(scratch.path(), "seed", "rand", has_no_data);
    needs_binary!();
    let mount = Volume::new().up();
    interrupt(mount.root(), "corrected", "data", has_no_hole);
    interrupt(mount.root(), "seed", "rand", has_no_data);
}

/// Goes before the C library's: the call that is named fails.
const NO_SYNC: &str = r#"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
static int fail(const char *name) {
    const char *failing = getenv("SLUICE_TEST_FAILS");
    if (!failing || strcmp(failing, name)) return 0;
    errno = EIO;
    return -1;
}
int fsync(int fd) { (void)fd; return fail("fsync"); }
int fdatasync(int fd) { (void)fd; return fail("fdatasync"); }
"#;

/// An operation that includes a sync fails with it, and then counts no bytes.
#[test]
fn a_sync_is_a_part_of_the_operation_where_corrected() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("sync.c"), NO_SYNC).expect("a file");
    shell(scratch.path(), "cc -shared -fPIC -o sync.so sync.c");
    let dir = scratch.path().join("work");
    fs::create_dir(&dir).expect("mkdir");
    let measure = |call: &str, workload: &str, variant: &str| {
        let mut command = Command::new(sluice_binary());
        command.args(["bench", "fs", "--json"]).args(SMALL).args(["--workload", workload, "--variant", variant]);
        command.arg(&dir).env("LD_PRELOAD", scratch.path().join("sync.so")).env("SLUICE_TEST_FAILS", call);
        run(&mut command, LIMIT)
    };
    let errors = |call: &str, workload: &str, variant: &str| {
        let ran = measure(call, workload, variant);
        let line: Value = serde_json::from_str(ran.stdout.lines().next().expect("a line")).expect("an object");
        let errors = line["errors"].as_u64().expect("a number");
        assert_eq!(ran.code, Some(i32::from(errors > 0)), "{ran:?}");
        assert_eq!(ran.stderr.contains("errors, the first: Input/output error"), errors > 0, "{ran:?}");
        assert!(is_empty(&dir), "something is left");
        (errors, line["ops"].as_u64().expect("a number"), line["mb_per_s"].as_f64().expect("a number"))
    };
    // Each of two threads at the end of its file, whose last MiB of two does not count.
    let (failed, ops, _) = errors("fsync", "seq-write", "corrected");
    assert_eq!((failed, ops), (2, 4));
    assert_eq!(errors("fsync", "seq-write", "seed").0, 2, "as published");
    // Each creation; after creations and after deletions each directory: one, and three.
    let (failed, _, rate) = errors("fsync", "metadata", "corrected");
    assert_eq!((failed, rate), (20 + 2, 0.0));
    assert_eq!(errors("fsync", "small-files", "corrected").0, 120 + 2 * 3);
    let (failed, ops, rate) = errors("fdatasync", "rand-write", "corrected");
    assert!(failed == ops && rate == 0.0, "{failed} of {ops}, {rate}");
    for (call, workload) in [("fsync", "metadata"), ("fsync", "small-files"), ("fdatasync", "rand-write")] {
        assert_eq!(errors(call, workload, "seed").0, 0, "{workload}");
    }
    // Files that cannot be made ready end everything.
    measure("fsync", "rand-read", "corrected").refused_with(&["preparing files in", "Input/output error"]);
    assert!(is_empty(&dir), "something is left");
}

#[test]
fn two_directories_in_turns() {
    let (one, two) = (Scratch::new(), Scratch::new());
    let narrow = ["--workload", "metadata,rand-read", "--variant", "corrected", "--offsets", "unaligned"];
    let lines = lines(&[one.path(), two.path()], &narrow);
    let dirs: Vec<_> = lines.iter().map(|line| line["dir"].as_str().expect("a name")).collect();
    let [one, two] = [one.path(), two.path()].map(|dir| dir.to_str().expect("text"));
    assert_eq!(dirs, [one, two, one, two]);
    for line in &lines {
        let each: Vec<f64> =
            line["ops_per_s_of_rounds"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
        assert_eq!((each.len(), line["rounds"].as_u64()), (2, Some(2)), "{line}");
        let median = line["ops_per_s"].as_f64().expect("a number");
        assert!((median - each.iter().sum::<f64>() / 2.0).abs() < median / 1e6, "{line}");
    }
}

#[test]
fn runs_are_saved_and_drawn_beside_each_other() {
    let scratch = Scratch::new();
    let [work, saved, chart] = ["work", "before.json", "chart.svg"].map(|name| scratch.path().join(name));
    fs::create_dir(&work).expect("mkdir");
    let narrow = ["--workload", "metadata,seq-write"];
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let before = lines(&[&work], &narrow);
    let before: String = before.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&saved, before).expect("a file");
    let [saved, drawn] = [text(&saved), text(&chart)];
    let now = lines(&[&work], &[&narrow[..], &["--compare", &saved, "--chart", &drawn]].concat());
    assert_eq!(now.len(), 4, "what was saved is not told again");
    let both = fs::read_to_string(&chart).expect("a picture");
    let run = format!("{}: ", work.display());
    let run: String = run.chars().skip(run.chars().count().saturating_sub(20)).collect();
    assert!(both.starts_with("<svg"), "{both}");
    for words in ["metadata corrected, operations/s", "seq-write seed, MB/s", "before: ", &run] {
        assert!(both.contains(words), "{words}: {both}");
    }
    // Alone, with the table.
    let ran = sluice(["bench", "fs", "--compare", &saved, "--chart", &drawn]).ok();
    assert_eq!(ran.stdout.lines().filter(|line| line.ends_with("before")).count(), 4, "{ran:?}");
    let alone = fs::read_to_string(&chart).expect("a picture");
    assert!(alone.contains("before: ") && !alone.contains(&run), "{alone}");
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let scratch = Scratch::new();
    let file = scratch.path().join("file");
    fs::write(&file, "no run\n").expect("a file");
    let [dir, file] = [scratch.path(), &file].map(|path| path.to_str().expect("text").to_owned());
    for (args, words) in [
        (&["/no/such/place"][..], &["/no/such/place does not exist", "name a directory"][..]),
        (&[&dir, "/no/such/place"], &["does not exist"]),
        (&[&file], &["is not a directory"]),
        (&[&dir, "--seconds", "0"], &["--seconds 0"]),
        (&[&dir, "--size", "1K"], &["--size is 64K to 1T"]),
        (&[&dir, "--block", "100"], &["--block is 512 to 16M"]),
        (&[&dir, "--size", "64K", "--block", "64K"], &["at most half of --size"]),
        (&[&dir, "--size", "1T", "--threads", "256"], &["256.00 TiB are needed", "smaller --size"]),
        (&[&dir, &format!("{dir}/.")], &["are the same directory", "--rounds"]),
        (&[&dir, "--chart", "/no/such/chart.svg"], &["/no/such/chart.svg", "no such file"]),
        (&["--compare", &file], &["is no run saved with --json"]),
        (&["--compare", "/no/such/file"], &["/no/such/file", "no such file"]),
    ] {
        sluice([&["bench", "fs"], args].concat()).refused_with(words);
    }
    for (args, words) in [
        (&[][..], "<DIR>"),
        (&["--compare", &file, "--json"], "<DIR>"),
        (&["--compare", &file, "--threads", "2"], "<DIR>"),
        (&[&dir, "--workload", "no-such"], "choose from seq-write"),
        (&[&dir, "--variant", "no-such"], "choose from seed, corrected"),
        (&[&dir, "--threads", "0"], "1..=256"),
        (&[&dir, "--chart", "picture.png"], "name the file .svg"),
    ] {
        let ran = sluice([&["bench", "fs"], args].concat());
        assert!(ran.code == Some(2) && ran.stderr.contains(words), "{words}: {ran:?}");
    }
    assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 1, "something is left");
    // A chart that cannot be drawn costs nobody a run: the default one takes minutes. Nor does one that is not drawn leave a file.
    let chart = format!("{dir}/chart.svg");
    sluice(["bench", "fs", &dir, "--size", "1T", "--threads", "256", "--chart", &chart]).refused_with(&["are needed"]);
    assert!(!Path::new(&chart).exists(), "something is left");
}

#[test]
fn a_directory_that_may_not_be_written_to_is_refused() {
    let scratch = Scratch::new();
    let dir = scratch.path().to_str().expect("text");
    as_user(NOBODY, NOBODY, &[], || sluice(["bench", "fs", dir])).refused_with(&[
        dir,
        "permission denied",
        "run it as the owner",
    ]);
}

#[test]
fn a_full_disk_is_told_before_anything_is_written() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("small");
    fs::create_dir(&dir).expect("mkdir");
    let _disk = SmallDisk::new(dir.clone(), 3);
    let ran = sluice(["bench", "fs", dir.to_str().expect("text")].into_iter().chain(SMALL));
    ran.refused_with(&["4.00 MiB are needed", "take a smaller --size"]);
    assert!(is_empty(&dir), "something is left");
}
