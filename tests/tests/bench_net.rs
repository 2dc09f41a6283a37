//! `sluice bench net`: what it reports is there, is sound, and shows what each technique does.

use serde_json::Value;
use sluice_tests::{Scratch, sluice};
use std::collections::BTreeMap;

/// The lines of a short run, by case.
fn lines(args: &[&str]) -> BTreeMap<String, Value> {
    let short = if args.contains(&"--seconds") { &[][..] } else { &["--seconds", "0.3", "--size", "16M"] };
    let ran = sluice([&["bench", "net", "--json"], short, args].concat()).ok();
    let line = |line: &str| serde_json::from_str::<Value>(line).expect("an object a line");
    let all: Vec<Value> = ran.stdout.lines().map(line).collect();
    all.into_iter().map(|line| (line["case"].as_str().expect("a name").to_owned(), line)).collect()
}

#[test]
fn every_case_reads_sound_bytes_and_says_what_it_took() {
    let lines = lines(&["--block", "128K"]);
    assert_eq!(lines.len(), 28);
    let fields = [
        "block_bytes",
        "connections",
        "gbps",
        "iops",
        "client_cpu_s_per_gib",
        "node_cpu_s_per_gib",
        "wakeups_per_s",
        "syscalls_per_request",
        "p50_us",
        "p99_us",
        "raw_limit_gbps",
        "raw_sender_cpu_s_per_gib",
    ];
    for (name, line) in &lines {
        for field in fields {
            // Nodes that are left alone do nothing.
            let may_be_0 = name == "no-deadlines" && matches!(field, "wakeups_per_s" | "syscalls_per_request");
            let is_sound = |number: f64| number > 0.0 || (may_be_0 && number == 0.0);
            assert!(line[field].as_f64().is_some_and(is_sound), "{name}: {field} in {line}");
        }
    }
}

#[test]
fn gathering_small_requests_saves_system_calls() {
    let lines = lines(&["--block", "4K", "--case", "all,plain,no-coalesce,no-batch"]);
    let calls = |name: &str| lines[name]["syscalls_per_request"].as_f64().expect("a number");
    assert!(calls("all") * 4.0 < calls("plain"), "{lines:?}");
    assert!(calls("all") < calls("no-coalesce") && calls("all") < calls("no-batch"), "{lines:?}");
    assert_eq!(lines["plain"]["connections"], 64, "one for each request");
}

#[test]
fn what_is_off_is_counted_as_off() {
    let cases = "all,no-low-water,no-sendfile,no-combine,no-at-once,unchecked,no-splice,late,no-hedge,no-cancel,hot,\
                 no-second-owner,drain,no-drain,join,no-previous";
    let lines = lines(&["--block", "1M", "--case", cases, "--seconds", "0.7", "--size", "16M"]);
    let count = |case: &str, name: &str| lines[case]["counts"][name].as_f64().expect("a number");
    for (with, without, name) in [
        ("all", "no-low-water", "client_low_waters"),
        ("all", "no-sendfile", "node_sendfiles"),
        ("no-combine", "all", "node_summed"),
        ("no-at-once", "all", "node_later"),
        ("unchecked", "no-splice", "client_splices"),
        ("late", "no-hedge", "hedged"),
        ("late", "no-cancel", "node_cancelled"),
        ("no-drain", "drain", "node_fetched"),
        ("no-previous", "join", "node_fetched"),
        ("hot", "no-second-owner", "second_owner"),
    ] {
        // A node whose answer comes late on a busy machine is one that the store stands in for.
        let most = if name == "node_fetched" { count(with, name) / 4.0 } else { 0.0 };
        assert!(count(with, name) > 0.0 && count(without, name) <= most, "{name}: {lines:?}");
    }
    let slowest = |case: &str| lines[case]["p99_us"].as_f64().expect("a number");
    assert!(slowest("late") < 400_000.0 && slowest("no-hedge") > 500_000.0, "{lines:?}");
}

#[test]
fn what_a_bound_a_deadline_and_a_weight_are_for_is_counted() {
    let cases = "stalled,no-bound,store-hangs,no-deadlines,uneven,no-weights";
    let lines = lines(&["--block", "1M", "--case", cases, "--seconds", "1", "--size", "64M"]);
    let count = |case: &str, name: &str| lines[case]["counts"][name].as_f64().expect("a number");
    // 16 MiB for each of two peers; 1,024 reads of one of them.
    assert!(count("stalled", "held_mib") <= 32.0 && count("no-bound", "held_mib") > 500.0, "{lines:?}");
    // One of 50, and most: nodes that do not answer in time are left alone for seconds.
    assert!(count("store-hangs", "missed") < 100.0 && count("no-deadlines", "missed") > 200.0, "{lines:?}");
    assert!(count("uneven", "others") < count("no-weights", "others"), "{lines:?}");
}

#[test]
fn a_chart_is_drawn() {
    let scratch = Scratch::new();
    let file = scratch.path().join("chart.svg");
    lines(&["--block", "4K", "--case", "all", "--chart", file.to_str().expect("text")]);
    let chart = std::fs::read_to_string(file).expect("a picture");
    assert!(chart.starts_with("<svg") && chart.contains("all 4K"), "{chart}");
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    for (args, words) in [
        (&["--block", "5M"][..], "--block is 1 to 4M"),
        (&["--case", "hot", "--block", "4K"], "give --block in multiples of 32K"),
        (&["--case", "late", "--host", "127.0.0.1:1"], "1 nodes are named by --host, and 2 are needed"),
        (&["--seconds", "0"], "--seconds 0"),
        (&["--host", "127.0.0.1:1", "--case", "all"], "run `sluice bench net --serve 127.0.0.1:1` there"),
        (&["--dir", "/no/such/place", "--case", "all"], "the node did not start"),
    ] {
        sluice([&["bench", "net"], args].concat()).refused_with(&[words]);
    }
    let ran = sluice(["bench", "net", "--case", "no-such"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("choose from all, plain"), "{ran:?}");
}
