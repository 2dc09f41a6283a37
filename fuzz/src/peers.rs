//! What peers say to each other about the group, and the bytes that mounts ask of each other.

use super::{OBJECT, VOLUME, same_again, wire_output, wire_pair};
use bytes::Bytes;
use sluice_base::{crc::segment_crc, limits::SEGMENT_BYTES};
use sluice_join::methods::{Report, Unstored, decode_pieces, encode_pieces};
use sluice_node::{
    MEMBERS_MAX, Members, Registry,
    message::{
        CheckSegments, Heartbeat, Join, ReadRange, ReadSegments, decode_drain, decode_epoch, decode_fill,
        decode_filled, decode_group, decode_leave, decode_objects, decode_set, decode_sets, encode_drain, encode_epoch,
        encode_fill, encode_filled, encode_group, encode_leave, encode_objects, encode_set, encode_sets, segments,
    },
};
use sluice_vfs::Piece;
use sluice_wire::{Event, Payload, Welcome};
use std::{net::Ipv4Addr, time::Duration};

const NOW: Duration = Duration::ZERO;

/// A message about the group: two bytes of method, then a body, which is taken for each request, for each answer, and given to a
/// server's registry.
pub fn node_messages(bytes: &[u8]) {
    let Some((method, body)) = bytes.split_first_chunk() else { return };
    let method = u16::from_le_bytes(*method);
    let mut registry = Registry::new(NOW, 1);
    let _ = registry.handle(NOW, Ipv4Addr::LOCALHOST.into(), method, body);
    assert!(registry.members().list().len() <= 1);
    same_again(Join::decode(body), Join::encode, Join::decode);
    same_again(Heartbeat::decode(body), Heartbeat::encode, Heartbeat::decode);
    same_again(ReadSegments::decode(body), ReadSegments::encode, ReadSegments::decode);
    same_again(ReadRange::decode(body), |read| read.encode().to_vec(), ReadRange::decode);
    same_again(CheckSegments::decode(body), CheckSegments::encode, CheckSegments::decode);
    same_again(decode_leave(body), |(name, instance)| encode_leave(name, *instance), decode_leave);
    same_again(decode_drain(body), |(name, drains)| encode_drain(name, *drains), decode_drain);
    same_again(decode_epoch(body), |epoch| encode_epoch(*epoch), decode_epoch);
    same_again(decode_set(body), |set| encode_set(*set), decode_set);
    same_again(decode_fill(body), |object| encode_fill(*object), decode_fill);
    same_again(decode_filled(body), |bytes| encode_filled(*bytes), decode_filled);
    same_again(decode_objects(body), |objects| encode_objects(objects), decode_objects);
    let sets = |bytes: &[u8]| decode_sets(bytes, bytes.len() / 16);
    same_again(sets(body), |found| encode_sets(found), sets);
    same_again(decode_group(body), |group| encode_group(group), decode_group);
    let count = u32::from(method % 128) + 1;
    let mut mended = body.to_vec();
    mend_answer(&mut mended, count as usize);
    read_answer(body, count);
    read_answer(&mended, count);
}

/// Takes the bytes for an answer to "read segments", as it comes out of a connection that leaves the check to its user.
fn read_answer(bytes: &[u8], count: u32) {
    let (mut asker, mut node) = wire_pair(false);
    node.handle_input(NOW, &wire_output(&mut asker)).expect("a hello");
    node.accept(Welcome { volume: VOLUME, session: None, name: "node".into() });
    asker.handle_input(NOW, &wire_output(&mut node)).expect("a welcome");
    let id = asker.request(NOW, 220, &Payload::default(), None).expect("room");
    node.handle_input(NOW, &wire_output(&mut asker)).expect("a request");
    node.reply(id, &Payload::from(bytes.to_vec()).unchecked());
    asker.handle_input(NOW, &wire_output(&mut node)).expect("an answer");
    let body = std::iter::from_fn(|| asker.poll_event()).find_map(|event| match event {
        Event::Reply { body, .. } => Some(body),
        _ => None,
    });
    if let Ok(found) = segments(body.expect("an answer"), OBJECT, 0..count) {
        assert_eq!(found.len(), count as usize);
        assert!(found.iter().all(|segment| segment.is_sound(OBJECT)));
    }
}

/// Makes the checksums of the segments right.
fn mend_answer(bytes: &mut [u8], count: usize) {
    let Some((head, mut rest)) = bytes.split_at_mut_checked(8 * count) else { return };
    for (index, entry) in head.chunks_exact_mut(8).enumerate() {
        let len = u32::from_le_bytes(entry[..4].try_into().expect("four bytes")) as usize;
        let Some((segment, behind)) = rest.split_at_mut_checked(len) else { return };
        let crc = if len == 0 { 0 } else { segment_crc(OBJECT, index as u32, segment) };
        entry[4..].copy_from_slice(&crc.to_le_bytes());
        rest = behind;
    }
}

/// The list of members as peers are told it, and as the server keeps it.
pub fn member_list(bytes: &[u8]) {
    same_again(Members::decode(bytes).ok(), Members::encode, |bytes| Members::decode(bytes).ok());
    if let Ok(members) = Members::decode(bytes) {
        let with_weight = members.list().iter().filter(|member| member.effective_weight() > 0).count();
        assert_eq!(members.owners(OBJECT, 2).len(), with_weight.min(2));
    }
    if let Ok(mut registry) = Registry::restore(NOW, 1, bytes) {
        assert!(registry.members().list().len() <= MEMBERS_MAX);
        let again = registry.unsaved().map(|saved| Registry::restore(NOW, 1, &saved).expect("what was saved"));
        assert!(again.is_none_or(|again| again.members().list() == registry.members().list()));
    }
}

/// What mounts and their server ask about bytes that are not stored, and these bytes.
pub fn unstored_bytes(bytes: &[u8]) {
    same_again(Unstored::decode(bytes), Unstored::encode, Unstored::decode);
    same_again(Report::decode(bytes), Report::encode, Report::decode);
    if let Some(pieces) = decode_pieces(Bytes::copy_from_slice(bytes)) {
        assert!(pieces.iter().all(|piece| piece.bytes.len() <= SEGMENT_BYTES));
        let other = |piece: &Piece| Piece { crc: piece.crc ^ 1, ..piece.clone() };
        assert!(pieces.iter().all(|piece| !piece.is_sound(OBJECT) || !other(piece).is_sound(OBJECT)));
        assert_eq!(encode_pieces(&pieces).concat(), bytes);
    }
}
