//! Mistakes of people about where things are: refused, with what is wrong and what to do.

use sluice_tests::{
    Server, Volume,
    group::{Node, members},
    skipped_in_local_mode, sluice,
};
use std::path::Path;

/// A port where nobody listens, and that of a node instead of its server's.
#[test]
fn the_wrong_port() {
    if skipped_in_local_mode("the_wrong_port") {
        return;
    }
    let (server, nobody) = (Server::new(), Volume::new());
    let closed = "sluice://127.0.0.1:1";
    let at = nobody.mountpoint();
    let mount = |meta: &str| nobody.sluice([Path::new("mount"), Path::new(meta), &at]);
    mount(closed).refused_with(&[closed, "connection refused", "does `sluice serve` run there"]);
    sluice(["status", closed]).refused_with(&[closed, "connection refused", "does `sluice serve` run there"]);
    let node = Node::start(&server, "one");
    let address = members(&server)[0]["address"].as_str().expect("text").to_owned();
    let meta = format!("sluice://{address}");
    for ran in [mount(&meta), sluice(["status", &meta]), sluice(["drain", &meta, &node.name])] {
        ran.refused_with(&["node `one`", "ask the volume's server"]);
    }
}

/// To be survived: a cache of a size that was mistyped; the next size is taken.
#[test]
fn a_cache_beyond_all_measure() {
    if skipped_in_local_mode("a_cache_beyond_all_measure") {
        return;
    }
    let server = Server::new();
    let dir = server.volume().mountpoint().with_file_name("one.cache");
    let cache = format!("{}:99999T", dir.display());
    let args = ["serve", &server.meta(), "--listen", "127.0.0.1:0", "--name", "one", "--cache", &cache];
    sluice(args).refused_with(&["one.cache", "64 TiB"]);
    drop(Node::start(&server, "one"));
}

/// What a mount that was killed leaves behind says how it goes on.
#[test]
fn umount_of_a_killed_mount_names_the_command() {
    if skipped_in_local_mode("umount_of_a_killed_mount_names_the_command") {
        return;
    }
    let server = Server::new();
    let mount = server.mount("a");
    let root = mount.root().to_path_buf();
    mount.kill9_and_leave_the_mount_point();
    let umount = sluice([Path::new("umount"), &root]).ok();
    assert!(umount.stderr.contains(&format!("`sluice mount {}", server.meta())), "{umount:?}");
    server.mount("a").umount();
}

/// A mount that did not come about leaves nothing, wherever it failed; what was there stays.
#[test]
fn a_failed_mount_leaves_no_directory() {
    if skipped_in_local_mode("a_failed_mount_leaves_no_directory") {
        return;
    }
    let mut server = Server::new();
    let volume = server.volume().clone();
    let place = |name: &str| volume.mountpoint().with_file_name(name);
    let (state, cache, usual) = (place("a.journal"), place("a.cache"), place("home").join("sluice"));
    let sized = |path: &Path| format!("{}:64M", path.display());
    let meta = server.meta();
    let fails = |ways: usize, words: &[&str]| {
        let at = volume.mountpoint();
        let args = ["mount", &meta, at.to_str().expect("text")];
        let places = ["--journal", &sized(&state), "--cache", &sized(&cache)];
        for more in [&[&["-d"][..], &places].concat()[..], &[], &["-d"], &places].into_iter().take(ways) {
            volume.sluice([&args[..], more].concat()).refused_with(words);
            assert!(!state.exists() && !cache.exists(), "{more:?}");
            let left: Vec<_> =
                std::fs::read_dir(&usual).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            assert!(left.iter().all(|path| path.ends_with("journals")), "{more:?}: {left:?}");
        }
    };
    // Once everything is prepared: the store is another one by now.
    let (objects, aside) = (volume.dir().join("objects"), volume.dir().join("aside"));
    let put_back = || {
        // The server, which lives, may have made it anew.
        let _ = std::fs::remove_dir_all(&objects);
        std::fs::rename(&aside, &objects).expect("moved");
    };
    std::fs::rename(&objects, &aside).expect("moved");
    fails(4, &["holds no volume"]);
    put_back();
    let mount = server.mount("a");
    std::fs::write(mount.path("file"), b"text").expect("written");
    mount.kill9();
    std::fs::rename(&objects, &aside).expect("moved");
    server
        .try_mount("a", &[])
        .map(sluice_tests::Mount::umount)
        .expect_err("refused")
        .refused_with(&["holds no volume"]);
    assert!(state.join("journal").exists(), "it has what was acked");
    put_back();
    let mount = server.mount("a");
    assert_eq!(std::fs::read(mount.path("file")).expect("read"), b"text");
    mount.umount();
    std::fs::remove_dir_all(&state).expect("removed");
    server.kill9();
    fails(1, &["does not answer"]);
}
