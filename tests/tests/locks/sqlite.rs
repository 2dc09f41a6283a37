//! A program that trusts its locks.

use std::thread;

use sluice_tests::{shell, skipped_in_local_mode};

use crate::Pair;

/// SQLite on two mounts at once writes one database: no update is lost, and it stays sound.
#[test]
fn two_mounts_write_one_database() {
    if skipped_in_local_mode("two_mounts_write_one_database") {
        return;
    }
    const ROUNDS: usize = 15;
    let pair = Pair::new();
    shell(
        pair.a.root(),
        "sqlite3 db 'create table t (who text, n int); create table sum (n int); insert into sum values (0)'",
    );
    thread::scope(|scope| {
        for (who, mount) in [("a", &pair.a), ("b", &pair.b)] {
            scope.spawn(move || {
                let script = format!(
                    "for i in $(seq {ROUNDS}); do sqlite3 -cmd '.timeout 120000' db \
                     \"begin immediate; insert into t values ('{who}', $i); update sum set n = n + 1; commit\"; done"
                );
                shell(mount.root(), &script);
            });
        }
    });
    for mount in [&pair.a, &pair.b] {
        let script = format!(
            "test \"$(sqlite3 db 'pragma integrity_check; select count(*) from t; select n from sum')\" = $'ok\\n{0}\\n{0}'",
            2 * ROUNDS
        );
        shell(mount.root(), &script);
    }
}
