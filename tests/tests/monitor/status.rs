//! `sluice status` of a served volume, by its server, its directory and a mount.

use super::{LIMIT, MIB, noise};
use serde_json::Value;
use sluice_tests::{Server, Volume, group::Node, skipped_in_local_mode, sluice, wait_for};
use std::fs;

fn of_server(server: &Server) -> Value {
    sluice(["status", &server.meta(), "--json"]).ok().json()
}

/// The one session whose name ends so.
fn session(status: &Value, mount: &str) -> Value {
    let all = status["sessions"].as_array().expect("a list");
    let named = |session: &&Value| session["name"].as_str().expect("a name").ends_with(mount);
    all.iter().find(named).cloned().unwrap_or(Value::Null)
}

#[test]
fn group_sessions_and_what_is_not_stored() {
    if skipped_in_local_mode("group_sessions_and_what_is_not_stored") {
        return;
    }
    let server = Server::new();
    let _node = Node::start(&server, "one");
    let lazy = server.try_mount("lazy", &["--upload-delay", "1h"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let _other = server.mount("other");
    fs::write(lazy.path("file"), noise(1, MIB)).unwrap();
    wait_for("the server to be told", LIMIT, || session(&of_server(&server), "/lazy")["unstored_bytes"] == MIB);
    let status = of_server(&server);
    let of_lazy = session(&status, "/lazy");
    assert_eq!((&of_lazy["state"], &of_lazy["unstored_objects"]), (&"live".into(), &1.into()), "{of_lazy}");
    assert!((1..=15_000).contains(&of_lazy["left_ms"].as_u64().unwrap()), "{of_lazy}");
    assert_eq!(session(&status, "/other")["unstored_bytes"], 0);
    assert_eq!((&status["state"], &status["running"]), (&"serving".into(), &true.into()), "{status}");
    let totals = &status["totals"];
    assert_eq!((&totals["nodes"], &totals["unstored_bytes"]), (&1.into(), &MIB.into()), "{totals}");
    assert_eq!(totals["sessions"], serde_json::json!({ "live": 2, "grace": 0, "expired": 0 }));
    assert_eq!(totals["capacity_bytes"], 256 * MIB);

    // Its directory and a mount know the same.
    let dir = server.volume().dir();
    let by_dir = sluice(["status".as_ref(), dir.as_os_str(), "--json".as_ref()]).ok().json();
    assert_eq!(session(&by_dir, "/lazy")["session"], of_lazy["session"]);
    let by_mount = lazy.status();
    assert_eq!(by_mount["served"]["nodes"][0]["name"], "one");
    assert_eq!(by_mount["numbers"]["dirty_bytes"], MIB);
    for target in [server.meta().as_ref(), dir.as_os_str(), lazy.root().as_os_str()] {
        let text = sluice(["status".as_ref(), target]).ok().stdout;
        for words in ["1 nodes", "2 live", "1.00 MiB acked but not stored", "/lazy", "/other", "hit rate"] {
            assert!(text.contains(words), "`{words}` is missing:\n{text}");
        }
    }

    // Who lost it all can still be told whose bytes they were.
    lazy.kill9();
    wait_for("the lease to end", LIMIT, || session(&of_server(&server), "/lazy")["state"] == "expired");
    assert_eq!(session(&of_server(&server), "/lazy")["unstored_bytes"], MIB);
}

/// To be survived: somebody looks while the server is away, or was restarted.
#[test]
fn a_server_that_is_away_or_was_restarted() {
    if skipped_in_local_mode("a_server_that_is_away_or_was_restarted") {
        return;
    }
    let mut server = Server::new();
    let mount = server.mount("mount");
    server.kill9();
    sluice(["status", &server.meta()]).refused_with(&[&server.meta(), "does not answer"]);
    let status = mount.status();
    assert!(status["server_trouble"].as_str().expect("words").contains("does not answer"), "{status}");
    assert_eq!(status["state"], "mounted");
    server.start();
    wait_for("the session to be back", LIMIT, || session(&of_server(&server), "/mount")["state"] == "live");
}

/// Whose process was killed is told so, with what only its directory has and what goes on with that.
#[test]
fn what_was_killed_is_told_with_what_it_had() {
    if skipped_in_local_mode("what_was_killed_is_told_with_what_it_had") {
        return;
    }
    let volume = Volume::new().option("--upload-delay", "1h");
    let dir = volume.dir();
    let dir = dir.to_str().expect("text");
    let told = |target: &str, words: &[&str]| {
        let text = sluice(["status", target]).ok().stdout;
        words.iter().for_each(|words| assert!(text.contains(words), "`{words}` is missing:\n{text}"));
    };
    let json = |target: &str| sluice(["status", target, "--json"]).ok().json();
    let mount = volume.up();
    fs::write(mount.path("file"), noise(1, MIB)).unwrap();
    // Written again, it is no more than it was.
    fs::write(mount.path("file"), noise(2, MIB)).unwrap();
    mount.kill9();
    told(dir, &["killed, tier journal", "1.00 MiB in 1 objects", "sluice up", dir]);
    let status = json(dir);
    assert_eq!((&status["state"], &status["unstored_bytes"]), (&"killed".into(), &MIB.into()), "{status}");
    let mount = volume.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(2, MIB));
    mount.umount();
    let status = json(dir);
    assert_eq!((&status["state"], &status["unstored_bytes"]), (&"not mounted".into(), &0.into()), "{status}");
    assert!(!sluice(["status", dir]).ok().stdout.contains("sluice up"));
    // Of a served volume by where it was mounted.
    let server = Server::new();
    let mount = server.try_mount("mount", &["--upload-delay", "1h"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    fs::write(mount.path("file"), noise(1, MIB)).unwrap();
    let at = mount.root().to_path_buf();
    let again = mount.again();
    mount.kill9_and_leave_the_mount_point();
    told(at.to_str().expect("text"), &["killed", "1.00 MiB in 1 objects", &format!("sluice mount {}", server.meta())]);
    let words = ["is unmounted, but the store lacks 1.00 MiB in 1 objects", "its process was gone", "sluice recover"];
    volume.sluice(["umount".as_ref(), at.as_os_str()]).refused_with(&words);
    again().umount();
}
