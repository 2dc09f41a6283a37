use super::*;
use sluice_base::ObjectId;

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn named(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn join(name: &str, instance: u64, port: u16) -> Join {
    Join { name: named(name), instance, address: ([0, 0, 0, 0], port).into(), weight: 1, capacity_bytes: 1 << 30 }
}

fn beat(name: &str, instance: u64) -> Heartbeat {
    Heartbeat { name: named(name), instance, numbers: Numbers { hits: 5, ..Numbers::default() } }
}

fn names(registry: &Registry) -> Vec<String> {
    registry.members().list().iter().map(|member| member.name.to_string()).collect()
}

#[test]
fn each_change_raises_the_epoch() {
    let mut registry = Registry::new(secs(0), 100);
    let first = registry.join(secs(0), HOST, join("a", 1, 7000)).unwrap();
    assert!(first > 100);
    assert_eq!(registry.members().list()[0].address, "10.0.0.9:7000".parse().unwrap(), "where it connected from");
    assert_eq!(registry.join(secs(1), HOST, join("a", 1, 7000)), Ok(first), "the same process: no change");
    assert_eq!(registry.heartbeat(secs(1), &beat("a", 1)), Ok(first));
    let second = registry.join(secs(1), HOST, join("b", 2, 7001)).unwrap();
    assert!(second > first);
    registry.drain(&named("b"), true).unwrap();
    registry.drain(&named("b"), true).unwrap();
    assert_eq!(registry.epoch(), second + 1);
    assert_eq!(registry.members().owner(ObjectId([1; 16])).unwrap().name, named("a"));
    registry.leave(&named("a"), 2);
    assert_eq!(names(&registry), ["a", "b"], "another process cannot say it");
    registry.leave(&named("a"), 1);
    assert_eq!((names(&registry), registry.epoch()), (vec!["b".into()], second + 2));
    assert_eq!(registry.group(secs(3))[0].silent_ms, 2000);
    assert_eq!(registry.drain(&named("a"), true), Err(RegistryError::NoNode(named("a"))));
}

#[test]
fn an_address_that_nobody_can_connect_to_is_refused() {
    let mut registry = Registry::new(secs(0), 1);
    let at = |address: &str| Join { address: address.parse().unwrap(), ..join("a", 1, 1) };
    for address in ["0.0.0.0:0", "10.0.0.9:0", "[ff02::1]:7000", "224.0.0.1:7000"] {
        assert_eq!(registry.join(secs(0), HOST, at(address)), Err(RegistryError::Malformed), "{address}");
    }
    assert!(registry.join(secs(0), HOST, at("[::1]:7000")).is_ok());
}

#[test]
fn the_second_of_one_name_is_refused() {
    let mut registry = Registry::new(secs(0), 1);
    registry.join(secs(0), HOST, join("a", 1, 7000)).unwrap();
    let refused = registry.join(secs(0), HOST, join("a", 2, 7001)).unwrap_err();
    assert_eq!(refused.code(), message::FAILED_NAME);
    assert!(refused.to_string().contains("10.0.0.9:7000"), "{refused}");
    assert!(registry.heartbeat(secs(0), &beat("a", 2)).is_err());
    // At the same address there can be one process only: it was restarted.
    registry.join(secs(0), HOST, join("a", 3, 7000)).unwrap();
    assert!(registry.heartbeat(secs(0), &beat("a", 1)).is_err());
    // Once it is silent for long enough, anybody may have the name.
    registry.expire(secs(7));
    registry.join(secs(7), HOST, join("a", 4, 7001)).unwrap();
}

#[test]
fn the_silent_go() {
    let mut registry = Registry::new(secs(0), 1);
    registry.join(secs(0), HOST, join("a", 1, 1)).unwrap();
    registry.join(secs(0), HOST, join("b", 2, 2)).unwrap();
    registry.heartbeat(secs(4), &beat("b", 2)).unwrap();
    assert_eq!(registry.expires_at(), Some(EXPIRY));
    let epoch = registry.epoch();
    registry.expire(secs(5));
    assert_eq!(registry.epoch(), epoch);
    registry.expire(secs(6));
    assert_eq!((names(&registry), registry.epoch()), (vec!["b".into()], epoch + 1));
    assert!(registry.heartbeat(secs(6), &beat("a", 1)).is_err(), "it must join again");
}

#[test]
fn a_server_that_was_restarted_lets_the_group_gather() {
    let mut registry = Registry::new(secs(0), 1000);
    assert!(registry.news(secs(1), 0).is_some(), "who knows none is told");
    assert_eq!(registry.news(secs(1), 7), None);
    registry.join(secs(2), HOST, join("a", 1, 1)).unwrap();
    assert_eq!(registry.news(secs(5), 7), None);
    assert_eq!(registry.news(secs(6), 7).unwrap().list().len(), 1);
    assert_eq!(registry.news(secs(6), registry.epoch()), None);
}

#[test]
fn requests() {
    let mut registry = Registry::new(secs(0), 1);
    let mut ask = |method, body: &[u8]| registry.handle(secs(0), HOST, method, body);
    assert_eq!(ask(1, &[]), None);
    let epoch = ask(message::JOIN, &join("a", 1, 1).encode()).unwrap().unwrap();
    assert_eq!(ask(message::HEARTBEAT, &beat("a", 1).encode()), Some(Ok(epoch.clone())));
    assert_eq!(ask(message::MEMBERS, &epoch), Some(Ok(Vec::new())));
    let list = ask(message::MEMBERS, &message::encode_epoch(0)).unwrap().unwrap();
    assert_eq!(Members::decode(&list).unwrap().list().len(), 1);
    assert_eq!(message::decode_group(&ask(message::GROUP, &[]).unwrap().unwrap()).unwrap()[0].numbers.hits, 5);
    assert_eq!(ask(message::DRAIN, &message::encode_drain(&named("a"), true)), Some(Ok(Vec::new())));
    assert_eq!(ask(message::LEAVE, &message::encode_leave(&named("a"), 1)), Some(Ok(Vec::new())));
    for method in [message::JOIN, message::HEARTBEAT, message::LEAVE, message::MEMBERS, message::DRAIN] {
        assert_eq!(ask(method, &[9]), Some(Err(RegistryError::Malformed)));
    }
}

#[test]
fn there_is_an_end_to_members() {
    let mut registry = Registry::new(secs(0), 1);
    for n in 0..MEMBERS_MAX {
        registry.join(secs(0), HOST, join(&format!("node-{n}"), 1, 1 + n as u16)).unwrap();
    }
    assert_eq!(registry.join(secs(0), HOST, join("one more", 1, 1)), Err(RegistryError::Crowded));
    assert_eq!(Members::decode(&registry.members().encode()).unwrap().list().len(), MEMBERS_MAX);
}

#[test]
fn the_rate_is_that_between_two_heartbeats() {
    let mut registry = Registry::new(secs(0), 1);
    registry.join(secs(0), HOST, join("a", 1, 7000)).unwrap();
    let beat = |served_bytes| Heartbeat { numbers: Numbers { served_bytes, ..Numbers::default() }, ..beat("a", 1) };
    registry.heartbeat(secs(2), &beat(1000)).unwrap();
    assert_eq!(registry.rates(), [500]);
    registry.heartbeat(secs(4), &beat(1000)).unwrap();
    assert_eq!(registry.rates(), [0]);
}

#[test]
fn what_was_saved_is_the_group_of_the_next_run() {
    let mut registry = Registry::new(secs(0), 100);
    assert_eq!(registry.unsaved(), None);
    registry.join(secs(0), HOST, join("a", 1, 7000)).unwrap();
    registry.join(secs(0), HOST, join("b", 2, 7001)).unwrap();
    registry.drain(&named("b"), true).unwrap();
    let saved = registry.unsaved().unwrap();
    assert_eq!(registry.unsaved(), None, "nothing has changed since");
    registry.heartbeat(secs(1), &beat("a", 1)).unwrap();
    assert_eq!(registry.unsaved(), None, "a heartbeat changes nothing that is kept");
    registry.not_saved();
    assert_eq!(registry.unsaved().as_deref(), Some(&saved[..]));

    // The clock went back an hour; lists of the first run may have been lost with the power.
    let mut next = Registry::restore(secs(50), 7, &saved).unwrap();
    assert!(next.epoch() > registry.epoch() + 1000);
    assert!(next.unsaved().is_some(), "the new epoch is to be kept");
    assert_eq!(next.members().list(), registry.members().list());
    assert!(next.news(secs(50), registry.epoch()).is_some(), "it need not wait for the nodes to come back");
    let epoch = next.epoch();
    assert_eq!(next.heartbeat(secs(52), &beat("a", 1)), Ok(epoch), "who lived on goes on");
    assert!(next.heartbeat(secs(53), &beat("a", 9)).is_err(), "the second of one name does not");
    assert_eq!(next.join(secs(53), HOST, join("b", 2, 7001)), Ok(epoch), "nothing has changed");
    next.expire(secs(57));
    assert_eq!(names(&next), ["a", "b"]);
    // Who never comes back is out, and still drained if it does.
    next.expire(secs(60));
    assert_eq!(names(&next), [""; 0]);
    next.join(secs(60), HOST, join("b", 3, 7009)).unwrap();
    assert_eq!(next.members().list()[0].state, State::Draining);
    next.leave(&named("b"), 3);
    next.drain(&named("b"), false).unwrap();
    next.join(secs(61), HOST, join("b", 4, 7009)).unwrap();
    assert_eq!(next.members().list()[0].state, State::Active);
    for len in 0..saved.len() {
        assert!(Registry::restore(secs(0), 1, &saved[..len]).is_err(), "{len} bytes");
    }
    assert!(Registry::restore(secs(0), 1, &[&saved[..], &[0]].concat()).is_err());
}
