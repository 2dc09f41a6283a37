//! `--metrics`: a strict scrape of every kind of process, and health that follows the store.

use super::{LIMIT, METRICS, MIB, health, http, noise, scrape};
use sluice_tests::{Gateway, Server, Volume, group::Node, skipped_in_local_mode, wait_for};
use std::{collections::BTreeSet, fs};

/// To be survived: the store goes away and comes back; whoever watches is told both.
#[test]
fn everybody_tells_and_health_follows_the_store() {
    if skipped_in_local_mode("everybody_tells_and_health_follows_the_store") {
        return;
    }
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(Volume::new());
    let server = Server::over(volume, &gateway.url("bucket", "p"), &METRICS);
    let node = Node::start_with(&server, "one", &METRICS);
    let writer = server.try_mount("writer", &METRICS).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let reader = server.try_mount("reader", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let at = [http::address(|| server.log()), http::address(|| node.log()), http::address(|| writer.log())];
    let [at_server, at_node, at_writer] = &at;

    let bytes = noise(1, 5 * MIB);
    fs::write(writer.path("file"), &bytes).unwrap();
    let stored = || {
        let page = scrape(at_writer);
        page.value("sluice_unstored_bytes") == 0.0 && page.value("sluice_uploaded_bytes_total") >= bytes.len() as f64
    };
    wait_for("the file to be stored", LIMIT, stored);
    assert!(fs::read(reader.path("file")).unwrap() == bytes);

    let page = scrape(at_writer);
    assert!(page.value("sluice_written_bytes_total") >= bytes.len() as f64);
    assert!(page.value(r#"sluice_store_requests_total{kind="put",result="ok"}"#) >= 2.0);
    assert_eq!(page.value(r#"sluice_store_requests_total{kind="put",result="error"}"#), 0.0);
    assert!(page.value(r#"sluice_fuse_requests_total{class="write"}"#) >= 5.0);
    assert!(page.value("sluice_process_resident_memory_bytes") > MIB as f64);
    assert!(page.value(r#"sluice_journal_capacity_bytes{of="all"}"#) == (64 * MIB) as f64);
    let page = scrape(at_node);
    assert!(page.value("sluice_node_sent_bytes_total") >= bytes.len() as f64);
    assert!(page.value(r#"sluice_node_fetched_bytes_total{from="store"}"#) >= bytes.len() as f64);
    assert!(page.value("sluice_node_fills_total") >= 2.0 && page.value("sluice_connections") >= 1.0);
    assert!(page.value(r#"sluice_store_requests_total{kind="get",result="ok"}"#) >= 2.0);
    assert!(page.value(r#"sluice_cache_bytes{state="clean"}"#) >= bytes.len() as f64);
    let page = scrape(at_server);
    assert_eq!(page.value(r#"sluice_sessions{state="live"}"#), 2.0);
    assert_eq!(page.value(r#"sluice_group_nodes{state="active"}"#), 1.0);
    assert!(page.value("sluice_connections") >= 3.0);

    for (address, path, method, status) in [
        (at_server, "/", "GET", 404),
        (at_node, "/metrics/x", "GET", 404),
        (at_writer, "/metrics", "POST", 405),
        (at_server, "/healthz", "PUT", 405),
    ] {
        assert_eq!(http::ask(address, method, path).0, status, "{method} {path}");
    }
    at.iter().for_each(|at| assert_eq!(health(at).0, 200, "{}", health(at).1));
    gateway.stop();
    for at in &at {
        wait_for("503 while the store is away", LIMIT, || health(at).0 == 503);
        let words = health(at).1;
        assert!(words.contains("the store s3://bucket/p") && !words.contains(sluice_tests::SECRET), "{words}");
    }
    gateway.start();
    at.iter().for_each(|at| wait_for("health after the store is back", LIMIT, || health(at).0 == 200));
}

/// To be survived: the server is killed; its nodes and mounts say so, and recover with it.
#[test]
fn health_follows_the_lease() {
    if skipped_in_local_mode("health_follows_the_lease") {
        return;
    }
    let mut server = Server::new();
    let node = Node::start_with(&server, "one", &METRICS);
    let mount = server.try_mount("mount", &METRICS).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let at = [http::address(|| node.log()), http::address(|| mount.log())];
    at.iter().for_each(|at| assert_eq!(health(at).0, 200, "{}", health(at).1));
    server.kill9();
    for (at, word) in at.iter().zip(["server has not confirmed", "has no lease"]) {
        wait_for("503 without the server", LIMIT, || health(at).0 == 503 && health(at).1.contains(word));
    }
    let counted = || scrape(&at[1]).value("sluice_lease_expiries_total") >= 1.0;
    wait_for("the mount to count it", LIMIT, counted);
    server.start();
    at.iter().for_each(|at| wait_for("health after the server is back", LIMIT, || health(at).0 == 200));
}

/// The document names every metric, and no other.
#[test]
fn every_metric_is_documented() {
    if skipped_in_local_mode("every_metric_is_documented") {
        return;
    }
    let server = Server::over(Volume::new(), "file:objects", &METRICS);
    let node = Node::start_with(&server, "one", &METRICS);
    let mount = server.try_mount("mount", &METRICS).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let up = Volume::new().option("--metrics", "127.0.0.1:0").up();
    let mut told = BTreeSet::new();
    let all: [&dyn Fn() -> String; 4] = [&|| server.log(), &|| node.log(), &|| mount.log(), &|| up.log()];
    for log in all {
        told.extend(scrape(&http::address(log)).families);
    }
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md")).unwrap();
    let names = text.split('`').filter(|word| word.starts_with("sluice_")).map(|word| word.split('{').next().unwrap());
    let documented: BTreeSet<String> = names.map(String::from).collect();
    assert_eq!(told.difference(&documented).collect::<Vec<_>>(), [""; 0], "not in docs/monitoring.md");
    assert_eq!(documented.difference(&told).collect::<Vec<_>>(), [""; 0], "told by no process");
}

#[test]
fn an_address_that_is_taken_is_refused_before_anything_is_mounted() {
    if skipped_in_local_mode("an_address_that_is_taken_is_refused_before_anything_is_mounted") {
        return;
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = Volume::new().option("--metrics", &address).try_up();
    refused.map(drop).expect_err("the address is taken").refused_with(&["--metrics", &address]);
}
