//! A change whose answer was lost is asked for again, and done once.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

use sluice_tests::{Way, in_background, skipped_in_local_mode, wait_for};

use crate::Net;

const SOON: Duration = Duration::from_secs(60);

/// What is done, and how it shows.
type Change = (fn(&Path) -> io::Result<()>, fn(&Path) -> bool);

const CHANGES: [Change; 6] = [
    (|dir| fs::rename(dir.join("from"), dir.join("to")), |dir| !dir.join("from").exists()),
    (|dir| File::create_new(dir.join("new")).map(drop), |dir| dir.join("new").exists()),
    (|dir| fs::create_dir(dir.join("dir")), |dir| dir.join("dir").exists()),
    (|dir| fs::hard_link(dir.join("to"), dir.join("link")), |dir| dir.join("link").exists()),
    (|dir| fs::remove_file(dir.join("link")), |dir| !dir.join("link").exists()),
    (|dir| fs::remove_dir(dir.join("dir")), |dir| !dir.join("dir").exists()),
];

/// To be survived: the connection is cut when the server has done what was asked and its answer has not arrived. Were the change done
/// again, each of these would fail.
#[test]
fn a_change_whose_answer_was_lost_is_done_once() {
    if skipped_in_local_mode("a_change_whose_answer_was_lost_is_done_once") {
        return;
    }
    // Long, so that what the mount knows is believed and nothing but the change is asked.
    let net = Net::new("2m");
    let (here, there) = (net.behind.root().to_path_buf(), net.beside.root().to_path_buf());
    fs::write(here.join("from"), b"bytes").unwrap();
    for (index, (change, shows)) in CHANGES.into_iter().enumerate() {
        for name in ["from", "to", "new", "dir", "link"] {
            let _ = fs::symlink_metadata(here.join(name));
        }
        let held = net.proxy.hold(Way::Back);
        let dir = here.clone();
        let changing = in_background(move || change(&dir));
        wait_for("the server to have done it", SOON, || shows(&there));
        assert!(!changing.is_finished(), "change {index}: its answer is held");
        net.proxy.cut();
        drop(held);
        wait_for("the change to be answered", SOON, || changing.is_finished());
        let done = changing.join().unwrap();
        assert!(done.is_ok(), "change {index}: {done:?}");
        assert!(shows(&here), "change {index}");
    }
    let left: Vec<_> = fs::read_dir(&there).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(fs::read(there.join("to")).unwrap(), b"bytes");
    let Net { behind, beside, mut server, .. } = net;
    behind.umount();
    beside.umount();
    server.stop();
    server.volume().fsck_is_clean();
}
