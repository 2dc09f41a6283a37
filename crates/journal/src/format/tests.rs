use super::*;
use proptest::prelude::*;

const VOLUME: VolumeId = VolumeId([7; 16]);

fn record(seq: u64, parts: &[&[u8]]) -> Vec<u8> {
    let place = Place::new(VOLUME, 3);
    let envelope = Envelope { seq: Seq(seq), synced: Seq(seq - 1), boot: 9, class: Class::Data, place };
    let mut buffer = vec![0xff; 99];
    put_record(&mut buffer, &envelope, parts);
    buffer.split_off(99)
}

#[test]
fn a_record_is_what_was_put() {
    let bytes = record(5, &[b"ab", b"", b"c"]);
    assert_eq!(bytes.len(), RECORD_HEADER_BYTES + ALIGN);
    let found = parse_record(&bytes, Place::new(VOLUME, 3)).unwrap();
    assert_eq!((found.seq, found.synced, found.boot, found.class), (Seq(5), Seq(4), 9, Class::Data));
    assert_eq!((found.payload, found.stored_bytes), (&b"abc"[..], bytes.len()));
}

#[test]
fn a_record_counts_only_in_its_place() {
    let bytes = record(5, &[b"abc"]);
    for place in [Place::new(VOLUME, 4), Place::new(VolumeId([8; 16]), 3)] {
        assert_eq!(parse_record(&bytes, place), Err(ParseError::BadChecksum));
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_seen() {
    let bytes = record(5, &[b"hello journal"]);
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(parse_record(&bad, Place::new(VOLUME, 3)).is_err(), "bit {bit}");
    }
    for end in 0..bytes.len() {
        assert!(parse_record(&bytes[..end], Place::new(VOLUME, 3)).is_err(), "cut at {end}");
    }
}

#[test]
fn a_segment_header_is_what_was_put() {
    let header = SegmentHeader { volume: VOLUME, number: 3, first_seq: Seq(10), synced: Seq(9), bytes: 1 << 20 };
    let mut page = header.to_page();
    assert_eq!(SegmentHeader::parse(&page), Ok(header));
    for at in (0..segment::END).filter(|at| !(segment::VERSION..segment::CRC).contains(at)) {
        let mut bad = page.clone();
        bad[at] ^= 0x10;
        assert_eq!(SegmentHeader::parse(&bad), Err(HeaderError::Damaged), "byte {at}");
    }
    page[segment::VERSION] = 2;
    assert_eq!(SegmentHeader::parse(&page), Err(HeaderError::Newer(2)));
}

#[test]
fn a_mark_counts_only_in_its_segment() {
    let mut page = vec![0; SEGMENT_HEADER_BYTES as usize];
    let bytes = Mark { synced: Seq(4) }.to_bytes(Place::new(VOLUME, 3));
    page[segment::MARK..][..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(Mark::find(&page, Place::new(VOLUME, 3)), Some(Mark { synced: Seq(4) }));
    assert_eq!(Mark::find(&page, Place::new(VOLUME, 2)), None);
    assert_eq!(Mark::find(&page[..100], Place::new(VOLUME, 3)), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
        if magic {
            let length = bytes.len().min(4);
            bytes[..length].copy_from_slice(&RECORD_MAGIC[..length]);
        }
        prop_assert!(parse_record(&bytes, Place::new(VOLUME, 1)).is_err());
        let _ = SegmentHeader::parse(&bytes);
        let _ = Mark::find(&bytes, Place::new(VOLUME, 1));
    }
}
