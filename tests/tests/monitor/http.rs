//! As little of HTTP as a scrape needs.

use super::LIMIT;
use sluice_tests::wait_for;
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

/// Where a process serves its metrics, once it has printed that.
pub fn address(log: impl Fn() -> String) -> String {
    let mut found = None;
    wait_for("the address of the metrics", LIMIT, || {
        let log = log();
        let url = log.split("metrics at http://").nth(1).and_then(|rest| rest.split_once("/metrics\n"));
        found = url.map(|(address, _)| address.to_string());
        found.is_some()
    });
    found.expect("an address")
}

/// Status, header and body of the answer.
pub fn ask(address: &str, method: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in UTF-8");
    let (header, body) = answer.split_once("\r\n\r\n").expect("a header");
    let status = header.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    (status.expect("a status"), header.to_lowercase(), body.into())
}

/// The body of a page that is there.
pub fn get(address: &str, path: &str) -> String {
    let (status, _, body) = ask(address, "GET", path);
    assert_eq!(status, 200, "{path}: {body}");
    body
}
