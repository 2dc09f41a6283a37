use super::*;
use sluice_base::{Entropy, SeededEntropy};
use std::collections::HashMap;

const OBJECTS: usize = 100_000;

fn member(name: &str, weight: u32) -> Member {
    Member {
        name: NodeName::new(name).unwrap(),
        address: "127.0.0.1:7000".parse().unwrap(),
        weight,
        capacity_bytes: 1 << 30,
        state: State::Active,
    }
}

fn members(list: &[(&str, u32)]) -> Members {
    Members::new(1, list.iter().map(|(name, weight)| member(name, *weight)).collect()).unwrap()
}

fn objects() -> Vec<ObjectId> {
    let entropy: &dyn Entropy = &SeededEntropy::new(7);
    (0..OBJECTS).map(|_| ObjectId::random(entropy)).collect()
}

fn owner(members: &Members, object: ObjectId) -> String {
    members.owner(object).unwrap().name.to_string()
}

#[test]
fn shares_follow_weights() {
    let weights = [("a", 1), ("b", 1), ("c", 2), ("d", 4), ("e", 8), ("node-10.0.0.1", 3), ("none", 0)];
    let group = members(&weights);
    let mut owned: HashMap<String, usize> = HashMap::new();
    objects().into_iter().for_each(|object| *owned.entry(owner(&group, object)).or_default() += 1);
    let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
    for (name, weight) in weights {
        let (has, due) =
            (owned.get(name).copied().unwrap_or(0) as f64, OBJECTS as f64 * f64::from(weight) / f64::from(sum));
        assert!((has - due).abs() <= due * 0.04, "{name}: {has} of {due}");
    }
}

#[test]
fn only_the_share_of_who_comes_or_goes_moves() {
    let (before, after) =
        (members(&[("a", 2), ("b", 2), ("c", 1)]), members(&[("a", 2), ("b", 2), ("c", 1), ("d", 5)]));
    let mut moved = 0;
    for object in objects() {
        let (old, new) = (owner(&before, object), owner(&after, object));
        if old != new {
            assert_eq!(new, "d");
            moved += 1;
        }
        // When d goes again, the next in the order is who had it before.
        let order = after.owners(object, 4);
        assert_eq!(order.iter().find(|member| member.name.as_str() != "d").unwrap().name.as_str(), old);
    }
    assert!((moved as f64 - 50_000.0).abs() < 2000.0, "{moved} moved");
}

#[test]
fn more_weight_only_attracts() {
    let (before, after) = (members(&[("a", 2), ("b", 2)]), members(&[("a", 2), ("b", 3)]));
    for object in objects() {
        assert!(owner(&before, object) == owner(&after, object) || owner(&after, object) == "b");
    }
}

#[test]
fn without_weight_nothing_is_owned() {
    assert!(Members::default().owners(ObjectId([1; 16]), 3).is_empty());
    assert!(!members(&[("a", 0)]).has_owners());
    let mut draining = member("b", 9);
    draining.state = State::Draining;
    let group = Members::new(3, vec![member("a", 1), draining]).unwrap();
    let names = |count| group.owners(ObjectId([1; 16]), count).iter().map(|m| m.name.to_string()).collect::<Vec<_>>();
    assert_eq!((names(0), names(1), names(5)), (vec![], vec!["a".into()], vec!["a".into()]));
}

#[test]
fn lists_survive_the_round_trip() {
    let mut six = member("six", 0);
    (six.address, six.state) = ("[2001:db8::1]:9".parse().unwrap(), State::Draining);
    let group = Members::new(77, vec![six, member("b", u32::MAX), member("a", 1)]).unwrap();
    let bytes = group.encode();
    assert_eq!(Members::decode(&bytes), Ok(group.clone()));
    assert_eq!(group.list()[0].name.as_str(), "a");
    assert_eq!(group.get(&NodeName::new("six").unwrap()).unwrap().address.port(), 9);
    for len in 0..bytes.len() {
        assert!(Members::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    assert!(Members::decode(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn what_is_no_list_is_refused() {
    let twice = [member("a", 1), member("a", 2)];
    assert_eq!(Members::new(1, twice.to_vec()), None);
    let mut bytes = members(&[("a", 1), ("b", 1)]).encode();
    let at = bytes.iter().position(|byte| *byte == b'b').unwrap();
    bytes[at] = b'a';
    assert_eq!(Members::decode(&bytes), Err(BadList("two members have one name")));
    bytes[at] = b'\n';
    assert_eq!(Members::decode(&bytes), Err(BadList("a member does not parse")));
    assert_eq!(Members::decode(&[1, 0, 255, 255, 0, 0, 0, 0]), Err(BadList("it has too many members")));
    assert!(Members::decode(&[2, 0, 0, 0, 0, 0, 0, 0]).is_err());
    // Random changes of a valid list never do more than fail.
    let (valid, entropy) = (members(&[("a", 1), ("bcd", 2), ("e", 0)]).encode(), SeededEntropy::new(5));
    for _ in 0..20_000 {
        let (mut bytes, mut random) = (valid.clone(), [0; 4]);
        entropy.fill(&mut random);
        let at = usize::from(random[0]) % bytes.len();
        bytes[at] = random[1];
        bytes.truncate(bytes.len() - usize::from(random[2]) % 4);
        if let Ok(found) = Members::decode(&bytes) {
            assert_eq!(found.encode().len(), bytes.len());
        }
    }
}

#[test]
fn names() {
    assert!(NodeName::new("").is_none() && NodeName::new("a\tb").is_none());
    assert!(NodeName::new(&"x".repeat(NAME_BYTES_MAX)).is_some());
    assert!(NodeName::new(&"x".repeat(NAME_BYTES_MAX + 1)).is_none());
}
