//! A process that has no file descriptor left. A program of its own, as it takes those of all its tests.

#![allow(missing_docs)]

use rustix::process::{Resource, getrlimit, setrlimit};
use sluice_base::SystemClock;
use sluice_net::{
    Refusal,
    port::{Answer, DataPeer, DataServer, DataServerOptions, DataService},
};
use sluice_wire::{Hello, RequestRef, Welcome};
use std::{
    fs::{self, File},
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::Duration,
};

struct Nothing;

impl DataService for Nothing {
    fn hello(&self, _: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        unreachable!("nobody connects")
    }

    fn call(&self, _: &DataPeer, _: RequestRef<'_>) -> Answer {
        unreachable!("nobody asks")
    }
}

/// Whether the thread of this name has begun and waits in the kernel.
fn waits(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let stats = threads.flatten().flat_map(|thread| fs::read_to_string(thread.path().join("stat")));
    stats.into_iter().any(|stat| stat.contains(&format!("({name}) S")))
}

#[test]
fn a_server_ends_without_a_descriptor() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let clock = Arc::new(SystemClock::default());
    let handle = runtime.handle().clone();
    let server = DataServer::bind(any, Arc::new(Nothing), DataServerOptions::default(), clock, handle).unwrap();
    let address = server.address();
    while !waits("sluice-accept") {
        std::thread::yield_now();
    }
    let (ended, has_ended) = mpsc::channel();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(0), ..before }).unwrap();
    assert!(File::open("/dev/null").is_err(), "no descriptor is left");
    let ending = std::thread::Builder::new().spawn(move || {
        server.shutdown(Duration::ZERO);
        let _ = ended.send(());
    });
    let in_time = has_ended.recv_timeout(Duration::from_secs(20));
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(in_time.is_ok(), "it waits for somebody to connect");
    ending.unwrap().join().unwrap();
    assert!(std::net::TcpListener::bind(address).is_ok(), "nobody listens any more");
}
