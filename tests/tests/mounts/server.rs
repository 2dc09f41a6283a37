//! The server goes and comes back; strangers at its port.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_tests::{Server, Volume, skipped_in_local_mode, sluice_binary, wait_for};

use crate::{noise, put};

/// A loaded machine and a restart.
const SOON: Duration = Duration::from_secs(120);

/// To be survived: the server is killed under load and started again. Mounts go on by themselves, nothing acked is lost.
#[test]
fn a_killed_server_comes_back() {
    if skipped_in_local_mode("a_killed_server_comes_back") {
        return;
    }
    const FILES: usize = 60;
    let mut server = Server::new();
    let mounts = [server.mount("a"), server.mount("b")];
    thread::scope(|scope| {
        let workers: Vec<_> = mounts
            .iter()
            .enumerate()
            .map(|(me, mount)| {
                scope.spawn(move || {
                    for i in 0..FILES {
                        let path = mount.path(format!("{me}-{i}"));
                        put(&path, &noise((me * FILES + i) as u64, 1000 * i)).unwrap();
                        fs::rename(&path, mount.path(format!("done-{me}-{i}"))).unwrap();
                    }
                })
            })
            .collect();
        while !workers.iter().all(|worker| worker.is_finished())
            && fs::read_dir(mounts[0].root()).unwrap().count() < FILES
        {
            let done = fs::read_dir(mounts[0].root()).unwrap().count();
            server.kill9();
            server.start();
            // A server that is killed again before the mounts have found it would keep them from ever finishing.
            wait_for("the mounts to go on", SOON, || {
                workers.iter().all(|worker| worker.is_finished())
                    || fs::read_dir(mounts[0].root()).is_ok_and(|found| found.count() > done)
            });
        }
    });
    for mount in &mounts {
        for (me, i) in (0..2).flat_map(|me| (0..FILES).map(move |i| (me, i))) {
            let found = fs::read(mount.path(format!("done-{me}-{i}"))).unwrap();
            assert!(found == noise((me * FILES + i) as u64, 1000 * i), "file {i} of {me}");
        }
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 2 * FILES);
    }
    let [a, b] = mounts;
    a.umount();
    b.umount();
    server.stop();
    server.volume().fsck_is_clean();
}

/// To be survived: a handle that was open on a file without a name while the server was gone.
#[test]
fn an_orphan_outlives_a_restart() {
    if skipped_in_local_mode("an_orphan_outlives_a_restart") {
        return;
    }
    let mut server = Server::new();
    let mount = server.mount("a");
    let mut open = File::options().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    open.write_all(&noise(3, 100_000)).unwrap();
    open.sync_all().unwrap();
    fs::remove_file(mount.path("f")).unwrap();
    server.kill9();
    server.start();
    fs::write(mount.path("g"), b"goes on").unwrap();
    let mut found = vec![0; 100_000];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut found, 0).unwrap();
    assert!(found == noise(3, 100_000));
    drop(open);
    mount.umount();
    server.stop();
    server.volume().fsck_is_clean();
}

/// To be survived: noise, half a frame and silence at the port; a mount whose journal is another volume's; a volume in use.
#[test]
fn strangers() {
    if skipped_in_local_mode("strangers") {
        return;
    }
    let server = Server::new();
    let mount = server.mount("a");
    let mut random = StdRng::seed_from_u64(1);
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        let mut noise = vec![0; random.random_range(1..5000)];
        random.fill(&mut noise[..]);
        let _ = stranger.write_all(&noise);
        silent.push(TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap());
    }
    fs::write(mount.path("f"), b"still served").unwrap();
    let mut http = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    let _ = http.write_all(b"GET / HTTP/1.1\r\n\r\n                                                ");
    let mut answer = Vec::new();
    let _ = http.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    let other = Server::new();
    let journal = mount.root().with_extension("journal");
    mount.umount();
    let theirs = format!("{}:64M", journal.display());
    let refused = other.try_mount("b", &[]).map(drop);
    refused.unwrap();
    let (meta, at) = (other.meta(), other.volume().mountpoint());
    let args = ["mount".as_ref(), meta.as_str().as_ref(), at.as_os_str(), "--journal".as_ref(), theirs.as_ref()];
    other.volume().sluice(args).refused_with(&["journal", "volume", "--journal"]);
    let up = server.volume().try_up().expect_err("opened a volume that is served");
    up.refused_with(&["in use by", "serve"]);
    let nobody = Volume::new();
    let args =
        ["mount".as_ref(), "sluice://127.0.0.1:1".as_ref(), at.as_os_str(), "--journal".as_ref(), theirs.as_ref()];
    nobody.sluice(args).refused_with(&["127.0.0.1:1", "refused"]);
}

/// To be survived: more connections than the process may have files open. Those are turned away that are too many; the volume's
/// own files are not.
#[test]
fn strangers_leave_descriptors_to_the_volume() {
    if skipped_in_local_mode("strangers_leave_descriptors_to_the_volume") {
        return;
    }
    let mut server = Server::new();
    server.stop();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()));
    let mut limited = Command::new("bash");
    limited
        .args(["-c", "ulimit -n 128; exec \"$0\" \"$@\""])
        .arg(sluice_binary())
        .arg("serve")
        .arg(server.volume().dir());
    limited.arg("--listen").arg(format!("127.0.0.1:{}", server.port())).args(["--journal-size", "64M"]);
    let mut child = limited.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the server to listen", SOON, || connect().is_ok());
    let silent: Vec<_> = (0..200).map(|_| connect().unwrap()).collect();
    let mut last = &silent[199];
    last.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    let turned_away = match last.read(&mut [0; 1]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    let status = server.volume().sluice(["status".into(), server.volume().dir().into_os_string()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(turned_away, "the server has no descriptor left to refuse it");
    assert!(status.ok().stdout.contains("serving at"));
}
