//! The control socket of a mount against clients that misbehave.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use sluice_tests::{Mount, Stopwatch, Volume};

use crate::needs_binary;

/// Well below the five seconds that a connection may be silent for.
const SOON: Duration = Duration::from_secs(3);

fn connect(volume: &Volume) -> UnixStream {
    let stream = UnixStream::connect(volume.dir().join("control.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn status_answers_soon(mount: &Mount) {
    let watch = Stopwatch::start();
    assert_eq!(mount.status()["state"], "mounted");
    assert!(watch.elapsed() < SOON, "status took {:?}", watch.elapsed());
}

fn resident_kib(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn garbage_is_hung_up_on() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    let before = resident_kib(&mount);
    let deep = [b'['; 100_000];
    for bytes in [&[0xfe; 500][..], b"\n", b"{\"command\":\"dance\"}\n", &[0; 100], &deep] {
        let mut stream = connect(&volume);
        let _ = stream.write_all(bytes).and_then(|()| stream.write_all(b"\n"));
        let mut answer = Vec::new();
        // A reset is an answer too: there was more than anybody wanted to read.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
    let mut stream = connect(&volume);
    let line = vec![b'a'; 1 << 20];
    let accepted = (0..200).take_while(|_| stream.write_all(&line).is_ok()).count();
    assert!(accepted < 8, "{accepted} MiB of one line were taken");
    assert!(resident_kib(&mount) < before + (32 << 10), "{before} KiB became {}", resident_kib(&mount));
    status_answers_soon(&mount);
    mount.umount();
}

#[test]
fn idle_connections_shut_nobody_out() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    let mut idle: Vec<UnixStream> = (0..300).map(|_| connect(&volume)).collect();
    status_answers_soon(&mount);
    for stream in &mut idle {
        // Those that were hung up on already.
        let _ = stream.write_all(b"{\"comm");
    }
    status_answers_soon(&mount);
    fs::write(mount.path("f"), b"served").unwrap();
    mount.umount();
    volume.fsck_is_clean();
}
