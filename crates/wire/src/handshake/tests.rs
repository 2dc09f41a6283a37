use super::*;

fn hello() -> Hello {
    Hello {
        peer: PeerKind::Mount,
        lane: LaneClass::Bulk,
        volume: Some(VolumeId([7; 16])),
        session: Some(Session { id: SessionId(5), epoch: 3 }),
        name: "host:/mnt".into(),
    }
}

const LIMITS: Limits = Limits { requests_max: 9, bytes_max: 1 << 20 };

#[test]
fn bodies_are_read_as_they_were_written() {
    let ours = Versions { min: 1, max: 3 };
    for hello in [hello(), Hello { volume: None, session: None, ..hello() }] {
        let body = hello.encode(Versions { min: 2, max: 9 }, LIMITS);
        assert_eq!(Hello::decode(&body, ours).ok(), Some((hello, 3, LIMITS)));
    }
    let welcome = Welcome { volume: VolumeId([1; 16]), session: hello().session, name: "server".into() };
    assert_eq!(Welcome::decode(&welcome.encode(3, LIMITS)), Some((welcome, 3, LIMITS)));
    let refused = Refused { code: RefusalCode::Busy, versions: ours, text: "later".into() };
    assert_eq!(Refused::decode(&refused.encode()), Some(refused));
}

#[test]
fn every_short_or_odd_body_is_refused() {
    let body = hello().encode(Versions::default(), LIMITS);
    for end in 0..=hello::NAME {
        assert!(Hello::decode(&body[..end], Versions::default()).is_err(), "{end} bytes");
    }
    for (at, value) in [(hello::PEER, 0), (hello::PEER, 5), (hello::LANE, 3), (hello::ZERO, 1), (hello::NAME, b'\n')] {
        let mut changed = body.to_vec();
        changed[at] = value;
        assert!(Hello::decode(&changed, Versions::default()).is_err(), "{value} at {at}");
    }
    let mut unnumbered = body.to_vec();
    unnumbered[hello::SESSION] = 0;
    assert!(Hello::decode(&unnumbered, Versions::default()).is_err(), "the epoch of no session");
}

/// Of a stranger's Hello only the versions are read.
#[test]
fn versions_come_first() {
    let theirs = Versions { min: 8, max: 9 };
    let mut body = hello().encode(theirs, LIMITS).to_vec();
    body.truncate(hello::PEER + 1);
    assert!(matches!(Hello::decode(&body, Versions::default()), Err(HelloError::Versions(found)) if found == theirs));
}

#[test]
fn the_newest_common_version_is_agreed() {
    let versions = |min, max| Versions { min, max };
    assert_eq!(versions(1, 4).agree(versions(2, 9)), Some(4));
    assert_eq!(versions(1, 1).agree(versions(1, 1)), Some(1));
    assert_eq!(versions(1, 2).agree(versions(3, 4)), None);
    assert_eq!(versions(3, 4).agree(versions(1, 2)), None);
}

#[test]
fn text_is_cut_between_characters_and_harmless() {
    assert_eq!(cut("aé", 2), "a");
    assert_eq!(text("a\x1b[31mb\n".as_bytes()).as_deref(), Some("a [31mb "));
    let long = Refused { code: RefusalCode::Other, versions: Versions::default(), text: "é".repeat(4000) };
    assert!(long.encode().len() <= crate::NOTE_BYTES_MAX);
}

#[test]
fn an_unknown_refusal_is_other() {
    let refused = Refused { code: RefusalCode::Busy, versions: Versions::default(), text: String::new() };
    let mut body = refused.encode().to_vec();
    body[refused::CODE] = 200;
    assert_eq!(Refused::decode(&body).map(|refused| refused.code), Some(RefusalCode::Other));
}
