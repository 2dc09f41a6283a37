//! Requests, answers, pushes, time: what happens between two that keep the rules.

use crate::pair::{Pair, Side, events, transmit};
use bytes::Bytes;
use sluice_wire::{
    Body, ConnectionError, DATA_BYTES_MAX, Event, FAILED_CANCELLED, FAILED_INTERNAL, Full, Limits, Options, PUSHES_MAX,
    Payload, RequestId, Versions,
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn body(text: &str) -> Payload {
    Bytes::copy_from_slice(text.as_bytes()).into()
}

fn text(body: Body) -> String {
    String::from_utf8(body.checked().expect("sound").to_vec()).expect("text")
}

/// The one request that has come.
fn request(pair: &mut Pair, side: Side) -> sluice_wire::Request {
    match pair.side(side).poll_event() {
        Some(Event::Request(request)) => request,
        other => panic!("{other:?} is no request"),
    }
}

#[test]
fn either_side_asks_and_is_answered() {
    let mut pair = Pair::open();
    for side in [Side::Initiator, Side::Acceptor] {
        let now = pair.now;
        pair.side(side).set_epoch(9);
        let id = pair.side(side).request(now, 7, &body("what?"), Some(now + SECOND)).expect("room");
        pair.run();
        let asked = request(&mut pair, side.other());
        assert_eq!((asked.id, asked.method, asked.epoch, asked.deadline), (id, 7, 9, Some(now + SECOND)));
        assert_eq!(text(asked.body), "what?");
        pair.side(side.other()).reply(id, &body("that"));
        pair.run();
        let Some(Event::Reply { id: answered, body, .. }) = pair.side(side).poll_event() else { panic!("no reply") };
        assert_eq!((answered, text(body).as_str()), (id, "that"));
        assert_eq!((pair.side(side).requests_under_way(), pair.side(side.other()).requests_unanswered()), (0, 0));
    }
}

#[test]
fn answers_come_in_any_order_and_may_be_errors() {
    let mut pair = Pair::open();
    let ids: Vec<_> =
        (0..3).map(|n| pair.initiator.request(pair.now, n, &Payload::default(), None).expect("room")).collect();
    pair.run();
    (0..3).for_each(|_| drop(request(&mut pair, Side::Acceptor)));
    pair.acceptor.reply(ids[2], &body("c"));
    pair.acceptor.fail(ids[0], 17, "no such thing");
    pair.acceptor.reply(ids[1], &vec![0; DATA_BYTES_MAX + 1].into());
    pair.run();
    let got = events(&mut pair.initiator);
    assert!(matches!(&got[0], Event::Reply { id, .. } if *id == ids[2]));
    assert!(matches!(&got[1], Event::Failed { id, code: 17, text, .. } if *id == ids[0] && text == "no such thing"));
    assert!(matches!(&got[2], Event::Failed { id, code: FAILED_INTERNAL, .. } if *id == ids[1]));
}

/// What is switched off is not said; the answer that nobody waits for is counted off all the same.
#[test]
fn a_peer_need_not_be_told_of_deadlines_and_ends() {
    for (cancel, deadlines) in [(true, true), (false, false)] {
        let options = Options { cancel, deadlines, ..Options::default() };
        let mut pair = Pair::open_with(options, Options::default());
        let deadline = pair.now + SECOND;
        let ids = [0, 1].map(|n| pair.initiator.request(pair.now, n, &body("what?"), Some(deadline)).expect("room"));
        pair.run();
        let told = [0, 1].map(|_| request(&mut pair, Side::Acceptor).deadline);
        assert_eq!(told, [deadlines.then_some(deadline); 2]);
        pair.initiator.cancel(ids[0]);
        pair.now = deadline;
        pair.initiator.handle_timeout(deadline);
        pair.run();
        let cancelled = ids.map(|id| Event::Cancelled { id }).into_iter().filter(|_| cancel);
        assert_eq!(events(&mut pair.acceptor), cancelled.collect::<Vec<_>>());
        assert_eq!(events(&mut pair.initiator), [Event::TimedOut { id: ids[1] }]);
        ids.into_iter().for_each(|id| pair.acceptor.reply(id, &body("that")));
        pair.run();
        assert_eq!((events(&mut pair.initiator), pair.initiator.requests_under_way()), (Vec::new(), 0));
    }
}

#[test]
fn a_body_in_pieces_arrives_whole_and_is_not_copied() {
    let mut pair = Pair::open();
    let large = Bytes::from(vec![7; 100_000]);
    let pieces = vec![Bytes::from_static(b"ab"), large.clone(), Bytes::from_static(b"c")];
    pair.initiator.request(pair.now, 1, &pieces.clone().into(), None).expect("room");
    let mut out = Vec::new();
    pair.initiator.poll_transmit(pair.now, &mut out, usize::MAX);
    assert!(out.iter().any(|piece| piece.as_ptr() == large.as_ptr()), "the large piece goes as it is");
    pair.acceptor.handle_input(pair.now, &out.concat()).expect("sound");
    assert_eq!(request(&mut pair, Side::Acceptor).body.checked().expect("sound"), pieces.concat());
}

/// The sender may combine the CRC; the receiver may leave the check to the body's user.
#[test]
fn checks_can_be_left_to_the_user() {
    let mut pair = Pair::open();
    let right = sluice_base::crc::crc32c(b"bytes");
    for (crc, sound) in [(right, true), (right ^ 1, false)] {
        pair.initiator.request(pair.now, 1, &body("bytes").with_crc(crc).unchecked(), None).expect("room");
        pair.run();
        assert_eq!(request(&mut pair, Side::Acceptor).body.checked().is_ok(), sound);
    }
    pair.initiator.request(pair.now, 1, &body("bytes").with_crc(right ^ 1), None).expect("room");
    pair.run();
    let why = ConnectionError::BadBody(sluice_wire::Kind::Request);
    assert_eq!(events(&mut pair.acceptor), [Event::Closed { why: why.clone() }]);
    assert_eq!(events(&mut pair.initiator), [Event::Closed { why: ConnectionError::Bye(why.to_string()) }]);
}

/// A bulk lane's driver reads the header alone and the body straight to where it belongs.
#[test]
fn a_body_may_be_received_elsewhere() {
    let mut pair = Pair::open();
    let sent = Bytes::from(vec![5; 1 << 20]);
    pair.initiator.request(pair.now, 1, &sent.clone().into(), None).expect("room");
    let bytes = pair.sent(Side::Initiator, usize::MAX);
    assert_eq!(pair.acceptor.expects_body(), None);
    let (header, rest) = bytes.split_at(pair.acceptor.header_bytes_missing());
    pair.acceptor.handle_input(pair.now, header).expect("a header");
    assert_eq!(pair.acceptor.expects_body().map(|header| header.length as usize), Some(rest.len()));
    let place = Bytes::from_owner(rest.to_vec());
    pair.acceptor.handle_body(pair.now, place.clone()).expect("sound");
    let body = request(&mut pair, Side::Acceptor).body.checked().expect("sound");
    assert_eq!(body.as_ptr(), place.as_ptr());
}

#[test]
fn a_cancelled_request_has_no_answer_but_stays_counted() {
    let limits = Limits { requests_max: 1, ..Limits::default() };
    let mut pair = Pair::open_with(Options::default(), Options { limits, ..Options::default() });
    let id = pair.initiator.request(pair.now, 1, &body("x"), None).expect("room");
    pair.run();
    drop(request(&mut pair, Side::Acceptor));
    pair.initiator.cancel(id);
    assert_eq!(pair.initiator.request(pair.now, 1, &body("y"), None), Err(Full::InFlight));
    pair.run();
    assert_eq!(events(&mut pair.acceptor), [Event::Cancelled { id }]);
    // Too late, and about nothing: both are harmless.
    pair.acceptor.reply(id, &body("late"));
    pair.initiator.cancel(id);
    pair.run();
    assert_eq!(events(&mut pair.initiator), []);
    assert_eq!(pair.initiator.request(pair.now, 1, &body("y"), None), Ok(RequestId(2)));
}

#[test]
fn a_cancel_may_cross_the_answer() {
    let mut pair = Pair::open();
    let id = pair.initiator.request(pair.now, 1, &body("x"), None).expect("room");
    pair.run();
    pair.initiator.cancel(id);
    pair.acceptor.reply(id, &body("crossed"));
    pair.run();
    assert!(matches!(events(&mut pair.acceptor)[..], [Event::Request(_)]));
    assert_eq!(events(&mut pair.initiator), []);
    assert!(pair.initiator.is_open() && pair.acceptor.is_open());
}

#[test]
fn a_deadline_ends_the_wait_and_tells_the_peer() {
    let mut pair = Pair::open();
    let deadline = pair.now + SECOND;
    let id = pair.initiator.request(pair.now, 1, &body("x"), Some(deadline)).expect("room");
    pair.run();
    drop(request(&mut pair, Side::Acceptor));
    assert_eq!(pair.initiator.poll_timeout(), Some(deadline));
    pair.pass(SECOND);
    pair.run();
    assert_eq!(events(&mut pair.initiator), [Event::TimedOut { id }]);
    assert_eq!(events(&mut pair.acceptor), [Event::Cancelled { id }]);
    assert_eq!(pair.initiator.requests_under_way(), 0, "the failure that followed was counted off");
}

#[test]
fn the_answer_to_a_cancel_says_so() {
    let mut pair = Pair::open();
    let id = pair.initiator.request(pair.now, 1, &body("x"), None).expect("room");
    pair.run();
    pair.initiator.cancel(id);
    let cancel = pair.sent(Side::Initiator, usize::MAX);
    pair.acceptor.handle_input(pair.now, &cancel).expect("sound");
    let failed = transmit(&mut pair.acceptor, pair.now, usize::MAX);
    assert_eq!(failed[sluice_wire::HEADER_BYTES..], FAILED_CANCELLED.to_le_bytes());
}

#[test]
fn pushes_are_acked_one_by_one_and_bounded() {
    let mut pair = Pair::open();
    let numbers: Vec<_> = (0..PUSHES_MAX).map(|_| pair.acceptor.push(&body("forget")).expect("room")).collect();
    assert_eq!(pair.acceptor.push(&body("one more")), Err(Full::InFlight));
    assert_eq!(pair.initiator.push(&body("not from here")), Err(Full::NotOpen));
    pair.run();
    assert_eq!(events(&mut pair.initiator).len(), PUSHES_MAX);
    pair.initiator.ack_push(numbers[1]);
    pair.initiator.ack_push(numbers[1]);
    pair.run();
    assert_eq!(events(&mut pair.acceptor), [Event::PushAcked { number: numbers[1] }]);
    assert!(pair.acceptor.push(&body("one more")).is_ok());
}

#[test]
fn idle_peers_ping_and_stay() {
    let mut pair = Pair::open();
    for _ in 0..100 {
        let next = pair.initiator.poll_timeout().expect("open").min(pair.acceptor.poll_timeout().expect("open"));
        assert!(next > pair.now && next <= pair.now + 5 * SECOND, "{next:?} at {:?}", pair.now);
        let by = next - pair.now;
        pair.pass(by);
        pair.run();
    }
    assert!(pair.initiator.is_open() && pair.acceptor.is_open());
    assert_eq!((events(&mut pair.initiator), events(&mut pair.acceptor)), (vec![], vec![]));
}

#[test]
fn a_silent_peer_is_dead() {
    let mut pair = Pair::open();
    for _ in 0..3 {
        assert!(pair.initiator.is_open());
        pair.pass(5 * SECOND);
    }
    assert_eq!(events(&mut pair.initiator), [Event::Closed { why: ConnectionError::Silent }]);
    assert_eq!(pair.initiator.poll_timeout(), None);
}

#[test]
fn versions_without_a_common_one_are_refused_with_both() {
    let newer = Options { versions: Versions { min: 2, max: 3 }, ..Options::default() };
    let mut pair = Pair::new(newer, Options::default());
    pair.run();
    let [Event::Closed { why: ConnectionError::Refused(refused) }] = &events(&mut pair.initiator)[..] else { panic!() };
    assert_eq!((refused.code, refused.versions), (sluice_wire::RefusalCode::Version, Versions { min: 1, max: 1 }));
    assert!(refused.text.contains("version 1,") && refused.text.contains("2 to 3"), "{}", refused.text);
    assert!(matches!(&events(&mut pair.acceptor)[..], [Event::Closed { why: ConnectionError::TurnedAway(_) }]));
}

#[test]
fn closing_tells_the_peer() {
    let mut pair = Pair::open();
    pair.initiator.request(pair.now, 1, &body("x"), None).expect("room");
    pair.acceptor.close("going home");
    pair.run();
    assert_eq!(events(&mut pair.acceptor), [Event::Closed { why: ConnectionError::Ended("going home".into()) }]);
    assert_eq!(events(&mut pair.initiator), [Event::Closed { why: ConnectionError::Bye("going home".into()) }]);
    assert_eq!(pair.initiator.request(pair.now, 1, &body("x"), None), Err(Full::NotOpen));
}
